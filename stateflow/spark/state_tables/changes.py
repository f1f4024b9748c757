"""What changed between two snapshots, as a Spark table: the rows that `stateflow diff --all` writes.

    job, diff             a job, and the two points: `317..318`; slots, tags, times or URLs of native savepoints
    with                  the second point is of this other job of the root
    operator, state       only this operator, only this state

A row is never `written` or `deleted`: files that both points have are fetched where they are needed, on whichever host a task
runs. Nothing is pinned, as for any table of state. What cannot be told entry by entry is logged when the table is loaded.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from stateflow.checkpoint.names import Elsewhere, complete_records, parse
from stateflow.config.options import Options
from stateflow.errors import CorruptError, NotFoundError, UsageError
from stateflow.format.records import Record
from stateflow.reading.diff import (
    TEXTS,
    ComparedSnapshot,
    Differences,
    StateNames,
    compared_savepoint,
    names_of_states,
    no_point,
)
from stateflow.spark.state_tables.snapshots import SnapshotOrigin, TableSnapshot, checkpoint_of, savepoint_at
from stateflow.spark.task.reader import task_reader
from stateflow.spark.task.storage import TaskStorage
from stateflow.state.backends.choice import ShardReaders, open_reader

SCHEMA = pa.schema([(name, pa.string()) for name in TEXTS])
_log = logging.getLogger(__name__)
_BATCH = 10_000
_BETWEEN = re.compile(r"\.\.(?![./])")
_OTHERS = ("checkpoint", "at", "path", "key", "keys")


@dataclass(frozen=True)
class Point:
    """One of the two snapshots, as tasks get it."""

    origin: SnapshotOrigin
    record: Record
    storage: TaskStorage
    open_shard: ShardReaders

    def snapshot(self) -> ComparedSnapshot:
        context = task_reader(self.storage, self.open_shard, self.record.at)
        return ComparedSnapshot(self.origin.label, self.record, context)


@dataclass(frozen=True)
class ComparedPoints:
    """The two points, and what of them is compared."""

    before: Point
    after: Point
    operators: Sequence[str]
    states: Sequence[str]
    names: StateNames

    def differences(self, share: tuple[int, int] = (0, 1)) -> Differences:
        return Differences(
            self.before.snapshot(),
            self.after.snapshot(),
            operators=self.operators,
            states=self.states,
            look_up=True,
            share=share,
            names=self.names,
        )

    @property
    def shares(self) -> int:
        """Into how many tasks the work is cut: the shards of the operator that has most."""
        operators = (o for point in (self.before, self.after) for o in point.record.operators.values())
        return max((sum(map(len, operator.shards)) for operator in operators), default=0) or 1


class ChangesReader(DataSourceReader):
    """Each task compares its share of the pairs of shards."""

    schema = SCHEMA

    def __init__(self, points: ComparedPoints) -> None:
        self.points = points
        checked = points.differences()
        checked.comparable()
        for note in checked.notes:
            _log.warning("%s", note)

    def partitions(self) -> Sequence[InputPartition]:
        shares = self.points.shares
        return [InputPartition((number, shares)) for number in range(shares)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        try:
            rows = (change.texts for change in self.points.differences(partition.value).changes())
            while batch := list(islice(rows, _BATCH)):
                yield pa.RecordBatch.from_pylist(batch, SCHEMA)
        except CorruptError as error:
            for point in (self.points.before, self.points.after):
                explanation = point.origin.explained(error, point.storage.storage_options)
                if explanation is not error:
                    raise explanation from error
            raise


def compared_points(settings: Mapping[str, str], options: Options) -> ComparedPoints:
    """The two points that a data source's options name."""
    wrong = next((name for name in _OTHERS if name in settings), None)
    if wrong is not None:
        raise UsageError(f"option {wrong} does not go with option diff: name the two points as 317..318")
    if "job" not in settings:
        raise UsageError("option diff needs option job: it names the job whose points are compared")
    texts = _BETWEEN.split(settings["diff"])
    if len(texts) != 2 or not all(texts):
        raise UsageError(f"option diff is {settings['diff']!r}: write two points as 317..318")
    jobs = settings["job"], settings.get("with", settings["job"])
    found = [_found(text, job, options) for text, job in zip(texts, jobs, strict=True)]
    owner = next((each.owner for each in found if each.owner is not None), None)
    kept = (lambda: complete_records(owner.log())) if owner is not None and "with" not in settings else list
    before, after = (
        Point(each.origin, each.record, each.storage(), open_reader(each.options)) for each in found
    )
    operators, states = ((settings[name],) if name in settings else () for name in ("operator", "state"))
    names = names_of_states(before.record, after.record, kept)
    return ComparedPoints(before, after, operators, states, names)


def _found(text: str, job: str, options: Options) -> TableSnapshot:
    if not isinstance(parse(text), Elsewhere):
        return checkpoint_of(job, text, options)
    try:
        snapshot = savepoint_at(text, options)
    except NotFoundError as error:
        raise no_point(text, error) from error
    assert snapshot.savepoint is not None
    compared_savepoint(snapshot.savepoint, text, job)
    return snapshot
