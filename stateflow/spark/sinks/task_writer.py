"""Writers of a sink's own: its rows go to the target's place where they are computed, and the tasks hand back what they wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

WRITTEN = "written string"
"""The column of what a task hands back, in Spark's words."""


class TaskWriter(Protocol):
    """Writes the rows of one task. What it writes has names of its own, and nobody sees it before the commit."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Takes rows. What it raises fails the batch before its record; a sentence for the user comes through as `task_error`."""

    def close(self) -> Iterable[str]:
        """Describes what was written, for the record: nothing without rows."""

    def discard(self) -> None:
        """After a failure: removes what was written, as far as that can be done."""


MakeWriter = Callable[[str], TaskWriter]
"""Makes a writer for a task. Its argument is unique to the attempt: two attempts of one task, speculation included, share no name."""


@dataclass(frozen=True, slots=True)
class WriterTask:
    """The task that writes one partition of a frame."""

    make: MakeWriter
    token: str
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        writer = self.make(attempt_name(self.token))
        try:
            for batch in batches:
                writer.write(as_schema(batch, self.schema))
            written = list(writer.close())
        except BaseException:
            writer.discard()
            raise
        yield pa.record_batch([pa.array(written, pa.string())], names=["written"])


def attempt_name(token: str) -> str:
    """A name for the task that runs here. Two attempts of one partition, speculation included, share none."""
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    return f"{token}-{task.partitionId()}-{task.taskAttemptId()}"


def as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`batch` with the names and types of `schema`, without copying what already has them."""
    import pyarrow as pa

    if batch.schema.equals(schema):
        return batch
    return pa.record_batch(
        [c.cast(f.type) for c, f in zip(batch.columns, schema, strict=True)], schema=schema
    )
