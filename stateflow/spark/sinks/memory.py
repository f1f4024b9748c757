"""A sink in this process's memory, for tests. Like every sink it commits a slot once."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from stateflow.errors import UsageError
from stateflow.format.records import Prepared
from stateflow.pipelines.sink_kinds import MEMORY
from stateflow.spark.sinks.base import CommitRequest, Committed, Sink
from stateflow.spark.sinks.slot import SinkSlot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from stateflow.spark.sinks.staging import Stager

LIMIT = 8 << 20
_tables: dict[str, dict[tuple[str, int], list[dict[str, Any]]]] = {}
_lock = Lock()


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """A named list of rows that lives as long as the process."""

    name: str

    kind = MEMORY.name

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Every committed row, in order of slots."""
        return [row for _, batch in self.batches for row in batch]

    @property
    def batches(self) -> list[tuple[int, list[dict[str, Any]]]]:
        """`(slot, rows)` of every commit, in order of slots."""
        with _lock:
            batches = sorted(_tables.get(self.name, {}).items(), key=lambda item: item[0][1])
        return [(slot, list(rows)) for (_, slot), rows in batches]

    def clear(self) -> None:
        with _lock:
            _tables.pop(self.name, None)


def memory(name: str) -> MemoryTable:
    """The in-memory table `name`: the target of `stream.collect` in tests."""
    return MemoryTable(name)


class MemorySink(Sink):
    """The sink `stream.collect(uid, memory(name))`."""

    declared = MEMORY
    target: MemoryTable

    def open(self, spark: SparkSession, schema: StructType) -> None:
        """Does nothing: the table takes any row."""

    def prepare(self, frame: DataFrame, at: SinkSlot, stager: Stager) -> Prepared:
        import pyarrow as pa

        table = frame.toArrow()
        if table.nbytes > LIMIT:
            raise UsageError(
                f"{table.nbytes} bytes of one batch are too many for the in-memory table {self.target.name!r} "
                f"({LIMIT} at most): it is for tests, use append"
            )
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, table.schema) as writer:
            writer.write_table(table)
        rows = base64.b64encode(buffer.getvalue()).decode() if table.num_rows else ""
        return Prepared(
            kind=MEMORY.name,
            target=self.target.name,
            payload={"arrow": rows},
            rows=table.num_rows,
        )

    @staticmethod
    def commit(request: CommitRequest) -> Committed:
        import pyarrow as pa

        prepared, at = request.prepared, request.at
        if not prepared.rows:
            return "none"
        with pa.ipc.open_stream(base64.b64decode(prepared.payload["arrow"])) as reader:
            rows = reader.read_all().to_pylist()
        with _lock:
            batches = _tables.setdefault(prepared.target, {})
            if (at.app_id, at.slot) in batches:
                return "already"
            batches[at.app_id, at.slot] = rows
        return "committed"
