"""The pipeline that a host runs before it takes runs: what Spark does for the first time takes seconds."""

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
    rows = flow.source("rows", sf.files(input, "json"), "key string, value double")
    counted = rows.key_by("key").process("count", SeenBefore, output="key string, seen long")
    counted.append("counts", sf.delta(output))
