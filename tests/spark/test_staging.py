"""Staged output: exactly the listed files, each checked, read back as the rows that went in."""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from stateflow.errors import CorruptError
from stateflow.format.layout import origin_of
from stateflow.format.records import FileRef
from stateflow.spark.internals.frames import arrow_schema
from stateflow.spark.sinks import SinkSlot
from stateflow.spark.sinks.staging import ScratchTarget, StagedWriter, Stager, StoreTarget
from stateflow.storage.file_urls import file_url
from stateflow.storage.local import LocalStore
from stateflow.storage.roots import open_store
from stateflow.storage.store import Store
from tests.refusals.refusal import refused

AT = SinkSlot("uuid", "orders", "totals", 42, 7)
SCHEMA = (
    "n long, at timestamp, day date, price decimal(10,2), tags array<string>, by map<string,int>, "
    "in struct<x:int>"
)
ROW = (
    1,
    datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC),
    date(2026, 3, 4),
    Decimal("1.25"),
    ["a", None],
    {"k": 2},
    (3,),
)
EMPTY = (None,) * 7


class Remote:
    """A store that hides where its files are, as an object store does."""

    def __init__(self, root: str) -> None:
        self._inner = LocalStore(Path(root), fsync=False)
        self.url = "s3://bucket/root"
        self.local_root = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def remote(root: str) -> Store:
    return Remote(root)  # type: ignore[return-value]


