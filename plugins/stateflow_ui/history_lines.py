"""The lines of a job's history, small in memory: a page shows a hundred of them and draws all of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stateflow.checkpoint.statistics import READ_OF_LINES, HistoryLine
from stateflow.format.records import Count
from stateflow.observe.batch_sizes import batch_sizes
from stateflow.storage.store import Entry

MOST_LINES = 50_000
"""Of one job, the newest ones."""
_TEXTS = ("kind", "status", "origin", "run", "dag_run", "task", "user", "host", "note")

Columns = Mapping[str, NDArray[np.int64]]


class SlimLine(HistoryLine, frozen=True, kw_only=True, omit_defaults=True):
    """A line without `sinks`, and with those `metrics` alone that the library reads: the two take most memory."""

    rest: bytes = b""
    """Both in full, as JSON."""
    target: Count | None = None
    """How long the batch should take, in milliseconds."""


class LineSlimmer:
    """Makes lines slim, and lets equal texts share their memory."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def slim(self, line: HistoryLine) -> SlimLine:
        if len(self._texts) > 10_000:
            self._texts.clear()
        fields = msgspec.structs.asdict(line)
        fields |= {name: self._texts.setdefault(fields[name], fields[name]) for name in _TEXTS}
        rest = msgspec.json.encode({"sinks": fields.pop("sinks"), "metrics": fields.pop("metrics")})
        read = {name: line.metrics[name] for name in READ_OF_LINES if name in line.metrics}
        return SlimLine(**fields, metrics=read, rest=rest, target=target_of(line))


def target_of(line: HistoryLine) -> int | None:
    """How long the batch should take, in milliseconds; None without a target."""
    if isinstance(line, SlimLine):
        return line.target
    sizes = batch_sizes(line.metrics)
    return sizes.target_ms if sizes else None


@dataclass(frozen=True)
class Lines:
    """Ascending by id."""

    all: Sequence[HistoryLine]

    @cached_property
    def ids(self) -> list[int]:
        return [line.id for line in self.all]

    @cached_property
    def checkpoints(self) -> list[HistoryLine]:
        """Complete ones."""
        return [line for line in self.all if line.kind == "checkpoint" and line.status == "COMPLETED"]

    @cached_property
    def columns(self) -> Columns:
        """Of the complete checkpoints, as charts and percentiles want them; times are milliseconds."""
        names = {
            "id": "id",
            "t": "latest_ack_timestamp",
            "duration": "end_to_end_duration",
            "size": "checkpointed_size",
            "full": "state_size",
            "rows": "processed_rows",
            "timeline": "timeline",
        }
        checkpoints = self.checkpoints
        return {
            column: np.fromiter((getattr(line, name) for line in checkpoints), np.int64, len(checkpoints))
            for column, name in names.items()
        }

    def find(self, slot: int) -> HistoryLine | None:
        at = bisect_left(self.ids, slot)
        return self.all[at] if at < len(self.ids) and self.ids[at] == slot else None

    def document(self, line: HistoryLine) -> dict[str, Any]:
        """The line as the pages show it; of all its times only the watermark is not in milliseconds."""
        return {
            **{name: getattr(line, name) for name in HistoryLine.__struct_fields__},
            **(msgspec.json.decode(line.rest) if isinstance(line, SlimLine) and line.rest else {}),
            "watermark": None if line.watermark is None else line.watermark // 1000,
        }

    def page(
        self, before: int | None, limit: int, kind: str, dag_run: str
    ) -> tuple[list[HistoryLine], int | None]:
        """Newest first, below `before`, and where the next page begins. `dag_run`: a DAG, or `DAG/RUN`."""
        end = len(self.all) if before is None else bisect_left(self.ids, before)
        page: list[HistoryLine] = []
        for at in range(end - 1, -1, -1):
            line = self.all[at]
            if (not kind or line.kind == kind) and (not dag_run or of_dag_run(line.dag_run, dag_run)):
                if len(page) == limit:
                    return page, page[-1].id
                page.append(line)
        return page, None


def of_dag_run(noted: str, dag_run: str) -> bool:
    """Whether what a record notes of its DAG run (`DAG/RUN`) is that run, or one of that DAG."""
    return noted == dag_run or noted.startswith(f"{dag_run}/")


def newest_segments(entries: Sequence[Entry]) -> Sequence[Entry]:
    """As many of the last segments as may hold the lines that stay in memory; each line takes 100 bytes or more."""
    at, budget = len(entries), MOST_LINES * 100
    while at > 0 and budget > 0:
        at -= 1
        budget -= max(1, min(entries[at].size, 256 * 100))
    return entries[at:]
