"""A fork that begins with copies of its origin's tables ends with the tables that a job from the beginning has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.config.options import Options
from stateflow.errors import CorruptError, DisagreementError, NotFoundError, UsageError
from stateflow.jobs.job import Job
from stateflow.restore.apply import RestoreRun
from stateflow.restore.planned import RestorePlan
from stateflow.spark.internals.delta_log import DeltaLog, LoggedCommit
from stateflow.spark.runner import RunReport, RunRequest, run
from stateflow.spark.sinks.delta_copy import TableCopy, copy_table, is_copied, made_for, version_at
from stateflow.spark.sinks.delta_versions import TableVersion
from tests.refusals.refusal import refused
from tests.spark.pipelines import ORDER, Order, Sum, Workbench, at
from tests.spark.sink_places import contents, versions

APP = "stateflow/uuid/out"
COPY = TableCopy("/a", 3, "/b")


def commit(version: int, slot: int | None = None, **fields: Any) -> LoggedCommit:
    slots = {APP: slot} if slot is not None else {}
    return LoggedCommit(version, slots, **{"changes_data": True, "reshapes": False, **fields})


LOG = [commit(4), commit(3, 6), commit(2, 5), commit(1), commit(0, reshapes=True)]


@pytest.mark.parametrize(("last", "version"), [(6, 3), (5, 2), (None, 1)])
def test_the_version_of_a_checkpoint_is_that_of_its_last_output(last: int | None, version: int) -> None:
    assert version_at(LOG, APP, last, "t") == TableVersion(version, last)


def test_a_job_that_has_not_written_had_what_the_table_held() -> None:
    assert version_at(LOG, "another", None, "t").version == 4
    assert version_at([commit(0, 5)], APP, None, "t").version == -1


def test_a_version_that_the_log_does_not_tell_is_refused_with_the_next_step() -> None:
    with refused(DisagreementError, "no commit of slot 4", "fork a later checkpoint"):
        version_at(LOG, APP, 4, "t")
    with refused(DisagreementError, "no first commits"):
        version_at(LOG[:3], APP, None, "t")
    with refused(NotFoundError, "restore without --clone-sinks"):
        version_at([], APP, 4, "t")


def test_only_the_untouched_copy_is_found_again() -> None:
    first = LoggedCommit(0, {made_for("mine"): 0}, True, True, copied_from=("/a", 3))
    assert not is_copied([], COPY, "mine")
    assert is_copied([commit(1, changes_data=False), first], COPY, "mine")
    for other in ([commit(0)], [commit(1), first], [commit(1, 7, changes_data=False), first], [commit(2)]):
        with refused(UsageError, "/b ", "not the copy", "delete that table"):
            is_copied(other, COPY, "mine")
    with refused(UsageError, "not the copy of version 3"):
        is_copied([commit(0, copied_from=("/a", 4))], COPY, "mine")
    for job in ("another", ""):
        with refused(UsageError, "/b ", "version 3 of /a", "of another job", "another output"):
            is_copied([first], COPY, job)
    with refused(UsageError, "does not say which job it was made for", "another output"):
        is_copied([commit(0, copied_from=("/a", 3))], COPY, "mine")


@dataclass
class Forking:
    bench: Workbench
    spark: SparkSession

    @property
    def options(self) -> Options:
        return self.bench.options(retained_checkpoints=20)

    @property
    def pipeline(self) -> sf.Pipeline:
        bench = self.bench

        @sf.pipeline("orders")
        def orders(flow: sf.Flow, *, output: str) -> None:
            rows = flow.source("orders", bench.source("orders", ORDER), Order)
            totals = rows.key_by("user", order_by="ts").process("sum", Sum)
            log = sf.delta(f"{output}/log", partition_by=["user"], options={"delta.appendOnly": "false"})
            totals.append("log", log)
            totals.upsert("latest", sf.delta(f"{output}/latest"), keys=["user"])

        return orders

    def out(self, job: str) -> Path:
        return self.bench.folder / "out" / job

    def tables(self, job: str) -> list[list[Any]]:
        return [contents(self.spark, self.out(job) / name) for name in ("log", "latest")]

    def run(self, job: str) -> RunReport:
        return run(RunRequest(self.pipeline, self.options, {"output": str(self.out(job))}, job=job))

    def feed(self, batch: int, users: range) -> None:
        self.bench.rows("orders", [Order(user, "a", 1.0 + user, at(batch)) for user in users])

    def fork(self, origin: str, job: str = "fork", *, output: str = "", **request: Any) -> RestorePlan:
        given = {"output": output or str(self.out(job))}
        named = {"options": self.options, "from_job": "orders", "clone_sinks": True, **request}
        return Job(str(self.bench.folder / "root"), job).restore(origin, self.pipeline, given, **named)


@pytest.fixture
def forking(spark: SparkSession, bench: Workbench) -> Forking:
    made = Forking(bench, spark)
    made.feed(1, range(4))
    made.run("orders")
    return made


@pytest.mark.slow
def test_a_fork_with_copies_ends_as_a_job_from_the_beginning(
    forking: Forking, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark, early = forking.spark, forking.tables("orders")
    log = forking.out("orders") / "log"
    slot = Job(str(forking.bench.folder / "root"), "orders").checkpoints()[-1].slot
    spark.sql(f"ALTER TABLE delta.`{log}` ADD CONSTRAINT sound CHECK (total < 1000)")
    forking.feed(2, range(2))  # users 2 and 3 do not change any more
    forking.run("orders")
    whole = forking.tables("orders")

    planned = forking.fork(f"checkpoint:{slot}")
    assert [sink.action for sink in planned.sinks] == ["copies", "copies"]
    assert f"copied from version {planned.sinks[0].copy_version} of {log}" in str(planned)
    assert planned.digest != forking.fork(f"checkpoint:{slot}", clone_sinks=False).digest
    assert not forking.out("fork").exists(), "a plan writes nothing"

    copy_tables = RestoreRun._copy_tables

    def dies_after(self: RestoreRun, uuid: str) -> None:
        copy_tables(self, uuid)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RestoreRun, "_copy_tables", dies_after)
        with pytest.raises(KeyboardInterrupt):
            planned.apply()
    shared = str(forking.out("fork"))
    with refused(UsageError, "of another job", "give the fork another output"):
        forking.fork(f"checkpoint:{slot}", "other", output=shared)
    again = forking.fork(f"checkpoint:{slot}")
    again.apply()
    copied = forking.out("fork") / "log"
    assert forking.tables("fork") == early
    assert versions(copied) == 1, "the copy of the first try stays"
    with refused(UsageError, "of another job", "give the fork another output"):
        forking.fork(f"checkpoint:{slot}", "other", output=shared)
    shape, like = (DeltaLog(spark, str(path)).begin().shape() for path in (copied, log))
    assert (shape.partition_by, shape.schema) == (like.partition_by, like.schema)
    assert shape.configuration["delta.appendOnly"] == "false"
    assert shape.configuration["delta.checkpointInterval"] == "100"
    assert shape.id != like.id

    assert forking.run("fork").warnings == ()
    assert forking.tables("fork") == whole
    with refused(UsageError, "'log' of job 'fork'", "output of its own"):
        forking.fork(f"checkpoint:{slot}")
    # What another fork finds there is not its copy.
    with pytest.raises(UsageError, match=r"has a table that is not the copy"):
        forking.fork(f"checkpoint:{slot}", "other", output=shared)


@pytest.mark.slow
def test_what_is_advised_of_a_damaged_record_ends_with_the_tables_that_would_have_been(
    forking: Forking,
) -> None:
    job = Job(str(forking.bench.folder / "root"), "orders")
    slot = job.checkpoints()[-1].slot
    forking.feed(2, range(2))
    forking.run("orders")
    whole, top = forking.tables("orders"), job.checkpoints()[-1].slot
    job.store.put(job.layout.pending(top), b"rubbish")
    forking.feed(3, range(1))
    # The tables have rows of a record that nobody can read: neither a run nor a restore of the job goes on over it.
    for refusal in (lambda: forking.run("orders"), lambda: forking.fork(f"checkpoint:{slot}", "orders")):
        with refused(CorruptError, job.layout.pending(top), "stateflow verify orders"):
            refusal()
    (finding,) = [finding for finding in job.verify() if finding.severity == "error"]
    assert f"`stateflow restore NAME PIPELINE --from checkpoint:{slot} --from-job orders`" in finding.text
    forking.fork(f"checkpoint:{slot}").apply()
    forking.run("fork")
    assert forking.tables("orders") == whole
    log, latest = forking.tables("fork")
    assert [row for row in log if row in whole[0]] == whole[0], "once, what the damaged record had delivered"
    assert (len(log), len(latest)) == (len(whole[0]) + 1, len(whole[1])), "and what came since"


@pytest.mark.slow
def test_of_two_forks_that_were_planned_for_one_folder_only_the_first_gets_it(forking: Forking) -> None:
    shared = str(forking.out("shared"))
    first, second = (forking.fork("latest", name, output=shared) for name in ("x1", "x2"))
    first.apply()
    for _ in range(2):
        with refused(UsageError, "of another job", "give the fork another output"):
            second.apply()
    assert not Job(str(forking.bench.folder / "root"), "x2").checkpoints()
    assert forking.fork("latest", "x2").apply().job == "x2", "in a folder of its own"
    assert forking.tables("shared") == forking.tables("x2") == forking.tables("orders")


@pytest.mark.slow
def test_a_copy_of_a_table_with_times_in_its_commits_can_be_asked_by_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    table, copy = tmp_path / "table", tmp_path / "copy"
    rows = spark.range(1).write.format("delta").mode("append")
    for _ in range(2):
        rows.save(str(table))
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')")
    copy_table(spark, TableCopy(str(table), 2, str(copy)), "fork")
    for _ in range(2):
        rows.save(str(copy))
    time = DeltaTable.forPath(spark, str(copy)).history(2).collect()[1].timestamp
    then = spark.read.format("delta").option("timestampAsOf", str(time)).load(str(copy))
    assert then.count() == 3, "the two that were copied, and one"


@pytest.mark.slow
def test_what_has_no_tables_to_copy_is_refused_with_the_next_step(forking: Forking) -> None:
    job = Job(str(forking.bench.folder / "root"), "orders")
    with refused(UsageError, "--rewind-sinks", "takes its tables back"):
        forking.fork("latest", "orders")
    savepoint = job.savepoint(options=forking.options, to=str(forking.bench.folder / "saved")).url
    with refused(UsageError, "give --from", "checkpoint:N --from-job JOB"):
        forking.fork(savepoint)
    with pytest.raises(UsageError, match=r"give the fork an output of its own"):
        forking.fork("latest", output=str(forking.out("orders")))
    for file in (forking.out("orders") / "log").rglob("*.parquet"):
        file.unlink()
    with refused(DisagreementError, "cannot be copied", "was it vacuumed"):
        forking.fork("latest").apply()
    assert not Job(job.root, "fork").checkpoints()
