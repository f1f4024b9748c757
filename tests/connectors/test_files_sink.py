"""The sink into folders of files: what readers find, and what it refuses. The promises of all sinks are the kit's."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv_reader
import pyarrow.parquet as parquet
import pytest

import stateflow as sf
from stateflow.config.options import load
from stateflow.connectors.files.manifests import Manifests
from stateflow.errors import CorruptError, DisagreementError, FencedError, IncompatibleError, UsageError
from stateflow.jobs.job import Job
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark.internals.frames import arrow_schema
from stateflow.spark.runner import RunRequest
from stateflow.spark.runner import run as sf_run
from stateflow.storage.roots import open_store
from stateflow.testing import SinkConformance
from stateflow.testing.conformance import ODD_VALUES
from stateflow.testing.sink_log import SinkLog, make_sink
from tests.connectors.promises import only
from tests.refusals.refusal import refused
from tests.servers import ObjectServer
from tests.test_documents import ran

pytestmark = pytest.mark.usefixtures("spark")


def latest(folder: Path) -> list[Path]:
    """The files that count, as the page on sinks shows it."""
    path = folder / "_latest.json"
    return [folder / file["path"] for file in json.loads(path.read_text())["files"]] if path.exists() else []


class TestParquet(SinkConformance):
    failure = OSError
    makes_target = False

    def target(self, folder: Path, name: str) -> Any:
        return sf.files(str(folder / name), "parquet")

    def rows(self, target: Any) -> Iterable[Mapping[str, Any]]:
        found = latest(Path(target.path))
        # Each file has its columns in the order of its run: readers find them by their names.
        read = map(parquet.read_table, found)
        return pa.concat_tables(read, promote_options="default").to_pylist() if found else []


class TestJson(SinkConformance):
    def target(self, folder: Path, name: str) -> Any:
        return sf.files(str(folder / name), "json")

    def rows(self, target: Any) -> Iterable[Mapping[str, Any]]:
        found = latest(Path(target.path))
        if not found:
            return []
        columns = ", ".join(
            f"`{name}` {kind}"
            for name, kind in json.loads((Path(target.path) / "_latest.json").read_text())["columns"]
        )
        read = self.spark().read.schema(columns).json(list(map(str, found)))
        return read.toArrow().to_pylist()


_OF_JSON = {
    "test_columns_that_do_not_fit_are_refused_before_the_decision",
    "test_every_value_comes_back_as_it_was",
    "test_rows_are_seen_when_their_record_is_committed_and_not_before",
}
"""What is staged are lines here. From the bytes of a file on it is the code of the other formats."""
only(TestJson, _OF_JSON)


class TestCsv(SinkConformance):
    types = tuple(each for each in ODD_VALUES if each != "binary" and "<" not in each)

    def target(self, folder: Path, name: str) -> Any:
        return sf.files(str(folder / name), "csv")

    def rows(self, target: Any) -> Iterable[Mapping[str, Any]]:
        found = latest(Path(target.path))
        if not found:
            return []
        columns = json.loads((Path(target.path) / "_latest.json").read_text())["columns"]
        schema = (
            self.spark().createDataFrame([], ", ".join(f"{name} {kind}" for name, kind in columns)).schema
        )
        # Spark's reader takes an empty text for none, whatever it is told.
        reading = csv_reader.ConvertOptions(
            column_types=arrow_schema(schema), strings_can_be_null=True, quoted_strings_can_be_null=False
        )
        lines = csv_reader.ParseOptions(newlines_in_values=True)
        read = (csv_reader.read_csv(file, parse_options=lines, convert_options=reading) for file in found)
        return pa.concat_tables(read).to_pylist()


for name in {name for name in dir(SinkConformance) if name.startswith("test_")}:
    if name != "test_every_value_comes_back_as_it_was":
        # As for JSON.
        setattr(TestCsv, name, None)


class TestBucket(SinkConformance):
    """Its credentials are those of the connection alone."""

    secrets = ("test-secret-value",)

    @pytest.fixture(autouse=True)
    def _server(self, s3: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.s3, self.urls = s3, dict[str, str]()
        monkeypatch.setenv("TEST_LAKE", json.dumps(s3.options))

    def target(self, folder: Path, name: str) -> Any:
        url = self.urls.get(name) or self.urls.setdefault(name, self.s3.new_root(name))
        return sf.files(url, "parquet", connection="env:TEST_LAKE")

    def rows(self, target: Any) -> Iterable[Mapping[str, Any]]:
        store = open_store(target.path, self.s3.options)
        files = [each["path"] for each in Manifests(store).newest().document()["files"]]
        found = [parquet.read_table(io.BytesIO(store.read(file))) for file in files]
        return pa.concat_tables(found).to_pylist() if found else []


_OF_BUCKETS = {
    "test_a_record_that_is_committed_again_is_in_once",
    "test_no_record_has_a_secret",
    "test_the_output_goes_back_to_an_older_slot_or_says_that_it_cannot",
    "test_the_target_says_which_slot_it_has",
    "test_the_target_says_whose_rows_it_has",
}
only(TestBucket, _OF_BUCKETS)


@dataclass
class Order:
    id: int
    note: str | None
    at: datetime


ROWS = [
    {"id": 1, "note": 'says "a, b"\nand more', "at": "2025-03-01T12:30:05.123456Z"},
    {"id": 2, "note": "", "at": "2025-03-01T12:30:06Z"},
    {"id": 3, "note": None, "at": "1969-12-31T23:59:59.999999Z"},
]


class Shop:
    """A pipeline from a folder of JSON into one of files."""

    def __init__(self, folder: Path, run: Any, format: str) -> None:
        self.input, self.output, self.run = folder / "input", folder / "output", run
        self.input.mkdir()

        @sf.pipeline("shop")
        def shop(flow: sf.Flow) -> None:
            orders = flow.source("orders", sf.files(str(self.input), "json"), Order)
            orders.append("output", sf.files(str(self.output), format))

        self.pipeline = shop

    def add(self, name: str, rows: list[dict[str, Any]]) -> None:
        (self.input / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def shop(tmp_path: Path) -> Any:
    def made(format: str) -> Shop:
        def run(pipeline: Any, **options: Any) -> Any:
            code = {"checkpoint_dir": str(tmp_path / "root"), "cache_dir": str(tmp_path / "cache"), **options}
            return sf_run(RunRequest(pipeline, load(code=code, env={}, folder=tmp_path)))

        return Shop(tmp_path, run, format)

    return made


def test_csv_is_as_the_standard_says_and_tells_an_empty_text_from_none(shop: Any) -> None:
    made = shop("csv")
    made.add("1", ROWS)
    made.run(made.pipeline)
    (file,) = latest(made.output)
    text = file.read_text()
    with file.open(newline="") as lines:
        assert [row["note"] for row in csv.DictReader(lines)] == ['says "a, b"\nand more', "", ""]
    assert text.splitlines()[0] == '"id","note","at"'
    assert '\n2,"",' in text
    assert "\n3,," in text
    assert "2025-03-01 12:30:05.123456Z" in text


def test_another_pipeline_reads_numbers_of_csv_that_are_none(spark: Any, tmp_path: Path) -> None:
    values = [1.5, math.nan, math.inf, -math.inf, 0.1, None]
    log = SinkLog(spark, tmp_path / "checkpoints")
    rows = spark.createDataFrame([(each, each) for each in values], "d double, f float").coalesce(1)
    sink = make_sink("totals", "append", sf.files(str(tmp_path / "out"), "csv"))
    sink.open(spark, rows.schema)
    log.deliver(sink, rows)
    source = sf.files(str(tmp_path / "out"), "csv").declared("numbers", row_type("d double, f float"))
    assert [str(row) for row in source.there(spark).collect()] == [str(row) for row in rows.collect()]


def test_columns_of_csv_stay_in_the_order_of_the_first_file(spark: Any, tmp_path: Path) -> None:
    log = SinkLog(spark, tmp_path / "checkpoints")
    target = sf.files(str(tmp_path / "out"), "csv")
    for order in (["qty", "price"], ["price", "qty"]):
        rows = spark.createDataFrame([(1, 100)], "qty long, price long").select(*order).coalesce(1)
        sink = make_sink("totals", "append", target)
        sink.open(spark, rows.schema)
        log.deliver(sink, rows)
    assert {path.read_text() for path in latest(tmp_path / "out")} == {'"qty","price"\n1,100\n'}
    said = json.loads((tmp_path / "out" / "_latest.json").read_text())["columns"]
    assert said == [["qty", "bigint"], ["price", "bigint"]]


@pytest.mark.parametrize("format", ["csv", "json"])
def test_of_two_jobs_with_other_columns_one_begins_a_folder(spark: Any, tmp_path: Path, format: str) -> None:
    folder = tmp_path / "out"
    logs = [SinkLog(spark, tmp_path / name, job=name * 32, name=name) for name in "ab"]
    frames = [
        spark.createDataFrame([(1, "x")], "id long, v string").coalesce(1),
        spark.createDataFrame([(2.5,)], "amount double").coalesce(1),
    ]
    sinks = [make_sink("totals", "append", sf.files(str(folder), format)) for _ in logs]
    first, second = (log.prepare(*each) for log, *each in zip(logs, sinks, frames, strict=True))
    assert logs[0].commit(first) == "committed"
    before = (folder / "_latest.json").read_text()
    other = ("'amount' is double and there unknown", "'v' is not put out and there string")
    with refused(IncompatibleError, str(folder), *other, "new folder"):
        sinks[1].check(second, logs[1].at(), logs[1].stage)
    with refused(DisagreementError, "is decided", str(folder), *other, "stateflow abandon b 1"):
        logs[1].commit(second)
    assert (folder / "_latest.json").read_text() == before
    folder.rename(tmp_path / "elsewhere")
    assert logs[1].commit(second) == "committed"
    assert len(latest(folder)) == 1


def test_a_folder_has_files_of_one_format(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    rows = spark.createDataFrame([(1,)], "id long").coalesce(1)
    one, two = (SinkLog(spark, tmp_path / name, job=name * 32, name=name) for name in "ab")
    sinks = [make_sink("totals", "append", sf.files(str(folder), format)) for format in ("parquet", "csv")]
    late = two.prepare(sinks[1], rows)
    assert one.commit(one.prepare(sinks[0], rows)) == "committed"
    named = ("part-000000000001-", ".parquet", str(folder))
    with refused(IncompatibleError, *named, "csv", "new folder"):
        two.prepare(sinks[1], rows)
    with refused(DisagreementError, "is decided", *named, "stateflow abandon b "):
        two.commit(late)
    assert [path.suffix for path in latest(folder)] == [".parquet"]


def test_a_run_that_was_replaced_brings_no_file_back(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    rows = spark.createDataFrame([(1,)], "id long").coalesce(1)
    log = SinkLog(spark, tmp_path / "a")
    prepared = log.prepare(make_sink("totals", "append", sf.files(str(folder), "json")), rows)

    def fenced() -> None:
        raise FencedError("a newer run has the job")

    log.still_owner = fenced
    with pytest.raises(FencedError):
        log.commit(prepared)
    assert not list(folder.glob("part-*"))


def test_of_two_jobs_that_begin_a_folder_of_csv_at_once_one_gives_the_order(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    logs = [SinkLog(spark, tmp_path / name, job=name * 32, name=name) for name in "ab"]
    rows = spark.createDataFrame([(1, 100)], "qty long, price long").coalesce(1)
    frames = [rows, rows.select("price", "qty").coalesce(1)]
    sinks = [make_sink("totals", "append", sf.files(str(folder), "csv")) for _ in logs]
    first, second = (log.prepare(*each) for log, *each in zip(logs, sinks, frames, strict=True))
    add, begun = Manifests.add, list[str]()

    def too_late(log: Manifests, manifest: Mapping[str, Any]) -> bool:
        if not begun:
            begun.append("first")
            logs[0].commit(first)
        return add(log, manifest)

    monkeypatch.setattr(Manifests, "add", too_late)
    assert logs[1].commit(second) == "committed"
    assert [path.read_text() for path in latest(folder)] == ['"qty","price"\n1,100\n'] * 2


@pytest.mark.parametrize("delivered", [False, True], ids=["lost", "delivered all the same"])
def test_the_next_commit_deletes_the_files_of_an_abandoned_batch(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delivered: bool
) -> None:
    folder = tmp_path / "out"
    rows = spark.createDataFrame([(1,)], "id long").coalesce(1)
    other, log = (SinkLog(spark, tmp_path / name, job=name * 32, name=name) for name in "ab")
    sink = make_sink("totals", "append", sf.files(str(folder), "json"))
    waiting, lost = other.prepare(sink, rows), log.prepare(sink, rows)

    def killed(log: Manifests, manifest: Mapping[str, Any]) -> bool:
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(Manifests, "add", killed)
        for each, prepared in ((other, waiting), (log, lost)):
            with pytest.raises(OSError, match="killed"):
                each.commit(prepared)
    assert len(list(folder.glob("part-*"))) == 2
    if delivered:
        log.commit(lost)
    log.late = (1,)
    next_one = log.prepare(sink, rows)
    assert log.commit(next_one) == "committed"
    assert len(list(folder.glob("part-*"))) == (3 if delivered else 2)
    assert other.commit(waiting) == "committed"
    assert set(folder.glob("part-*")) == set(latest(folder))
    assert len(latest(folder)) == (3 if delivered else 2)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["parquet", "json"])
def test_another_pipeline_reads_the_folder_and_gets_each_row_once(
    format: str, shop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = shop(format)
    made.add("1", ROWS[:2])
    made.run(made.pipeline)
    copied = tmp_path / "copied"

    @sf.pipeline("reader")
    def reader(flow: sf.Flow) -> None:
        flow.source("orders", sf.files(str(made.output), format), Order).append(
            "copied", sf.files(str(copied), "parquet")
        )

    made.run(reader)
    made.add("2", ROWS[2:])
    made.run(made.pipeline)
    made.run(reader)
    made.run(reader)
    rows = pa.concat_tables(map(parquet.read_table, latest(copied))).sort_by("id").to_pylist()
    assert rows == [{**row, "at": datetime.fromisoformat(row["at"])} for row in ROWS]
    assert ran("docs/sinks.md", monkeypatch).files_of(str(made.output)) == latest(made.output)
    # Nobody waits for a file that no manifest names.
    names = {path.name for path in made.output.iterdir() if path.is_file()} - {"_latest.json"}
    assert names == {path.name for path in latest(made.output)}


def test_a_restore_takes_files_back(shop: Any, tmp_path: Path) -> None:
    made = shop("json")
    for number, row in enumerate(ROWS):
        made.add(str(number), [row])
        made.run(made.pipeline)
    before = latest(made.output)
    job = Job(str(tmp_path / "root"), "shop")
    slots = [each.slot for each in job.log().checkpoints if each.sinks]
    job.restore(f"checkpoint:{slots[0]}", made.pipeline, rewind_sinks=True).apply()
    assert latest(made.output) == before[:1]
    assert [path.exists() for path in before] == [True, False, False]
    # Forward again it cannot go: the files are deleted.
    with refused(IncompatibleError, f"slot {slots[2]} ", "deleted in slot ", "new folder"):
        job.restore(f"checkpoint:{slots[2]}", made.pipeline, rewind_sinks=True).apply()
    assert latest(made.output) == before[:1]
    made.run(made.pipeline)
    ids = [json.loads(line)["id"] for path in latest(made.output) for line in path.read_text().splitlines()]
    assert sorted(ids) == [1, 2, 3]


@pytest.mark.slow
def test_the_list_of_all_files_is_made_anew_where_it_was_lost(shop: Any) -> None:
    made = shop("json")
    for number, row in enumerate(ROWS):
        made.add(str(number), [row])
        made.run(made.pipeline)
        if number:
            assert len(latest(made.output)) == number + 1
        (made.output / "_latest.json").unlink()
    made.add("more", ROWS[:1])
    made.run(made.pipeline)
    assert len(latest(made.output)) == 4
    (made.output / "_latest.json").write_text("{")
    with refused(CorruptError, "_latest.json", "is no JSON", "delete it"):
        made.run(made.pipeline)
    (made.output / "_latest.json").unlink()
    made.run(made.pipeline)


def test_a_slow_writer_does_not_take_the_list_back(tmp_path: Path) -> None:
    log = Manifests(open_store(str(tmp_path)))

    def manifest(number: int) -> dict[str, Any]:
        added = [{"path": f"part-{number}", "rows": 1, "bytes": 1}]
        return {
            "number": number, "id": str(number), "sink": "s", "slot": number, "mark": number, "columns": [], "added": added, "removed": [],
        }  # fmt: skip

    assert log.add(manifest(1))
    first = log.newest()
    assert log.add(manifest(2))
    assert not log.add({**manifest(2), "id": "other"})
    log.publish(log.newest())
    log.publish(first)
    assert [file["path"] for file in json.loads((tmp_path / "_latest.json").read_text())["files"]] == [
        "part-1",
        "part-2",
    ]


def test_what_it_cannot_write_is_refused_before_spark() -> None:
    def declared(target: Any, **how: Any) -> None:
        @sf.pipeline("shop")
        def shop(flow: sf.Flow) -> None:
            orders = flow.source("orders", sf.files("in", "json"), Order)
            getattr(orders, how.pop("mode", "append"))("output", target, **how)

        shop.build({})

    for target, said in (
        (sf.files("out", "orc"), "cannot write the format 'orc': say one of parquet, json, csv"),
        (sf.files("out", "csv", per_batch=3), "per_batch of .* would do nothing: leave it out"),
        (sf.files("out", "csv", options={"sep": ";"}), "option 'sep' of .* would do nothing: leave it out"),
        (
            sf.files("out", "csv", connection="env:LAKE"),
            "connection='env:LAKE' would do nothing, as out is a local folder",
        ),
        (sf.files("in", "json"), "source 'orders' reads in, and sink 'output' writes to in"),
    ):
        with pytest.raises(UsageError, match=said):
            declared(target)
    with pytest.raises(UsageError, match="cannot write to"):
        declared(sf.files("out", "csv"), mode="upsert", keys="id")


def test_a_connection_is_told_before_spark(tmp_path: Path) -> None:
    def declared(source: Any, target: Any) -> Any:
        @sf.pipeline("shop")
        def shop(flow: sf.Flow) -> None:
            flow.source("orders", source, Order).append("output", target)

        return shop

    lake = sf.files("s3://lake/in", "json", connection="env:NO_LAKE")
    with refused(UsageError, "source 'orders'", "='env:NO_LAKE'", "for a sink", "spark.hadoop.fs.s3a"):
        declared(lake, sf.files("out", "csv")).build({})
    job = Job(str(tmp_path / "root"), "shop")
    with refused(UsageError, "sink 'output'", "s3://lake/in", "the variable NO_LAKE"):
        job.run(declared(sf.files(str(tmp_path), "json"), lake))
    for text in ('{"secret_access_key": "x"}', "secret_access_key=x"):
        with refused(UsageError, "not the properties themselves", "in records") as caught:
            sf.files("s3://lake/in", "json", connection=text)
        assert "secret_access_key" not in str(caught.value)


def test_two_sinks_and_a_table_around_it_are_refused() -> None:
    def declared(one: Any, other: Any) -> None:
        @sf.pipeline("shop")
        def shop(flow: sf.Flow) -> None:
            orders = flow.source("orders", sf.files("in", "json"), Order)
            orders.append("one", one)
            orders.append("other", other)

        shop.build({})

    with pytest.raises(UsageError, match=r"write to one place, \./out"):
        declared(sf.files("out", "csv"), sf.files("./out", "json"))
    with refused(UsageError, "VACUUM of the table of sink 'one'"):
        declared(sf.delta("table"), sf.files("table/files", "json"))
    with refused(UsageError, "VACUUM of the table of sink 'other'"):
        declared(sf.files("table/files", "json"), sf.delta("table"))
    declared(sf.files("files", "json"), sf.delta("files/table"))


def test_csv_refuses_what_it_cannot_hold(spark: Any, tmp_path: Path) -> None:
    sink = make_sink("output", "append", sf.files(str(tmp_path / "out"), "csv"))
    for kind in (
        "binary", "array<string>", "struct<x: int>", "map<string, int>", "variant", "interval day to second", "void",
    ):  # fmt: skip
        with refused(IncompatibleError, "column 'v'", "CSV in ", "write json or parquet"):
            sink.open(spark, spark.range(1).selectExpr("id", f"cast(null as {kind}) v").schema)
    sink.open(spark, spark.range(1).selectExpr("id", "'Ab' collate UTF8_LCASE v").schema)


def test_csv_refuses_a_null_that_would_be_an_empty_line(spark: Any, tmp_path: Path) -> None:
    log = SinkLog(spark, tmp_path / "checkpoints")
    sink = make_sink("output", "append", sf.files(str(tmp_path / "out"), "csv"))
    rows = spark.createDataFrame([("a",), (None,), ("",)], "v string").coalesce(1)
    sink.open(spark, rows.schema)
    with refused(IncompatibleError, "1 of the rows", "'v'", str(tmp_path / "out"), "one more column"):
        log.prepare(sink, rows)
    log.slot -= 1
    assert log.deliver(sink, rows.where("v is not null")) == "committed"
    assert [path.read_text() for path in latest(tmp_path / "out")] == ['"v"\n"a"\n""\n']


@pytest.mark.parametrize("key", ["binary", "date", "timestamp", "struct<x: int>", "array<int>"])
def test_json_refuses_maps_whose_keys_it_cannot_hold(key: str, spark: Any, tmp_path: Path) -> None:
    schema = spark.createDataFrame([], f"id long, v struct<m: map<{key}, int>>").schema
    for target in (
        sf.files(str(tmp_path / "out"), "json"),
        sf.kafka("orders", bootstrap="nobody:1"),
        sf.postgres("shop.orders", connection="postgresql://nobody/shop"),
    ):
        with refused(IncompatibleError, "column 'v'", "JSON in ", "texts alone as the keys"):
            make_sink("output", "append", target).open(spark, schema)
