"""Outputs that go back with the state: to the very rows that the table had, in one commit, or not at all."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.errors import DisagreementError, IncompatibleError
from stateflow.format.records import Prepared
from stateflow.jobs.job import Job
from stateflow.pipelines.inputs.tables import delta
from stateflow.spark.internals.delta_log import DeltaLog
from stateflow.spark.sinks.delta_append import DeltaAppend
from stateflow.spark.sinks.delta_rewind import find_rewind
from stateflow.spark.sinks.delta_upsert import DeltaUpsert
from stateflow.spark.sinks.kinds import prepare_rewind
from stateflow.testing.sink_log import SinkLog
from tests.refusals.refusal import refused
from tests.spark import by_hand
from tests.spark.pipelines import ORDER, Order, Sum, Workbench, at
from tests.spark.sink_places import contents, versions

APP = "stateflow/uuid/totals"
TABLE = Prepared("delta_append", "/lake/t", None)


def commit(
    slot: int | None = None, *files: str, operation: str = "WRITE", shape: str = "", protocol: int = 0
) -> bytes:
    """`+a` adds the file a, `-a` removes it."""
    moved = [{"add" if f[0] == "+" else "remove": {"path": f[1:], "dataChange": True}} for f in files]
    actions: list[dict[str, Any]] = [{"commitInfo": {"operation": operation}}, *moved]
    if slot is not None:
        actions.append({"txn": {"appId": APP, "version": slot}})
    if shape:
        actions.append({"metaData": {"id": "t", "schemaString": shape, "createdTime": len(files)}})
    if protocol:
        features = ["deletionVectors"] if protocol > 2 else None
        actions.append({"protocol": {"minWriterVersion": protocol, "writerFeatures": features}})
    return "\n".join(map(json.dumps, actions)).encode()


def rewind(log: Sequence[bytes | None], slot: int | None) -> tuple[int, int]:
    return find_rewind(dict(enumerate(log)).get, len(log) - 1, APP, slot, TABLE)


MADE = commit(operation="CREATE TABLE", shape="a", protocol=2)
LOG = [MADE, commit(None, "+a"), commit(5, "+b"), commit(6, "+c"), commit(8, "+d"), commit(9, "+e")]
ALTERED = commit(operation="SET TBLPROPERTIES", shape="b", protocol=7)


def restore(*files: str, shape: str = "a") -> bytes:
    return commit(None, *files, operation="RESTORE", shape=shape, protocol=7)


@pytest.mark.parametrize(("wanted", "to"), [(9, (5, 0)), (8, (4, 1)), (5, (2, 3)), (None, (1, 4))], ids=str)
def test_the_version_to_go_back_to_is_the_one_with_the_slot(wanted: int | None, to: tuple[int, int]) -> None:
    assert rewind(LOG, wanted) == to


def test_what_others_wrote_since_is_never_undone_but_what_they_wrote_before_stays() -> None:
    other, five, six = commit(None, "+z"), commit(5, "+a"), commit(6, "+b")
    assert rewind([MADE, five, other, six, commit(8, "+c")], 6) == (3, 1)
    back = "`RESTORE TABLE delta.`/lake/t` TO VERSION AS OF 1`"
    with refused(DisagreementError, "version 2", "wrote to it since", back):
        rewind([MADE, five, other, six], 5)
    with refused(DisagreementError, "changed its schema", back):
        rewind([MADE, five, ALTERED, six], 5)
    with refused(DisagreementError, "version 3", back):
        rewind([MADE, commit(None, "+y"), six, other], None)
    with refused(DisagreementError, "version 2", "wrote to it since"):
        rewind([MADE, five, other, six, restore("-b"), commit(8, "+c")], 5)


@pytest.mark.parametrize(
    ("log", "slot", "to"),
    [
        # What the refusal says, after rows, after another shape, and after both.
        ([commit(None, "+z"), restore("-z")], 5, (1, 0)),
        ([ALTERED, restore()], 5, (1, 0)),
        ([commit(6, "+b"), ALTERED, commit(None, "+z"), restore("-b", "-z")], 5, (1, 0)),
        ([commit(6, "+b"), commit(None, "+z"), restore("-b", "-z", "-a")], None, (-1, 0)),
        # Back to where the job stood, and from there further by itself.
        ([commit(6, "+b"), commit(None, "+z"), restore("-z")], 5, (1, 1)),
        ([commit(6, "+b"), commit(None, "+z"), restore("-z"), commit(8, "+c")], 6, (2, 1)),
        # Properties that were set and taken back by hand.
        ([ALTERED, commit(operation="UNSET TBLPROPERTIES", shape="a")], 5, (1, 0)),
    ],
)
def test_what_a_restore_has_undone_is_no_obstacle(
    log: list[bytes], slot: int | None, to: tuple[int, int]
) -> None:
    assert rewind([MADE, commit(5, "+a"), *log], slot) == to


def test_a_restore_to_another_version_is_one() -> None:
    five = commit(5, "+a")
    with refused(DisagreementError, "version 3 (RESTORE)", "wrote to it since", "TO VERSION AS OF 2"):
        rewind([MADE, five, commit(6, "+b"), restore("-b")], 6)
    with refused(DisagreementError, "changed its schema"):
        rewind([MADE, five, commit(None, "+z"), restore("-z", shape="b")], 5)
    with refused(DisagreementError, "changed its schema"):
        # Nobody knows which shape the table had then.
        rewind([None, five, ALTERED, restore()], 5)


def test_maintenance_that_changes_no_rows_is_no_obstacle() -> None:
    assert rewind([MADE, commit(5, "+a"), commit(operation="OPTIMIZE"), commit(6, "+b")], 5) == (1, 1)


def test_a_slot_that_the_log_has_forgotten_is_refused() -> None:
    with refused(DisagreementError, "no commit of slot 4"):
        rewind(LOG, 4)
    with refused(DisagreementError, "no commit of slot 7"):
        # What an older slot left there is not the output of this one.
        rewind(LOG, 7)
    with refused(DisagreementError, "no commit of slot 5"):
        rewind([None, None, None, None, *LOG[4:]], 5)


@pytest.mark.parametrize("reaches", range(1, len(LOG)))
def test_what_was_before_the_first_slot_is_not_guessed_from_a_log_that_delta_has_cleaned(
    reaches: int,
) -> None:
    cleaned = [None] * reaches + LOG[reaches:]
    with refused(DisagreementError, f"begins at version {reaches}", "a later", "without --rewind-sinks"):
        rewind(cleaned, None)
    assert rewind(cleaned, 9) == (5, 0), "as the sentence says"


def upserted(spark: SparkSession, path: Path, log: SinkLog, values: str) -> tuple[Prepared, list[set[Path]]]:
    """A table whose one row got these values, a slot each: the newest batch, and the files that were there after each."""
    sink = DeltaUpsert(delta(str(path)), {"keys": ["id"]})
    schema = "id long, v string"
    sink.open(spark, spark.createDataFrame([], schema).schema)
    files: list[set[Path]] = []
    for value in values:
        newest = log.prepare(sink, spark.createDataFrame([(1, value)], schema).coalesce(1))
        log.commit(newest)
        files.append(set(path.glob("*.parquet")))
    return newest, files


@pytest.mark.slow
def test_a_table_whose_files_of_then_are_gone_is_not_taken_back_but_to_a_later_slot(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    newest, files = upserted(spark, path, log, "abc")
    for file in files[0]:
        file.unlink()  # as VACUUM does
    log.slot += 1

    def rewound(slot: int) -> Prepared:
        return log.stored(prepare_rewind(spark, newest, log.at(), slot))

    with refused(DisagreementError, "1 of its files are gone", "vacuumed", "a later checkpoint"):
        rewound(1)
    assert contents(spark, path, "v") == ["c"]
    assert log.commit(rewound(2)) == "committed"
    assert contents(spark, path, "v") == ["b"]


@pytest.mark.slow
def test_a_table_whose_deletion_vectors_of_then_are_gone_is_not_taken_back(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    sink = DeltaUpsert(delta(str(path), options={"delta.enableDeletionVectors": "true"}), {"keys": ["id"]})
    schema = "id long, v string"
    sink.open(spark, spark.createDataFrame([], schema).schema)
    rows = [(key, "a") for key in range(200)]
    for batch in (rows, [(1, "b")], [(2, "c")]):
        newest = log.prepare(sink, spark.createDataFrame(batch, schema).coalesce(1))
        log.commit(newest)
    vectors = sorted(path.glob("deletion_vector_*.bin"), key=lambda file: file.stat().st_mtime)
    vectors[0].unlink()  # as VACUUM does
    log.slot += 1
    with refused(DisagreementError, "1 of its files are gone", vectors[0].name, "vacuumed"):
        prepare_rewind(spark, newest, log.at(), 2)
    assert prepare_rewind(spark, newest, log.at(), 1).payload["last_slot"] == 1, "then it had no vector"


@pytest.mark.slow
def test_a_table_whose_files_of_then_go_behind_the_decision_stays_as_it_is_until_they_are_put_back(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    newest, files = upserted(spark, path, log, "ab")
    log.slot += 1
    decided = log.stored(prepare_rewind(spark, newest, log.at(), 1))
    kept = {file: file.read_bytes() for file in files[0]}
    for file in kept:
        file.unlink()  # as VACUUM does
    with refused(DisagreementError, "record 3", "1 of its files are gone", "stateflow abandon orders 3"):
        log.commit(decided)
    assert contents(spark, path, "v") == ["b"]
    for file, body in kept.items():
        file.write_bytes(body)
    assert log.commit(decided) == "committed"
    assert contents(spark, path, "v") == ["a"]


@pytest.mark.slow
def test_rows_that_others_write_behind_the_decision_stay_until_they_are_undone_as_the_sentence_says(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    newest, _ = upserted(spark, path, log, "ab")
    log.slot += 1
    decided = log.stored(prepare_rewind(spark, newest, log.at(), 1))
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (2, 'others')")
    with refused(DisagreementError, "record 3", "not of this job", "stateflow abandon orders 3") as stopped:
        log.commit(decided)
    assert "--rewind-sinks" not in str(stopped.value), "the next restore would first carry this one out"
    assert contents(spark, path, "v") == ["b", "others"]
    spark.sql(statement(str(stopped.value), "RESTORE TABLE"))
    assert log.commit(decided) == "committed"
    assert contents(spark, path, "v") == ["a"]


def alteration(text: str) -> str:
    return statement(text, "ALTER TABLE")


def statement(text: str, verb: str) -> str:
    """The statement that a sentence names."""
    found = re.search(rf"`({verb} .*?)`,", text)
    assert found is not None, text
    return found[1]


@pytest.mark.slow
def test_a_table_that_only_takes_appends_is_not_taken_back_until_that_is_unset(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    sink = DeltaAppend(delta(str(path), options={"delta.appendOnly": "true"}))
    sink.open(spark, spark.createDataFrame([], "v string").schema)
    for value in "abc":
        newest = log.prepare(sink, spark.createDataFrame([(value,)], "v string"))
        log.commit(newest)
    log.slot += 1

    def rewound(slot: int) -> Prepared:
        return log.stored(prepare_rewind(spark, newest, log.at(), slot))

    with refused(IncompatibleError, str(path), "delta.appendOnly", "without --rewind-sinks") as refusal:
        rewound(2)
    spark.sql(alteration(str(refusal.value)))
    assert log.commit(rewound(2)) == "committed"
    assert contents(spark, path, "v") == ["a", "b"]

    log.slot += 1
    decided = rewound(1)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.appendOnly' = 'true')")
    with refused(DisagreementError, "delta.appendOnly", "record 5", "stateflow abandon orders 5") as stopped:
        log.commit(decided)
    spark.sql(alteration(str(stopped.value)))
    assert log.commit(decided) == "committed"
    assert contents(spark, path, "v") == ["a"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        "ADD COLUMNS (w string)",
        "RENAME COLUMN v TO u",
        "SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')",
    ],
    ids=lambda text: text.split()[0],
)
def test_a_table_that_somebody_changed_and_put_back_goes_back_whatever_delta_leaves_of_it(
    spark: SparkSession, path: Path, log: SinkLog, change: str
) -> None:
    sink = DeltaAppend(delta(str(path), options={"delta.columnMapping.mode": "name"}))
    sink.open(spark, spark.createDataFrame([], "id long, v string").schema)
    for value in "ab":
        newest = log.prepare(sink, spark.createDataFrame([(1, value)], "id long, v string"))
        log.commit(newest)
    table, stood = f"delta.`{path}`", versions(path) - 1
    spark.sql(f"ALTER TABLE {table} {change}")
    log.slot += 1
    with refused(DisagreementError, "changed its schema", f"RESTORE TABLE {table}"):
        prepare_rewind(spark, newest, log.at(), 1)
    spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {stood}")
    assert log.commit(log.stored(prepare_rewind(spark, newest, log.at(), 1))) == "committed"
    assert contents(spark, path, "v") == ["a"]


def pipeline(bench: Workbench, log: str = "log") -> sf.Pipeline:
    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        rows = flow.source("orders", bench.source("orders", ORDER), Order)
        totals = rows.key_by("user", order_by="ts").process("sum", Sum)
        totals.append(log, sf.delta(str(bench.folder / "log")))
        totals.upsert("latest", sf.delta(str(bench.folder / "latest")), keys=["user"])

    return orders


def feed(bench: Workbench, batches: range) -> None:
    for batch in batches:
        bench.rows("orders", [Order(user, "a", 1.0 + user, at(batch)) for user in range(3)])


def options(bench: Workbench) -> Any:
    return bench.options(retained_checkpoints=20)


def tables(spark: SparkSession, bench: Workbench) -> tuple[list[Any], list[Any]]:
    return contents(spark, bench.folder / "log"), contents(spark, bench.folder / "latest")


@pytest.mark.system
def test_state_and_outputs_go_back_together_and_come_forward_to_the_same(
    spark: SparkSession, bench: Workbench
) -> None:
    orders, job = pipeline(bench), Job(str(bench.folder / "root"), "orders")
    feed(bench, range(2))
    bench.run(orders, retained_checkpoints=20)
    early, at_two = job.checkpoints()[-1].slot, tables(spark, bench)
    feed(bench, range(2, 4))
    bench.run(orders, retained_checkpoints=20)
    late, at_four = job.checkpoints()[-1].slot, tables(spark, bench)
    assert at_two != at_four
    before = versions(bench.folder / "log")
    plan = job.restore(f"checkpoint:{early}", orders, options=options(bench), rewind_sinks=True)
    assert {sink.action for sink in plan.sinks} == {"rewinds"}
    done = plan.apply()
    assert done.sinks == {"log": "committed", "latest": "committed"}
    assert tables(spark, bench) == at_two
    assert versions(bench.folder / "log") == before + 1
    history = spark.sql(f"DESCRIBE HISTORY delta.`{bench.folder / 'log'}`").first()
    assert history is not None
    assert history["operation"] == "RESTORE"
    bench.run(orders, retained_checkpoints=20)
    assert tables(spark, bench) == at_four
    # And to the other timeline, whose rows are still in the table's log.
    job.restore(f"checkpoint:{late}", orders, options=options(bench), rewind_sinks=True).apply()
    assert tables(spark, bench) == at_four
    feed(bench, range(4, 5))
    bench.run(orders)
    assert len(tables(spark, bench)[0]) == 15


@pytest.mark.slow
def test_a_snapshot_whose_rows_an_earlier_restore_took_out_of_the_outputs_needs_them_back(
    spark: SparkSession, bench: Workbench
) -> None:
    orders, job = pipeline(bench), Job(str(bench.folder / "root"), "orders")
    feed(bench, range(3))
    bench.run(orders, retained_checkpoints=20)
    *_, early, middle, late = (checkpoint.slot for checkpoint in job.checkpoints())
    full = tables(spark, bench)
    restored = partial(job.restore, options=options(bench))
    restored(f"checkpoint:{early}", orders, rewind_sinks=True).apply()
    lost = (
        "'log'",
        f"slots {middle} to {middle}",
        f"checkpoint:{middle}",
        "--rewind-sinks",
        f"below {middle}",
    )
    with refused(IncompatibleError, *lost):
        restored(f"checkpoint:{middle}", orders)
    # Where the outputs stand already nothing comes twice, and nothing is missing.
    plan = restored(f"checkpoint:{early}", orders)
    assert {sink.note for sink in plan.sinks} == {"has nothing newer than the snapshot"}
    plan.apply()
    # Another uid for the same table, or what came since, is no way round it.
    with refused(IncompatibleError, "'log'", f"slots {middle} to {middle}"):
        restored(f"checkpoint:{middle}", pipeline(bench, log="renamed"))
    bench.run(orders, retained_checkpoints=20)
    assert tables(spark, bench) == full
    with refused(IncompatibleError, "'log'", f"slots {middle} to {late}"):
        restored(f"checkpoint:{late}", orders)
    restored(f"checkpoint:{middle}", orders, rewind_sinks=True).apply()
    assert len(contents(spark, bench.folder / "log")) == 6
    bench.run(orders, retained_checkpoints=20)
    assert tables(spark, bench) == full
    # Forward again, all that was there by then is there.
    plan = restored(f"checkpoint:{middle}", orders)
    assert {sink.note.partition(":")[0] for sink in plan.sinks} == {
        f"keeps its output up to slot {job.checkpoints()[-1].slot}"
    }


@pytest.mark.slow
def test_outputs_are_not_taken_back_to_where_no_run_could_go_on(
    spark: SparkSession, bench: Workbench, hasty_vacuum: None
) -> None:
    """The next files of a Delta source are gone."""
    source, totals = bench.folder / "source", bench.folder / "totals"

    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        rows = flow.source("orders", sf.delta(str(source)), Order).key_by("user", order_by="ts")
        rows.process("sum", Sum).upsert("totals", sf.delta(str(totals)), keys=["user"])

    for number in (1, 2):
        by_hand.append(source, [(1, "a", float(number), at(number))], by_hand.columns(ORDER))
        bench.run(orders, retained_checkpoints=20)
    first = bench.job("orders").checkpoints()[0].slot
    with_both = contents(spark, totals)
    spark.sql(f"OPTIMIZE delta.`{source}`")
    spark.sql(f"VACUUM delta.`{source}` RETAIN 0 HOURS")
    with refused(DisagreementError, "'orders'", "was vacuumed"):
        bench.job("orders").restore(
            f"checkpoint:{first}", orders, options=options(bench), rewind_sinks=True
        ).apply()
    assert contents(spark, totals) == with_both
    assert bench.job("orders").log().head.kind == "checkpoint"
    bench.run(orders)


@pytest.mark.system
def test_without_rewinding_the_plan_says_that_output_will_come_twice(
    spark: SparkSession, bench: Workbench
) -> None:
    orders, job = pipeline(bench), Job(str(bench.folder / "root"), "orders")
    feed(bench, range(2))
    bench.run(orders, retained_checkpoints=20)
    first = job.checkpoints()[-2].slot
    plan = job.restore(f"checkpoint:{first}", orders, options=options(bench))
    assert any("delivered again" in sink.note for sink in plan.sinks)
    assert "delivered again" in str(plan)
    plan.apply()
    bench.run(orders)
    assert len(contents(spark, bench.folder / "log")) == 9


@pytest.mark.system
def test_a_table_that_others_have_written_to_stops_the_restore_before_it_is_decided(
    spark: SparkSession, bench: Workbench
) -> None:
    orders, job = pipeline(bench), Job(str(bench.folder / "root"), "orders")
    feed(bench, range(2))
    bench.run(orders, retained_checkpoints=20)
    first, whole = job.checkpoints()[-2].slot, tables(spark, bench)
    spark.createDataFrame([(99, 1.0)], "user long, total double").write.format("delta").mode("append").save(
        str(bench.folder / "log")
    )
    rows = tables(spark, bench)
    # Without Spark, before anybody has said yes.
    with refused(DisagreementError, "not of this job", "RESTORE TABLE") as refusal:
        job.restore(f"checkpoint:{first}", orders, options=options(bench), rewind_sinks=True)
    assert tables(spark, bench) == rows
    head = job.log().head
    assert head is not None
    assert head.kind == "checkpoint"
    assert job.log().pending == ()

    advised = re.search(r"`(RESTORE TABLE .*? AS OF \d+)`", str(refusal.value))
    assert advised is not None
    spark.sql(advised[1])
    job.restore(f"checkpoint:{first}", orders, options=options(bench), rewind_sinks=True).apply()
    bench.run(orders, retained_checkpoints=20)
    assert tables(spark, bench) == whole
    # A table that is put back to where the job stood goes back from there.
    stood, table = versions(bench.folder / "log") - 1, f"delta.`{bench.folder / 'log'}`"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {stood}")
    job.restore(f"checkpoint:{first}", orders, options=options(bench), rewind_sinks=True).apply()
    assert bench.run(orders).warnings == ()
    assert tables(spark, bench) == whole


@pytest.mark.system
def test_a_restore_that_dies_between_two_tables_is_carried_out_by_the_next_run(
    spark: SparkSession, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stateflow.spark.sinks.delta_rewind import TableSink

    orders, job = pipeline(bench), Job(str(bench.folder / "root"), "orders")
    feed(bench, range(2))
    bench.run(orders, retained_checkpoints=20)
    early, at_two = job.checkpoints()[-1].slot, tables(spark, bench)
    feed(bench, range(2, 3))
    bench.run(orders, retained_checkpoints=20)
    at_three = tables(spark, bench)
    calls: list[str] = []

    def dies(*arguments: Any, **named: Any) -> Any:
        if calls:
            raise KeyboardInterrupt
        calls.append("first")
        return commit_rewind(*arguments, **named)

    commit_rewind = TableSink.commit_rewind
    monkeypatch.setattr(TableSink, "commit_rewind", staticmethod(dies))
    with pytest.raises(KeyboardInterrupt):
        job.restore(f"checkpoint:{early}", orders, options=options(bench), rewind_sinks=True).apply()
    monkeypatch.setattr(TableSink, "commit_rewind", staticmethod(commit_rewind))
    assert tables(spark, bench) not in (at_two, at_three)
    bench.run(orders, retained_checkpoints=20, takeover=True)
    assert tables(spark, bench) == at_three
    assert DeltaLog(spark, str(bench.folder / "log")).begin().slot_of("nobody") is None


def writing_to(bench: Workbench, *sinks: Path) -> sf.Pipeline:
    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        rows = flow.source("orders", bench.source("orders", ORDER), Order)
        for sink in sinks:
            rows.append(sink.name, sf.delta(str(sink)))

    return orders


@pytest.mark.slow
@pytest.mark.parametrize("rewind", [True, False])
def test_outputs_that_only_newer_code_has_go_back_too_or_are_told(
    spark: SparkSession, bench: Workbench, rewind: bool
) -> None:
    """Else the next release, which has the sink again, would write its rows twice."""
    log, more, job = bench.folder / "log", bench.folder / "more", Job(str(bench.folder / "root"), "orders")
    code = partial(writing_to, bench)

    feed(bench, range(1))
    bench.run(code(log), retained_checkpoints=20)
    first = job.checkpoints()[-1].slot
    feed(bench, range(1, 2))
    bench.run(code(log, more), retained_checkpoints=20)
    expected = contents(spark, log), contents(spark, more)
    plan = job.restore(f"checkpoint:{first}", code(log), options=options(bench), rewind_sinks=rewind)
    told = {sink.uid: (sink.action, sink.note) for sink in plan.sinks}
    action, note = told["more"]
    assert note.startswith("is not in this code")
    assert note in str(plan)
    done = plan.apply()
    if rewind:
        assert (action, done.sinks) == ("rewinds", {"log": "committed", "more": "committed"})
        assert contents(spark, more) == []
        bench.run(code(log, more))
        assert (contents(spark, log), contents(spark, more)) == expected
    else:
        assert action == "keeps"
        bench.run(code(log, more))
        assert len(contents(spark, more)) == 2 * len(expected[1])
    latest = job.checkpoints()[-1].slot
    if rewind:
        # A table of others by now, or one that is gone, does not keep the job's own from going back.
        for happens, said in (
            (lambda: spark.sql(f"DELETE FROM delta.`{more}`"), "wrote to it since) and keeps"),
            (lambda: shutil.rmtree(more), "cannot be taken back (its table is gone) and keeps"),
        ):
            happens()
            back = job.restore(f"checkpoint:{first}", code(log), options=options(bench), rewind_sinks=True)
            assert any(
                sink.uid == "more" and sink.action == "keeps" and said in sink.note for sink in back.sinks
            )
        by_hand.append(more, [(9,)], by_hand.columns("n long"))  # made anew: the plan does not see it
        done = job.restore(
            f"checkpoint:{first}", code(log), options=options(bench), rewind_sinks=True
        ).apply()
        assert done.sinks["log"] == "committed"
        assert "stays as it is, since it cannot be taken back" in done.sinks["more"]
        assert contents(spark, more, "n") == [9]
        return
    # What nobody wrote since the snapshot is not spoken of.
    again = job.restore(f"checkpoint:{latest}", code(log), options=options(bench), rewind_sinks=rewind)
    assert [sink.uid for sink in again.sinks] == ["log"]


@pytest.mark.slow
def test_an_output_that_the_code_in_use_has_retired_stays(spark: SparkSession, bench: Workbench) -> None:
    """Its rows since would be gone: nothing writes them again."""
    log, old, job = bench.folder / "log", bench.folder / "old", Job(str(bench.folder / "root"), "orders")
    code = partial(writing_to, bench)

    feed(bench, range(1))
    bench.run(code(log, old), retained_checkpoints=20)
    first = job.checkpoints()[-1].slot
    for batch, sinks in ((1, (log, old)), (2, (log,))):
        feed(bench, range(batch, batch + 1))
        bench.run(code(*sinks), retained_checkpoints=20)
    before = contents(spark, old)
    plan = job.restore(f"checkpoint:{first}", code(log), options=options(bench), rewind_sinks=True)
    told = {sink.uid: (sink.action, sink.note) for sink in plan.sinks}
    assert told["old"][0] == "keeps"
    assert "is not in this code, keeps its output up to slot" in told["old"][1]
    assert plan.apply().sinks == {"log": "committed"}
    assert contents(spark, old) == before
