"""How many entries each state of a snapshot has."""

from __future__ import annotations

from stateflow.checkpoint.handle import JobHandle
from stateflow.compatibility.flows import Counts
from stateflow.config.options import Options
from stateflow.reading.query import StateSize
from stateflow.reading.snapshots import checkpoint_reader, reader_context, savepoint_reader
from stateflow.savepoints.origin import Origin


def counted(origin: Origin, job: JobHandle, options: Options) -> Counts:
    """By operator and state. It reads the whole state; the tables of a canonical savepoint say it themselves.

    `job` counts, whose clock and ids a reader takes.
    """
    if origin.canonical:
        return origin.rows
    place = reader_context(options, job.root, job.clock)
    if origin.owner is None:
        with savepoint_reader(place, origin.url) as reader:
            return by_name(reader.sizes())
    with checkpoint_reader(place, origin.job, origin.label, owner=job.owner(), ids=job.new_id) as reader:
        return by_name(reader.sizes())


def newest_sizes(job: JobHandle, options: Options) -> tuple[int, list[StateSize]]:
    """The newest checkpoint's number, and what its states hold. It reads the whole state."""
    place = reader_context(options, job.root, job.clock)
    with checkpoint_reader(place, job.name, owner=job.owner(), ids=job.new_id) as reader:
        return reader.record.slot, reader.sizes()


def by_name(sizes: list[StateSize]) -> Counts:
    return {(size.operator, size.state): size.entries for size in sizes}
