"""The pipelines that a host runs before it takes runs: what Spark does for the first time takes seconds."""

from collections.abc import Iterable, Iterator
from typing import Any

import stateflow as sf


class SeenBefore(sf.KeyedProcess[Any, Any, Any]):
    """Of anything: each kind of pipeline goes through the same code of Spark."""

    seen = sf.ValueState(int, default=0)

    def process(self, key: Any, rows: Iterable[Any], ctx: Any) -> Iterator[Any]:
        self.seen.value += sum(1 for _ in rows)
        yield key, self.seen.value


@sf.pipeline("warming")
def warming(flow: Any, *, input: str, output: str) -> None:
    """From files to a Delta table, in the host's own folder, which is removed."""
    _count(flow, sf.files(input, "json"), output)


@sf.pipeline("warming_delta")
def warming_delta(flow: Any, *, input: str, output: str) -> None:
    """From that table to another one."""
    _count(flow, sf.delta(input), output)


def _count(flow: Any, input: Any, output: str) -> None:
    rows = flow.source("rows", input, "key string, seen long")
    counted = rows.key_by("key").process("count", SeenBefore, output="key string, seen long")
    counted.append("counts", sf.delta(output))
