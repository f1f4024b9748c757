"""What Spark observes of each source in a batch, by bits and maxima beside the rows, and what that says of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stateflow.errors import IncompatibleError
from stateflow.format.records import SourceState
from stateflow.pipelines.absent import Watched, is_watched, may_have_nulls, watched
from stateflow.pipelines.graph import SourceNode
from stateflow.pipelines.inputs.files import Files
from stateflow.pipelines.inputs.input import PARTITION
from stateflow.pipelines.rows.row_type import quoted
from stateflow.spark.internals.queries import observed_metrics
from stateflow.spark.internals.sketches import highest_by_key, values_by_key

_OBSERVED = "stateflow-source-"
_PRESENT = "present"
_WHOLE = "whole"
_EARLY = "early"
_PARTITIONS = "partitions"
_EARLY_1970 = "between timestamp'1970-01-01 00:00:00Z' and timestamp'1970-04-26 00:00:00Z'"
"""Seconds since 1970 that are numbers below ten million."""
_BITS = 62
_SOON = 86_400_000_000
"""Of an event time that is still to come, how far it may be ahead of the clock: clocks differ, and days end later elsewhere."""
_LAST_MOMENT = 253_402_300_799_999_999
"""The end of the year 9999, in microseconds since 1970. Python has no later one."""


def event_time_in_sql(column: str) -> str:
    """The event time of a row, which is in this column, in microseconds since 1970."""
    return f"unix_micros(cast({quoted(column)} as timestamp))"


@dataclass(frozen=True)
class ObservedSource:
    """A source, and its fields of which Spark observes something."""

    node: SourceNode
    watched: Sequence[Sequence[Watched]]
    """Those that a row may lack, in groups, each with as many fields as a number has bits."""
    never_null: Sequence[Sequence[Watched]]
    """Those in which every row should have a value, in such groups."""
    times: Sequence[str]
    """Timestamp fields: the JSON reader takes a number there for seconds since 1970."""

    @classmethod
    def of(cls, node: SourceNode) -> ObservedSource:
        rows = node.rows
        if rows is None:
            return cls(node, (), (), ())
        fields = watched(rows)
        always = [each for each in fields if each.may_not_be_null] if may_have_nulls(node) else []
        times = [field.name for field in rows.fields if field.type in ("timestamp", "timestamp_ltz")][:_BITS]
        of_json = isinstance(node.factory, Files) and node.factory.format == "json"
        return cls(
            node, _in_words(fields) if is_watched(node) else (), _in_words(always), times if of_json else ()
        )

    def of_frame(self, frame: DataFrame) -> DataFrame:
        """The source's rows, observed."""
        node, measures = self.node, [F.count(F.lit(1)).alias("rows")]
        if node.event_time is not None:
            micros = event_time_in_sql(node.event_time)
            measures.append(F.max(F.expr(micros)).alias("event_time"))
            if node.per_partition:
                measures.append(highest_by_key(PARTITION, micros).alias(_PARTITIONS))
        measures += [
            F.bit_or(F.expr(_bits([each.present for each in some]))).alias(f"{_PRESENT}{k}")
            for k, some in enumerate(self.watched)
        ]
        # A row that Spark could not read has only its own column.
        broken = node.factory.column_of_broken_rows
        unless_broken = f"{quoted(broken)} is not null or " if broken else ""
        # Of the rows without a value nothing is counted here: that costs as much as a tenth of Spark's reading.
        measures += [
            F.bit_and(F.expr(_bits([unless_broken + each.whole for each in some]))).alias(f"{_WHOLE}{k}")
            for k, some in enumerate(self.never_null)
        ]
        if self.times:
            early = _bits([f"{quoted(each)} {_EARLY_1970}" for each in self.times])
            measures.append(F.bit_or(F.expr(early)).alias(_EARLY))
        observed = frame.observe(_OBSERVED + node.uid, *measures)
        return observed.drop(PARTITION) if node.per_partition else observed

    def seen(
        self, spark: SparkSession, values: Mapping[str, Any], position: SourceState | None
    ) -> Observation:
        """What the observed values say. Without a position, the batch's end, nothing is said of partitions."""
        partitions = None
        if self.node.per_partition and position is not None:
            names = self.node.factory.partitions(position.lines[0])
            sketch = values.get(_PARTITIONS)
            times = values_by_key(spark, sketch, names) if sketch else {}
            partitions = {names[key]: time for key, time in times.items()}
        early = values.get(_EARLY) or 0
        return Observation(
            int(values["rows"]),
            values.get("event_time"),
            _without(self.watched, values, _PRESENT),
            _without(self.never_null, values, _WHOLE),
            tuple(name for k, name in enumerate(self.times) if early >> k & 1),
            partitions,
        )


