"""Before Spark starts, which takes seconds, every command that needs it says so; those that do not need it do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark import SparkContext

from stateflow.checkpoint.handle import JobHandle
from stateflow.checkpoint.log import Log, SlotCache
from stateflow.checkpoint.pins import list_pins
from stateflow.errors import StateflowError
from stateflow.format.records import Prepared
from stateflow.spark.session import build as session
from stateflow.spark.state_tables import build
from tests.cli.conftest import Command
from tests.jobs.made import ORDERS, MadeJob, made_job
from tests.jobs.queried import QueriedJob, queried_job

STARTING = "starting Spark\n"
PIPELINE = f"{ORDERS}:orders"
ANSWER = "no session was started"


@pytest.fixture(autouse=True)
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Spark would start, an error."""

    class Builder:
        def __getattr__(self, name: str) -> Callable[..., Builder]:
            return lambda *_, **__: self

        def getOrCreate(self) -> None:
            raise StateflowError(ANSWER)

    class Sessions:
        builder = Builder()

    monkeypatch.setattr(session, "SparkSession", Sessions)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(session, "require_java", lambda cache: Path("/nowhere"))
    monkeypatch.setattr(session, "jars_with", lambda cache, bundles: [])
    monkeypatch.setenv("JAVA_HOME", "/nowhere")


def pending(root: Path) -> MadeJob:
    """A job whose last record is decided and not carried out: its table needs Spark."""
    job = made_job(root)
    job.batch(carried_out=False)
    return job


def pending_with_key(root: Path) -> QueriedJob:
    """A job of which user 42 has state."""
    job = queried_job(root, 42)
    output = Prepared(kind="delta_append", target="/data/totals", rows=1)
    job.decide(operators=job.head().operators, sinks={"totals": output}, pending=True)
    return job


@pytest.mark.parametrize(
    "words",
    [
        ("run", ORDERS, "-p", "input=a", "-p", "output=b"),
        ("restore", "orders", PIPELINE, "--from", "checkpoint:3", "--yes"),
        ("rescale", "orders", "--parallelism", "2"),
        ("state", "erase", "orders", "42", "--yes"),
        ("abandon", "orders", "5", "--yes"),
        ("stop", "orders", "--savepoint"),
    ],
    ids=lambda words: words[0] if words[0] != "state" else "erase",
)
def test_what_carries_out_a_pending_record_says_that_spark_starts(
    command: Command, root: Path, words: tuple[object, ...]
) -> None:
    (pending_with_key if words[0] == "state" else pending)(root)
    (Path.cwd() / "a/_delta_log").mkdir(parents=True)
    said = command(*words, "--checkpoint-dir", root)
    assert said.code == 1
    before, found, after = said.err.partition(f"orders: {STARTING}")
    assert found
    assert ANSWER not in before
    assert ANSWER in after


@pytest.mark.parametrize(
    "words",
    [
        ("savepoint", "create", "orders", "--type", "canonical"),
        ("state", "export", "orders", "balance", "total", "--to", "there"),
    ],
    ids=lambda words: words[0],
)
def test_what_writes_tables_says_that_spark_starts(
    command: Command, root: Path, words: tuple[object, ...]
) -> None:
    made_job(root)
    said = command(*words, "--checkpoint-dir", root)
    assert STARTING in said.err
    assert ANSWER in said.err


