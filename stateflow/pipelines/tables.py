"""Delta tables as users name them: a source of a flow, or the target of `append` and `upsert`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stateflow.errors import UsageError
from stateflow.names import with_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """A Delta table at a path, with what is needed to create it and to read it."""

    path: str
    partition_by: tuple[str, ...] = ()
    """For creation only: an existing table keeps its own partitioning, which must then be this one."""
    options: Mapping[str, str] = field(default_factory=dict)
    """`delta.*` are properties of a table that is created; the rest goes to the reader of a source."""

    kind = "delta"

    def streaming(self, spark: SparkSession) -> DataFrame:
        """The table as a stream."""
        reader = spark.readStream.format("delta")
        for name, value in self.options.items():
            if not name.startswith("delta."):
                reader = reader.option(name, value)
        return reader.load(self.path)

    @property
    def properties(self) -> dict[str, str]:
        return {name: value for name, value in self.options.items() if name.startswith("delta.")}

    def __str__(self) -> str:
        return f"Delta table {self.path}"


@with_options
def delta(
    path: str, *, partition_by: Sequence[str] = (), options: Mapping[str, str] | None = None
) -> DeltaTable:
    """The Delta table at `path`."""
    if not path:
        raise UsageError(
            "a Delta table needs a path: write delta('s3a://bucket/table') or delta('/data/table')"
        )
    if isinstance(partition_by, str):
        raise UsageError(
            f"partition_by={partition_by!r} is not a list of columns: write partition_by=[{partition_by!r}]"
        )
    return DeltaTable(
        path, tuple(partition_by), {name: str(value) for name, value in (options or {}).items()}
    )