@dataclass(frozen=True)
class Observation:
    """What a batch held from one source."""

    rows: int
    event_time: int | None
    absent: tuple[str, ...] = ()
    """Fields that no row has a value in."""
    null: tuple[str, ...] = ()
    """Fields that some row has no value in, though its class says that it always has one."""
    early: tuple[str, ...] = ()
    """Fields with times in early 1970: a sign of numbers in another unit."""
    partitions: Mapping[str, int | None] | None = None
    """Of a source whose watermark is held per partition: the highest event time of each partition that had rows."""


def observations(
    spark: SparkSession,
    sources: Sequence[ObservedSource],
    positions: Mapping[str, SourceState] = MappingProxyType({}),
) -> dict[str, Observation]:
    """Rows and highest event time per source, as the running batch observed them; call after its jobs.

    A transform that reads its frame twice counts its rows twice; the highest event time is right all the same. Failed
    tries of the batch count too: see `less`.
    """
    metrics = observed_metrics(spark)
    return {
        source.node.uid: source.seen(spark, values, positions.get(source.node.uid))
        for source in sources
        if (values := metrics.get(_OBSERVED + source.node.uid)) is not None
    }


def less(observed: Mapping[str, Observation], counted: Mapping[str, Observation]) -> dict[str, Observation]:
    """Spark's observations since `counted`. The highest event time is the same in every try of a batch."""
    return {
        uid: replace(of, rows=of.rows - counted[uid].rows) if uid in counted else of
        for uid, of in observed.items()
    }


def check_times(observed: Mapping[str, Observation]) -> None:
    """Refuses a batch with an event time that no clock shows: the watermark would go there, and every later row would be late."""
    for uid, seen in observed.items():
        if seen.event_time is not None and seen.event_time > _LAST_MOMENT:
            seconds = seen.event_time // 1_000_000
            raise IncompatibleError(
                f"source {uid!r}: a row of the batch has an event time beyond the year 9999, {seconds} seconds since 1970, after which every "
                "row would be late: if those are milliseconds or microseconds, make seconds of them where the time is made, as "
                "timestamp_millis(column) does, or leave such rows out; no row was written"
            )


def early_times(observed: Mapping[str, Observation]) -> Iterator[tuple[str, str]]:
    """Warnings, each with its matter, of times that are hardly any."""
    for uid, seen in observed.items():
        for name in seen.early:
            sentence = (
                f"source {uid!r}: rows have a time of early 1970 in {name!r}, as a small number has, since Spark takes numbers of "
                "JSON for seconds since 1970: if they are numbers, declare the field as int"
            )
            yield f"source {uid}: early times in {name}", sentence


def times_to_come(observed: Mapping[str, Observation], now: int, job: str) -> Iterator[tuple[str, str]]:
    """Warnings, each with its matter, of event times that the clock is far from: the watermark goes there, and what comes until then is late."""
    for uid, seen in observed.items():
        if seen.event_time is not None and seen.event_time > now + _SOON:
            time = datetime.fromtimestamp(seen.event_time // 1_000_000, UTC)
            sentence = (
                f"source {uid!r}: a row has the event time {time:%Y-%m-%d %H:%M}, which is still to come, and the watermark goes by it: rows with "
                "true times will be late; correct the time where it is made, then take the watermark back with "
                f"`stateflow restore {job} FILE --from latest --reset-watermark`"
            )
            yield f"source {uid}: times to come", sentence


def _in_words(some: Sequence[Watched]) -> list[Sequence[Watched]]:
    """The fields in groups, each with as many fields as a number has bits."""
    return [some[k : k + _BITS] for k in range(0, len(some), _BITS)]


def _bits(conditions: Sequence[str]) -> str:
    """SQL for a number with a bit for each condition that holds in a row. A count per column would cost a visible part of a
    batch."""
    return " | ".join(f"cast(({condition}) as bigint) * {1 << k}L" for k, condition in enumerate(conditions))


def _without(groups: Sequence[Sequence[Watched]], values: Mapping[str, Any], kind: str) -> tuple[str, ...]:
    """The fields whose bit is not set in the numbers of this kind."""
    return tuple(
        each.path
        for number, some in enumerate(groups)
        if f"{kind}{number}" in values
        for k, each in enumerate(some)
        if not (values[f"{kind}{number}"] or 0) >> k & 1
    )