@pytest.fixture(params=["local", "remote"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stager:
    opener = partial(open_store if request.param == "local" else remote, str(tmp_path))
    return Stager(opener, lambda: uuid.uuid4().hex)


def test_rows_of_every_type_come_back(spark: SparkSession, stage: Stager) -> None:
    frame = spark.createDataFrame([ROW, EMPTY], SCHEMA)
    staged = stage.write(frame, AT)
    back = stage.read(spark, staged.files, frame.schema)
    assert staged.rows == 2
    assert back.schema.simpleString() == frame.schema.simpleString()
    assert sorted(map(repr, back.collect())) == sorted(map(repr, frame.collect()))


def test_files_carry_epoch_and_slot_and_only_listed_ones_are_read(
    spark: SparkSession, stage: Stager, tmp_path: Path
) -> None:
    frame = spark.range(10, numPartitions=2)
    first, second = stage.write(frame, AT).files, stage.write(frame, AT).files
    for ref in first:
        assert ref.sha256 == hashlib.sha256((tmp_path / ref.path).read_bytes()).digest()
    assert {origin_of(ref.path) for ref in first} == {(7, 42)}
    assert len(list((tmp_path / "orders" / "staged").iterdir())) == 4
    assert sorted(row[0] for row in stage.read(spark, second, frame.schema).collect()) == list(range(10))


def test_partitions_without_rows_make_no_files(spark: SparkSession, stage: Stager) -> None:
    frame = spark.range(8, numPartitions=4).where("id = 5")
    files = stage.write(frame, AT).files
    assert len(files) == 1
    assert [row[0] for row in stage.read(spark, files, frame.schema).collect()] == [5]
    assert stage.write(frame.where("id < 0"), AT).files == ()
    assert stage.read(spark, (), frame.schema).collect() == []


def test_the_tasks_count_the_nulls_of_each_column(spark: SparkSession, stage: Stager) -> None:
    frame = spark.range(10, numPartitions=3).selectExpr(
        "id", "IF(id % 2 = 0, id, NULL) AS even", "CAST(NULL AS STRING) AS no"
    )
    assert stage.write(frame, AT).nulls == {"id": 0, "even": 5, "no": 10}
    assert stage.write(frame.where("id < 0"), AT).nulls == {"id": 0, "even": 0, "no": 0}


def test_the_tasks_tell_the_bounds_of_columns_that_are_asked_for(spark: SparkSession, stage: Stager) -> None:
    frame = spark.range(10, numPartitions=3).selectExpr(
        "id",
        "IF(id = 4, NULL, CAST(id AS string)) AS Name",
        "CAST(id AS double) AS x",
        "CAST(NULL AS int) AS no",
    )
    assert stage.write(frame, AT, ["ID", "name", "x", "no"]).bounds == {"ID": (0, 9), "name": ("0", "9")}
    assert stage.write(frame, AT).bounds == {}
    assert stage.write(frame.where("id < 0"), AT, ["id"]).bounds == {}
    day = spark.sql("SELECT DATE'1970-01-03' AS day, TIMESTAMP_NTZ'1969-12-31 23:59:59.999999' AS at")
    assert stage.write(day, AT, ["day", "at"]).bounds == {"day": (2, 2), "at": (-1, -1)}


def test_an_attempt_that_fails_late_adds_no_rows(spark: SparkSession, stage: Stager, tmp_path: Path) -> None:
    failed = str(tmp_path / "failed")

    def once(batches):  # type: ignore[no-untyped-def]
        yield from batches
        if not Path(failed).exists():
            Path(failed).write_text("x")
            raise RuntimeError("a task that is lost after its rows went out")

    frame = spark.range(4, numPartitions=1).mapInArrow(once, "id long")
    # Where tasks are retried, one job has both attempts.
    with contextlib.suppress(PythonException):
        stage.write(frame, AT)
    staged = stage.write(frame, AT)
    assert Path(failed).exists()
    assert staged.rows == 4
    assert sorted(row[0] for row in stage.read(spark, staged.files, frame.schema).collect()) == [0, 1, 2, 3]


def test_a_damaged_file_is_named(spark: SparkSession, stage: Stager, tmp_path: Path) -> None:
    (ref,) = stage.write(spark.range(3, numPartitions=1), AT).files
    file = tmp_path / ref.path
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(Exception, match=rf"(?s){ref.path}.*bytes instead of") as found:
        stage.read(spark, [ref], spark.range(0).schema).collect()
    assert stage.store.local_root is None or isinstance(found.value, CorruptError)


def test_a_file_that_is_not_there_is_named_as_a_damaged_one(
    spark: SparkSession, stage: Stager, tmp_path: Path
) -> None:
    (ref,) = stage.write(spark.range(3, numPartitions=1), AT).files
    (tmp_path / ref.path).unlink()
    with refused(CorruptError, ref.path, "stateflow verify"):
        list(stage.batches([ref]))
    with refused(
        (CorruptError, PythonException),
        ref.path,
        "CorruptError" if stage.store.local_root is None else "stateflow verify",
    ):
        stage.read(spark, [ref], spark.range(0).schema).collect()


def test_a_scratch_file_that_is_not_there_is_named_the_same(tmp_path: Path) -> None:
    stage = Stager(partial(open_store, str(tmp_path)), lambda: uuid.uuid4().hex)
    ref = FileRef("1", 1, "x", "1.parquet", base=file_url(tmp_path))
    with refused(CorruptError, f"{tmp_path}/1.parquet", "stateflow verify"):
        list(stage.batches([ref]))


def test_a_worker_writes_scratch_files_that_are_read_back(spark: SparkSession, tmp_path: Path) -> None:
    schema = StructType.fromJson(spark.range(0).schema.jsonValue())
    target = ScratchTarget(str(tmp_path / "my scratch%20#1"), "op-0-1")
    writer = StagedWriter(arrow_schema(schema), target)
    for start in (0, 2):
        writer.write(pa.record_batch([pa.array([start, start + 1], pa.int64())], schema=arrow_schema(schema)))
    ref = writer.close()
    assert ref is not None
    assert writer.rows == 4
    stage = Stager(partial(open_store, str(tmp_path)), lambda: "x")
    assert sorted(row[0] for row in stage.read(spark, [ref], schema).collect()) == [0, 1, 2, 3]


def test_a_worker_keeps_files_that_a_record_names(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64())])
    opener = partial(open_store, str(tmp_path))
    writer = StagedWriter(schema, StoreTarget(opener, "orders/staged/e7-c42-a.parquet"))
    writer.write(pa.record_batch([pa.array([1, 2])], schema=schema))
    ref = writer.close()
    assert ref is not None
    assert (ref.path, ref.base) == ("orders/staged/e7-c42-a.parquet", "")
    assert (tmp_path / ref.path).stat().st_size == ref.size
    assert ref.sha256 == hashlib.sha256((tmp_path / ref.path).read_bytes()).digest()


def test_a_writer_without_rows_makes_no_file(tmp_path: Path) -> None:
    writer = StagedWriter(pa.schema([("n", pa.int64())]), ScratchTarget(str(tmp_path), "a"))
    writer.write(pa.record_batch([pa.array([], pa.int64())], names=["n"]))
    assert writer.close() is None
    assert list(tmp_path.iterdir()) == []


def test_a_staged_file_behind_a_link_is_refused(spark: SparkSession, stage: Stager, tmp_path: Path) -> None:
    (ref,) = stage.write(spark.range(3, numPartitions=1), AT).files
    file = tmp_path / ref.path
    file.symlink_to(file.rename(tmp_path / "theirs.parquet"))
    with pytest.raises(Exception, match=rf"(?s){ref.path} is a symbolic link"):
        stage.read(spark, [ref], spark.range(0).schema).collect()