@pytest.mark.parametrize(
    "words",
    [
        ("export", "orders", "balance", "total", "--to", "there"),
        ("import", PIPELINE, "--to", "there", "--table", "balance.total=rows", "--like", "orders"),
    ],
    ids=lambda words: words[0],
)
def test_a_checkpoint_whose_tables_spark_is_to_read_is_held_before_spark_starts(
    command: Command, root: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    made = made_job(root, retained=1, ended=False)
    newest, looked = made.head().slot, JobHandle.log

    def starting(*arguments: object, **settings: object) -> None:
        made.batches(3)
        made.collect()
        held = [(pin.kind, pin.slot) for pin in list_pins(made.store, made.layout)]
        raise StateflowError(f"held: {held}, there: {made.log().record(newest + 1).slot}")

    def overtaken(job: JobHandle, slots: SlotCache | None = None) -> Log:
        found = looked(job, slots)
        if found.checkpoints[-1].slot == newest:  # its run has a batch between this look and the pin
            made.batch()
            made.collect()
        return found

    monkeypatch.setattr(session, "build_session", starting)
    monkeypatch.setattr(JobHandle, "log", overtaken)
    said = command("state", *words, "--checkpoint-dir", root)
    assert f"held: [('reader', {newest + 1})], there: {newest + 1}" in said.err
    assert list_pins(made.store, made.layout) == []


DOTTED = """
import stateflow as sf


@sf.pipeline("orders")
def orders(flow):
    rows = flow.source("orders", sf.files("in", "json"), "user int, amount long")
    states = {"sum.of.all": sf.columns({"total": int}), "sum": sf.columns({"total": int})}
    sums = rows.key_by("user").process_arrow("by.user", lambda rows, states, ctx: rows, state=states, output="user int, amount long")
    sums.for_each_batch("out", print)
"""


def test_a_table_is_of_an_operator_and_a_state_that_have_dots_in_their_names(
    command: Command, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "dotted.py"
    file.write_text(DOTTED, encoding="utf-8")

    def built(spark: object, request: build.BuildRequest) -> None:
        raise StateflowError(f"tables: {request.tables}")

    monkeypatch.setattr(session, "build_session", lambda *arguments, **settings: None)
    monkeypatch.setattr("stateflow.spark.state_tables.parquet.parquet_frame", lambda spark, path, what: path)
    monkeypatch.setattr(build, "build_savepoint", built)
    tables = ("--table", "by.user.sum.of.all=x", "--table", "by.user.sum=y")
    said = command("state", "import", file, "--to", "there", *tables, "--checkpoint-dir", root)
    assert "tables: {'by.user': {'sum.of.all': 'x', 'sum': 'y'}}" in said.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("export", "orders", "balanc", "total", "--to", "x"), 3, "no operator 'balanc'"),
        (("export", "orders", "balance", "totals", "--to", "x"), 3, "no state 'totals'"),
        (("export", "orders", "balance", "total", "--to", "x", "--format", "xls"), 2, "parquet, json, csv"),
        (("import", str(ORDERS), "--to", "x", "--table", "total=y"), 2, "OPERATOR.STATE=PATH"),
        (
            ("import", str(ORDERS), "--to", "x", "--table", "balance.total=y", "--offset", "1"),
            2,
            "--offset '1'",
        ),
    ],
    ids=lambda value: " ".join(value[:4]) if isinstance(value, tuple) else None,
)
def test_what_is_wrong_with_a_table_is_said_before_spark_starts(
    command: Command, root: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    made_job(root)
    said = command("state", *arguments, "--checkpoint-dir", root)
    assert (said.code, words in said.err) == (code, True), said.err
    assert STARTING not in said.err


def test_nothing_is_said_where_nothing_starts_or_when_nobody_wants_to_hear(
    command: Command, root: Path
) -> None:
    made_job(root)
    said = command("restore", "orders", PIPELINE, "--from", "checkpoint:3", "--yes", "--checkpoint-dir", root)
    assert (said.code, "Spark" in said.err) == (0, False)
    pending(root.parent / "other")
    said = command(
        "rescale", "orders", "--parallelism", "2", "--checkpoint-dir", root.parent / "other", "--debug"
    )
    assert STARTING in said.err
    (Path.cwd() / "stateflow.toml").write_text("progress = false\n")
    said = command("rescale", "orders", "--parallelism", "2", "--checkpoint-dir", root.parent / "other")
    assert ANSWER in said.err
    assert STARTING not in said.err


@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)], ids=("new", "overwrite"))
@pytest.mark.parametrize(
    "to",
    ["root/orders", "link/orders", "root/orders/out", "root/_savepoints/orders/v1/out", "root", "table/out"],
)
def test_an_export_into_a_root_or_a_table_is_refused_before_spark_starts(
    command: Command, root: Path, tmp_path: Path, to: str, overwrite: tuple[str, ...]
) -> None:
    made_job(root)
    (tmp_path / "link").symlink_to(root)
    (tmp_path / "table/_delta_log").mkdir(parents=True)
    before = files_in(tmp_path)
    words = ("state", "export", "orders", "balance", "total", "--to", tmp_path / to, *overwrite)
    said = command(*words, "--checkpoint-dir", root)
    assert (said.code, "is no place for an export" in said.err) == (2, True), said.err
    assert STARTING not in said.err
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("to", [".", "out"])
def test_a_savepoint_is_not_exported_into_its_own_folder(command: Command, root: Path, to: str) -> None:
    queried_job(root, 42)
    place = root.parent / "saved"
    assert command("savepoint", "create", "orders", "--to", place, "--checkpoint-dir", root).code == 0
    said = command(
        "state",
        "export",
        place,
        "balance",
        "total",
        "--to",
        f"{place}/{to}",
        "--overwrite",
        "--checkpoint-dir",
        root,
    )
    assert (said.code, "is no place for an export" in said.err) == (2, True), said.err
    assert "is there; choose a folder outside of it" in said.err
    assert STARTING not in said.err


@pytest.mark.parametrize("held", ["_metadata", "notes.txt", "job/part-0.parquet", ""])
def test_an_export_replaces_only_what_an_export_has_written(
    command: Command, root: Path, tmp_path: Path, held: str
) -> None:
    made_job(root)
    other = tmp_path / "other"
    if held:
        (other / held).parent.mkdir(parents=True)
        (other / held).touch()
    else:
        other.touch()
    words = ("state", "export", "orders", "balance", "total", "--to", other, "--checkpoint-dir", root)
    said = command(*words, "--overwrite")
    assert (said.code, "holds" in said.err, "choose a new folder" in said.err) == (2, True, True), said.err
    assert STARTING not in said.err
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    for name in (
        "_SUCCESS",
        "._SUCCESS.crc",
        "part-00000-a.snappy.parquet",
        ".part-00000-a.snappy.parquet.crc",
    ):
        (earlier / name).touch()
    said = command(*words[:6], earlier, *words[7:], "--overwrite")
    assert STARTING in said.err, said.err


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))
