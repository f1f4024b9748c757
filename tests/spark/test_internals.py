"""What is used without a public name: each name is held against the versions that are installed, each function does what it says."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import shutil
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from scripts import internals_page
from stateflow.errors import IncompatibleError, UnavailableError
from stateflow.internals import DELTA_SEEN, SEEN, Internal, internal, member_of, owner_of
from stateflow.internals import ENTRIES as ENTRIES_OF_ALL
from stateflow.spark.internals import (
    file_systems,
    frames,
    gateway,
    parquet_footers,
    pickling,
    plans,
    queries,
    scheduling,
    scratch_folder,
    sketches,
    sources,
    words,
)
from stateflow.spark.internals.java_names import java_names
from stateflow.spark.session import jars
from stateflow.spark.sources.delta_offset import DeltaOffset
from tests.refusals.refusal import refused
from tests.spark.java_members import Java

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

ENTRIES = [
    entry
    for module, found in internals_page.entries().items()
    for entry in found
    if module.startswith("stateflow.spark.")  # tests/serve/test_internals.py has the others
]
INSTALLED = f"pyspark {metadata.version('pyspark')}"
NAMES = sorted(
    {name for entry in ENTRIES if entry.seen_in == SEEN or INSTALLED in entry.seen_in for name in entry.names}
)
"""All that the version should have, also one that nobody has seen yet."""
KAFKA = "Spark's Kafka source"
"""Its jar is in no session of these tests: tests/spark/test_kafka.py holds its names."""


@pytest.mark.parametrize("name", [name for name in NAMES if owner_of(name) != KAFKA])
def test_the_installed_version_has_the_name(spark: SparkSession, name: str) -> None:
    if owner_of(name) in ("PySpark", "Py4J"):
        assert not _lacks_python(spark, name)
    elif name.startswith("spark."):
        assert spark.conf.get(name)
    else:
        assert not Java(spark).lacks(name)


def _lacks_python(spark: SparkSession, name: str) -> str:
    path, _, parameters = name.partition("(")
    owner, _, member = path.rpartition(".")
    at: Any = _live(spark).get(owner)
    if at is None:
        at = _resolved(owner)
    if not hasattr(at, member):
        return f"{owner} has {sorted(each for each in dir(at) if each.startswith('_'))}"
    if parameters:
        own = list(inspect.signature(getattr(at, member)).parameters)
        wanted = [each for each in parameters.rstrip(")").split(", ") if each]
        return "" if set(wanted) <= set(own) else f"{path} takes {own}"
    return ""


def _resolved(path: str) -> Any:
    for at in range(path.count(".") + 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(path.split(".")[:at]))
        except ImportError:
            continue
        for part in path.split(".")[at:]:
            found = getattr(found, part)
        return found
    raise AssertionError(path)


def _live(spark: SparkSession) -> dict[str, Any]:
    """Of classes whose attributes only their objects have."""
    context: Any = spark.sparkContext
    return {
        "pyspark.sql.DataFrame": spark.range(1),
        "pyspark.sql.SparkSession": spark,
        "pyspark.SparkContext": context,
        "py4j.java_gateway.JavaGateway": context._gateway,
        "py4j.java_gateway.JavaObject": context._jsc,
        "py4j.protocol.Py4JJavaError": _raised(lambda: java_names(spark).java.lang.Class.forName("Nothing")),
        "pyspark.errors.exceptions.captured.CapturedException": _raised(lambda: spark.sql("select")),
    }


def _raised(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError(call)


def test_a_name_that_is_not_there_would_be_noticed(spark: SparkSession) -> None:
    java = Java(spark)
    assert java.lacks("org.apache.spark.sql.classic.Dataset.ofRow(SparkSession, LogicalPlan)")
    assert "ofRows(SparkSession, LogicalPlan)" in java.lacks(
        "org.apache.spark.sql.classic.Dataset.ofRows(LogicalPlan)"
    )
    assert (
        java.lacks("org.apache.spark.sql.Nothing.ofRows()")
        == "there is no class org.apache.spark.sql.Nothing"
    )
    assert _lacks_python(spark, "pyspark.sql.DataFrame._java")
    assert _lacks_python(spark, "pyspark.sql.pandas.types.to_arrow_schema(zone)")


@pytest.mark.parametrize(
    "use",
    [
        lambda names: names.org.apache.spark.sql.classic.Dataset.ofRow(),
        lambda names: names.org.apache.spark.ofRow.Dataset(1),
        lambda names: names.java.util.ArrayList().ofRow(),
        lambda names: names.ofRow.ofRow.Nothing(),
        lambda names: SparkContext.ofRow,  # type: ignore[attr-defined]
    ],
)
def test_a_name_that_is_missing_is_refused_in_a_sentence_with_the_versions_that_have_it(
    spark: SparkSession, use: Callable[[Any], object]
) -> None:
    @internal("org.apache.spark.ofRow(int)")
    def reaches() -> object:
        """For a test."""
        return use(java_names(spark))

    try:
        with pytest.raises(IncompatibleError) as error:
            reaches()
    finally:
        del ENTRIES_OF_ALL[f"{__name__}.{reaches.__qualname__}"]
    assert re.fullmatch(
        r"Spark has no org\.apache\.spark\.ofRow\(int\) in the version that is installed, and \S+reaches needs it: "
        r"install pyspark 4\.0\.5 or pyspark 4\.1\.4 or pyspark 4\.2\.0, in which it was seen",
        str(error.value),
    )


AS_PY4J_SAYS = """An error occurred while calling o57.{0}. Trace:
py4j.Py4JException: Method {0}([class java.lang.String]) does not exist
\tat java.base/py4j.reflection.ReflectionEngine.getMethod(ReflectionEngine.java:318)"""


def test_each_missing_method_is_called_by_its_own_name() -> None:
    """Error texts of Java have other words of which one may be a name of the entry, such as `get`."""
    tried = 0
    for entry in ENTRIES_OF_ALL.values():
        members = [
            member_of(name)
            for name in entry.names
            if name.startswith(("org.", "java.", "io.")) and "(" in name
        ]
        for member in members:
            named = entry.missing(Py4JError(AS_PY4J_SAYS.format(member)))
            assert member_of(named) == member
            tried += 1
        assert not entry.missing(Py4JError(AS_PY4J_SAYS.format("noSuchName")))
    assert tried > 200


def test_a_module_that_has_moved_is_a_missing_name() -> None:
    entry = Internal("f", "", ("pyspark.sql.moved.Thing",), ("x",), "")
    assert (
        entry.missing(ModuleNotFoundError("No module named 'pyspark.sql.moved'")) == "pyspark.sql.moved.Thing"
    )
    assert not entry.missing(ModuleNotFoundError("No module named 'pyspark_of_mine'"))


def test_who_lacks_a_name_of_delta_is_told_delta_s_version() -> None:
    name = "org.apache.spark.sql.delta.OptimisticTransaction.readWholeTable()"
    assert "install delta-spark 4.4.0, in which" in Internal(
        "f", "", (name,), ("pyspark 4.2.0",), ""
    ).refusal(name)
    locked = Path(jars.__file__).with_name("jars.lock").read_text()
    assert set(re.findall(r"delta-spark_[\d.]+_[\d.]+:([\d.]+)", locked)) == {DELTA_SEEN.split()[1]}


def test_all_that_is_understood_by_its_words_is_held_by_a_test() -> None:
    files = [*Path("stateflow").rglob("*.py")]
    used = "\n".join(file.read_text() for file in files if file.name != "words.py")
    for each in words.all_words():
        [name] = [name for name, value in vars(words).items() if value is each]
        assert re.search(rf"\b{name}\b", used), f"nobody uses {name}"
        assert Path(each.held_by).is_file()


def test_an_error_of_java_is_no_missing_name(spark: SparkSession) -> None:
    with pytest.raises(Py4JJavaError) as error:
        java_names(spark).java.lang.Class.forName("does not exist forName")
    entry = Internal("f", "", ("java.lang.Class.forName(String)",), ("x",), "")
    assert not entry.missing(error.value)
    assert not entry.missing(IncompatibleError("forName does not exist"))


def test_a_class_that_has_moved_takes_the_other_way_and_a_line_of_the_log(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    @internal(
        "org.apache.spark.sql.moved.LogicalRDD$.fromDataset(RDD)",
        where_missing="it is kept in memory",
        otherwise=lambda: "another way",
    )
    def reaches() -> object:
        """For a test."""
        return getattr(java_names(spark).org.apache.spark.sql.moved, "LogicalRDD$").fromDataset()

    caplog.set_level("INFO", "stateflow.internals")
    try:
        assert [reaches(), reaches()] == ["another way"] * 2
    finally:
        del ENTRIES_OF_ALL[f"{__name__}.{reaches.__qualname__}"]
    assert caplog.messages == [
        "Spark has no org.apache.spark.sql.moved.LogicalRDD$.fromDataset(RDD) in the version that is installed: it is kept in memory"
    ]


def test_a_plan_is_walked_from_the_top(spark: SparkSession) -> None:
    left, right = spark.range(3), spark.range(5).where("id > 1")
    kinds = [
        node.kind for node in plans.plan_of(left.join(right, left["id"] == right["id"], "left_semi")).walk()
    ]
    assert kinds == ["Join", "Range", "Filter", "Range"]
    (join, *_) = plans.plan_of(left.join(right, left["id"] == right["id"], "left_semi")).walk()
    assert join.join == "LEFT SEMI"
    assert not join.streams
    assert join.children[0] == plans.plan_of(left)
    assert join.children[0] != plans.plan_of(right)


def test_a_plan_tells_whether_it_calls_python(spark: SparkSession) -> None:
    assert not plans.calls_python(spark.range(3))
    assert plans.calls_python(spark.range(3).select(F.udf(str, "string")("id")))
    assert plans.calls_python(spark.range(3).select(F.explode(F.array("id"))))


def test_a_batch_that_is_no_union_has_no_parts(spark: SparkSession) -> None:
    assert plans.parts_of_union(spark.range(3).union(spark.range(2))) == []


def test_types_go_to_arrow_and_back(spark: SparkSession) -> None:
    schema = spark.sql("select 1 as a, timestamp'2024-05-01' as b, 'x' as c").schema
    arrow = frames.arrow_schema(schema)
    assert arrow.field("b").type == pa.timestamp("us", tz="UTC")
    assert frames.spark_schema(arrow).simpleString() == schema.simpleString()


def test_a_cloned_session_has_settings_of_its_own_from_here_on(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    clone = frames.cloned_session(spark)
    assert clone.conf.get("spark.sql.shuffle.partitions") == before
    clone.conf.set("spark.sql.shuffle.partitions", "77")
    assert spark.conf.get("spark.sql.shuffle.partitions") == before


def test_the_limits_of_an_arrow_batch_are_numbers(spark: SparkSession) -> None:
    session = frames.cloned_session(spark)
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "5")
    session.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", "3m")
    assert frames.arrow_limits(session) == (5, 3 << 20)


def test_files_are_found_by_hadoop(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in of" / "a.json").parent.mkdir()
    (tmp_path / "in of" / "a.json").write_text('{"a": 1}')
    there, gone = f"file:{tmp_path}/in of", f"file:{tmp_path}/gone"
    assert file_systems.missing(spark, [there, gone]) == [gone]
    assert file_systems.modified_at(spark, [there, gone]) == {
        there: (tmp_path / "in of").stat().st_mtime_ns // 1_000_000,
        gone: None,
    }
    times = file_systems.times_of_files(spark.read.schema("a long").json(there))
    (url,) = times
    assert times == {url: int((tmp_path / "in of" / "a.json").stat().st_mtime * 1000)}
    assert file_systems.path_of_url(spark, url) == f"file:{tmp_path}/in of/a.json"
    folder = file_systems.Folder(spark, there)
    assert folder.files() == {"a.json"}
    folder.delete()
    assert folder.files() == set()


def test_outside_of_a_batch_nothing_is_observed(spark: SparkSession) -> None:
    assert queries.observed_metrics(spark) == {}


def test_the_highest_value_of_each_key_is_measured(spark: SparkSession) -> None:
    if not sketches.can_measure_highest(spark):
        pytest.skip("Spark has had the aggregate since 4.2")
    far, beyond = 2**53 - 1, 253_402_300_799_999_999
    rows = [(0, 5), (0, 7), (0, None), (1, None), (2**32 + 3, -9), (2, far), (3, beyond)]
    frame = spark.createDataFrame(rows, "key long, value long").repartition(3)
    sketch = frame.agg(sketches.highest_by_key("key", "value")).collect()[0][0]
    keys = [0, 1, 2, 3, 4, 2**32 + 3]
    found = sketches.values_by_key(spark, bytes(sketch), keys)
    rounded = found.pop(3)
    assert found == {0: 7, 1: None, 2: far, 2**32 + 3: -9}
    assert rounded is not None
    assert beyond - 64 <= rounded <= beyond
    with pytest.raises(IncompatibleError, match="a key that its position does not have"):
        sketches.values_by_key(spark, bytes(sketch), keys[1:])
    many = spark.range(5000).agg(sketches.highest_by_key("id", "id")).collect()[0][0]
    assert sketches.values_by_key(spark, bytes(many), range(5000)) == {key: key for key in range(5000)}
    too_many = spark.range(140_000).agg(sketches.highest_by_key("id", "id")).collect()[0][0]
    with refused(IncompatibleError, "rows of more than 65536 keys"):
        sketches.values_by_key(spark, bytes(too_many), [])


def test_the_jvm_is_a_process_with_classes(spark: SparkSession) -> None:
    process = gateway.process_of_jvm()
    assert process is not None
    assert process.poll() is None
    assert gateway.context_runs()
    assert not gateway.started_by_spark_submit()
    assert gateway.has_class(spark, "org.apache.spark.sql.delta.DeltaLog")
    assert not gateway.has_class(spark, "org.apache.spark.sql.delta.Nothing")


def test_java_is_compiled_and_made(spark: SparkSession) -> None:
    source = 'public class Told { private final Object of; public Told(Object of) { this.of = of; } public String toString() { return "of " + of; } }'
    assert str(gateway.made(spark, source, "Told", "it").toString()) == "of it"


def test_failures_tell_javas_classes_and_words(spark: SparkSession) -> None:
    with pytest.raises(Py4JJavaError) as java:
        java_names(spark).java.lang.Class.forName("Nothing")
    assert "java.lang.ClassNotFoundException" in gateway.failure_classes(java.value)
    assert "ClassNotFoundException: Nothing" in gateway.failure_text(java.value)
    with pytest.raises(PySparkException) as translated:
        spark.sql("select")
    assert "org.apache.spark.sql.catalyst.parser.ParseException" in gateway.failure_classes(translated.value)
    assert not gateway.lost_connection(java.value)
    assert gateway.lost_connection(ConnectionResetError())


def test_an_executor_is_known_by_host_and_id(spark: SparkSession) -> None:
    # In local mode the only one is the driver, which is none to choose.
    assert scheduling.executor_cores(spark) == {}
    assert scheduling.executors_of(spark, [10**9]) == ("",)
    assert isinstance(scheduling.executor_ids(spark), str)


def test_partitions_are_pinned_and_their_rows_stay(spark: SparkSession) -> None:
    asked: list[int] = []

    def placed(count: int) -> list[str]:
        asked.append(count)
        return ["executor_host_1"] * count

    frame = spark.range(0, 100, 1, 4)
    assert sorted(row.id for row in scheduling.pinned(frame, placed).collect()) == list(range(100))
    assert asked == [4]
    assert scheduling.pinned(frame, lambda count: [""] * count) is frame


def test_a_footer_tells_the_types_of_a_file(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"at": pa.array([1], pa.timestamp("ns", tz="UTC"))}), tmp_path / "a.parquet")
    session = frames.cloned_session(spark)
    session.conf.set("spark.sql.legacy.parquet.nanosAsLong", "true")
    read, meant = parquet_footers.types_of_footer(session, (tmp_path / "a.parquet").as_uri())
    assert (read.simpleString(), meant.simpleString()) == ("struct<at:bigint>", "struct<at:timestamp>")


def test_a_class_is_known_again() -> None:
    kind = type("Kind", (), {})
    number = pickling.tracking_number(kind)
    assert pickling.tracking_number(kind) == number
    assert pickling.tracked_as(number, type("Kind", (), {})) is kind
    assert pickling.goes_by_name(Path)
    assert not pickling.goes_by_name(kind)


def test_streams_are_described_and_opened(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.format("delta").save(str(tmp_path / "table"))
    frame = spark.readStream.format("delta").option("startingVersion", "0").load(str(tmp_path / "table"))
    (relation,) = filter(None, map(sources.relation_of, plans.plan_of(frame).walk()))
    assert (relation.name, relation.reads_micro_batches, relation.table) == ("delta", False, "")
    assert relation.options["startingversion"] == "0"
    delta = relation.delta(spark, f"file:{tmp_path}/delta")
    assert (delta.starting_version(), delta.earliest_commit(), delta.earliest_snapshot()) == (0, 0, 0)
    assert not delta.reads_changes()
    assert delta.log.version() == 0
    assert (
        delta.version_at(datetime(2000, 1, 1, tzinfo=UTC)),
        delta.version_at(datetime(2999, 1, 1, tzinfo=UTC)),
    ) == (
        None,
        0,
    )
    start = DeltaOffset(delta.table_id, 0).line()
    assert DeltaOffset.parse(delta.planned_end(start)).position > DeltaOffset.parse(start).position
    assert len(delta.files_of_next_batch(start)) == len(list((tmp_path / "table").glob("*.parquet")))
    with pytest.raises(sources.PlanRefused):
        delta.planned_end(DeltaOffset("another", 0).line())
    shutil.rmtree(tmp_path / "table" / "_delta_log")
    with refused(UnavailableError, str(tmp_path / "table"), "2999", "give a version"):
        delta.version_at(datetime(2999, 1, 1, tzinfo=UTC))
    delta.stop()


def test_a_source_of_files_ends_at_a_bound(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for hour in (1, 2):
        file = tmp_path / "in" / f"{hour}.json"
        file.write_text('{"a": 1}')
        os.utime(file, (hour * 3600, hour * 3600))
    frame = spark.readStream.schema("a long").json(str(tmp_path / "in"))
    (relation,) = filter(None, map(sources.relation_of, plans.plan_of(frame).walk()))
    assert relation.name.startswith("FileSource[")
    source = relation.files(spark, f"file:{tmp_path}/log")
    source.end_at(datetime.fromtimestamp(5400, UTC))
    assert source.next_end() == (0, '{"logOffset":0}')
    (entry,) = scratch_folder.files_between(tmp_path / "log", -1, 0)
    assert entry.path.endswith("/in/1.json")


def test_a_stream_of_the_newer_kind_tells_its_beginning(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "5").load()
    (relation,) = filter(None, map(sources.relation_of, plans.plan_of(frame).walk()))
    assert relation.reads_micro_batches
    stream = relation.stream(spark, f"file:{tmp_path}/rate")
    begins = stream.initial()
    assert json.loads(stream.planned_end(begins))["offset"] == json.loads(begins)["offset"] + 5
    stream.stop()
