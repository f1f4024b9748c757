"""A small run loop for tests of sources: reads tagged streams and keeps what each record would hold."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stateflow.format.records import FileRef, SourceState
from stateflow.format.source_offsets import SourceLeaves, joined_lines
from stateflow.spark.inputs.seeding import capture, plan_batch, seed
from stateflow.spark.sources.leaves import LeafDescription, check_frame, with_places
from stateflow.spark.sources.positions import Bound, bounded_batches, resolve_initial
from tests.spark import by_hand

Stream = Callable[[SparkSession], DataFrame]
Sources = Mapping[str, Sequence[Stream]]
State = dict[str, SourceState]
Rows = dict[str, list[int]]


@dataclass(frozen=True)
class Batch:
    rows: Rows
    """Ids per source uid, sorted."""
    state: State
    """What the batch's record would say of the sources."""
    location: Path


class Replay:
    """Runs pipelines over `sources`; every run gets a folder of its own, as a real one does."""

    def __init__(self, spark: SparkSession, work: Path) -> None:
        self.spark = spark
        self.work = work
        self.saved: list[str] = []
        self.conf = {"spark.sql.shuffle.partitions": spark.conf.get("spark.sql.shuffle.partitions") or ""}
        (work / "shared").mkdir()

    def save(self, name: str, path: Path) -> FileRef:
        body = path.read_bytes()
        stored = f"{uuid.uuid4()}"
        (self.work / "shared" / stored).write_bytes(body)
        self.saved.append(name)
        return FileRef(name=name, size=len(body), xxh3=xxhash.xxh3_64_hexdigest(body), path=stored)

    def fetch(self, reference: FileRef) -> Path:
        return self.work / "shared" / reference.path

    def opened(self, sources: Sources) -> tuple[DataFrame, list[SourceLeaves], list[LeafDescription]]:
        frame: DataFrame | None = None
        layout: list[SourceLeaves] = []
        for uid, streams in sources.items():
            for stream in streams:
                tagged = stream(self.spark).select(F.lit(uid).alias("uid"), F.col("id").cast("long"))
                frame = tagged if frame is None else frame.union(tagged)
            layout.append(SourceLeaves(uid, len(streams)))
        assert frame is not None
        return frame, layout, with_places(layout, check_frame(frame))

    def genesis(self, sources: Sources, known: State | None = None, until: Bound | None = None) -> State:
        _, _, leaves = self.opened(sources)
        return resolve_initial(self.spark, leaves, known or {}, self.work / str(uuid.uuid4()), until)

    def run(
        self,
        sources: Sources,
        state: State | None = None,
        *,
        until: Bound | Mapping[str, Bound] | None = None,
        during: Callable[[int], object] = lambda number: None,
    ) -> list[Batch]:
        """`during(n)` is called inside the n-th batch of this run, counted from 0."""
        frame, layout, leaves = self.opened(sources)
        location = self.work / str(uuid.uuid4())
        parent = dict(state or {})
        next_batch = seed(location, layout, parent, self.fetch, self.conf, 1_000, str(uuid.uuid4()))
        batches: list[Batch] = []

        def process(df: DataFrame, batch_id: int) -> None:
            rows: Rows = {}
            for row in df.collect():
                rows.setdefault(row.uid, []).append(row.id)
            during(len(batches))
            before = batches[-1].state if batches else parent
            captured = capture(location, batch_id, layout, before, self.save)
            batches.append(Batch({uid: sorted(ids) for uid, ids in rows.items()}, captured, location))

        def query(**trigger: Any) -> None:
            writer = frame.writeStream.foreachBatch(process).trigger(**trigger)
            writer.option("checkpointLocation", location.as_uri()).start().awaitTermination()

        if until is None:
            query(availableNow=True)
        else:
            for lines in bounded_batches(self.spark, location, leaves, joined_lines(layout, parent), until):
                plan_batch(location, next_batch, lines, self.conf, 1_000)
                query(once=True)
                next_batch += 1
        return batches


def rows(batches: Iterable[Batch]) -> list[Rows]:
    return [batch.rows for batch in batches]


def ids(batches: Iterable[Batch], uid: str) -> list[int]:
    """Every id that source `uid` has delivered, in order of batches."""
    return [number for batch in batches for number in batch.rows.get(uid, [])]


def files(path: Path, max_files: int = 1, **options: str) -> Stream:
    return lambda spark: (
        spark.readStream.schema("id long")
        .option("maxFilesPerTrigger", max_files)
        .options(**options)
        .parquet(str(path))
    )


def table(path: Path, max_files: int = 1, **options: str) -> Stream:
    return lambda spark: (
        spark.readStream.format("delta")
        .option("maxFilesPerTrigger", max_files)
        .options(**options)
        .load(str(path))
    )


def append_file(spark: SparkSession, path: Path, first: int, count: int = 3) -> None:
    spark.range(first, first + count).coalesce(1).write.mode("append").parquet(str(path))


def append_version(path: Path, first: int, count: int = 3) -> None:
    by_hand.append(path, [(number,) for number in range(first, first + count)], {"id": "long"})


def overwrite(spark: SparkSession, path: Path, first: int, count: int = 3) -> None:
    """A version whose rows take the place of all before."""
    frame = spark.range(first, first + count).coalesce(1)
    frame.write.format("delta").mode("overwrite").save(str(path))


def numbers(*starts: int, count: int = 3) -> Iterator[int]:
    for start in starts:
        yield from range(start, start + count)
