"""Runs that have nothing to do: known before Spark starts, told as what they are, and nobody is woken by them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from airflow.sdk import Asset, AssetAlias
from airflow.sdk.api.datamodels._generated import TaskInstanceState

from stateflow.airflow import checkpoint_asset
from stateflow.airflow.operators.assets import table_asset
from stateflow.checkpoint import scheduled
from stateflow.checkpoint.control import BOUND_BEHIND, INPUT_DRAINED, INTERRUPTED, KILLED, RunOutcome
from stateflow.checkpoint.draft import Draft
from stateflow.driver.handover import Handover
from stateflow.errors import UnavailableError
from stateflow.format.records import Owner, Record
from stateflow.jobs.job import Job
from tests.airflow.conftest import Connect
from tests.airflow.runner import Outcome, run_task
from tests.airflow.test_run_operator import Done, Method, operator
from tests.jobs.made import ORDERS, PARAMETERS, MadeJob

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EARLIER = Owner("earlier", dag_run="orders_dag/earlier", task="run")


class Table:
    """A Delta table with a commit per hour after noon; its job has read as many versions as it has slots."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "_delta_log").mkdir(parents=True)

    def commit(self, *actions: dict[str, Any]) -> None:
        version = len(list((self.folder / "_delta_log").iterdir()))
        file = self.folder / "_delta_log" / f"{version:020d}.json"
        made = [{"metaData": {"id": "r"}}] if not version else []
        written = [*made, *(actions or ({"add": {"path": "f", "dataChange": True}},))]
        file.write_text("\n".join(map(json.dumps, written)))
        at = (NOON + timedelta(hours=version)).timestamp()
        os.utime(file, (at, at))


@pytest.fixture
def method(tmp_path: Path, connect: Connect) -> Method:
    connect(tmp_path / "root", options={"heartbeat_interval": "100 ms", "heartbeat_timeout": "1 second"})
    return Method(tmp_path / "root")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "orders")


@pytest.fixture
def read_all(method: Method, table: Table) -> MadeJob:
    """A job that has read versions 0, 1 and 2, at checkpoint 3; they are all there is."""
    job = MadeJob(method.root, "orders", run="earlier")
    for _ in range(2):
        job.batch()
    assert job.batch() == 4
    for _ in range(4):
        table.commit()
    ended = RunOutcome(batches=3, stopped="the input was drained")
    job.beat(9, owner=EARLIER, at=1, ended=True, outcome=ended)
    return job


def run(method: Method, table: Table, **arguments: Any) -> Outcome:
    how = {name: arguments.pop(name) for name in ("run_id", "max_tries", "resumed") if name in arguments}
    made = operator(method, parameters={**PARAMETERS, "input": str(table.folder)}, **arguments)
    return run_task(made, **how)


def announced(told: Outcome) -> list[str | None]:
    return [asset.uri or asset.name for asset in told.message.task_outlets]


OUTLETS = [checkpoint_asset("orders"), Asset("s3://lake/totals")]


def test_nothing_new_ends_without_spark_and_wakes_nobody(
    method: Method, table: Table, read_all: MadeJob
) -> None:
    told = run(method, table, outlets=OUTLETS)
    assert told.state is TaskInstanceState.SUCCESS
    assert method.specs == []
    assert announced(told) == []
    result = told.xcoms["return_value"]
    assert (result["empty"], result["batches"], result["checkpoint"]) == (True, 0, 4)
    assert result["offsets"] == {"events": {"version": 3}}


def test_a_job_that_has_nothing_to_read_stays_fresh(method: Method, table: Table, read_all: MadeJob) -> None:
    before = Job(str(method.root), "orders").status().looked_at
    assert run(method, table).error is None
    after = Job(str(method.root), "orders").status()
    assert before == 1
    assert after.looked_at is not None
    assert after.looked_at > 1
    assert after.status == "IDLE"


def test_a_deferrable_run_that_has_nothing_to_do_ends_at_once(
    method: Method, table: Table, read_all: MadeJob
) -> None:
    told = run(method, table, deferrable=True, on_live="wait")
    assert told.state is TaskInstanceState.SUCCESS
    assert method.specs == []


def test_a_deferred_run_that_was_stopped_after_the_last_row_ends_without_another(
    method: Method, table: Table, read_all: MadeJob
) -> None:
    stopped = Handover(above=0, reattached=True, outcome=RunOutcome(batches=1, stopped=KILLED))
    told = run(method, table, deferrable=True, resumed=("resume", stopped.plain()))
    assert told.state is TaskInstanceState.SUCCESS
    assert method.specs == []


def test_an_empty_run_can_be_skipped(method: Method, table: Table, read_all: MadeJob) -> None:
    assert run(method, table, on_empty="skip").state is TaskInstanceState.SKIPPED


def test_a_new_commit_starts_a_driver_and_wakes_who_waits_for_it(
    method: Method, table: Table, read_all: MadeJob
) -> None:
    table.commit()
    told = run(method, table, outlets=OUTLETS)
    assert told.state is TaskInstanceState.SUCCESS
    assert len(method.specs) == 1
    assert announced(told) == ["stateflow://stateflow_default/orders", "s3://lake/totals"]
    assert {event["extra"]["checkpoint"] for event in told.message.outlet_events} == {6}


@pytest.mark.parametrize(
    "arguments",
    [
        {"final": True},
        {"parallelism": 3},
        {"on_live": "takeover"},
        {"trigger": "until-stopped"},
        {"trigger": "1 minute"},
    ],
)
def test_what_only_a_run_can_do_starts_one(
    method: Method, table: Table, read_all: MadeJob, arguments: dict[str, Any]
) -> None:
    run(method, table, **arguments)
    assert len(method.specs) == 1


def pending(job: MadeJob) -> None:
    job.batch(carried_out=False)
    job.beat(2, ended=True)


def lost(job: MadeJob) -> None:
    job.beat(10, owner=EARLIER)


def timer(job: MadeJob) -> None:
    """A processing-time timer of an hour ago."""
    decide = job.writer.decide

    def with_timer(record: Any) -> Any:
        operator = record.operators["balance"]
        shards = tuple(
            tuple(msgspec.structs.replace(shard, next_processing_timer=1) for shard in subtask)
            for subtask in operator.shards
        )
        operators = {"balance": msgspec.structs.replace(operator, shards=shards)}
        return decide(msgspec.structs.replace(record, operators=operators))

    job.writer.decide = with_timer  # type: ignore[method-assign]
    job.batch()
    job.beat(2, ended=True)


def restored(job: MadeJob) -> None:
    """Whoever has taken a job back wants to see it run."""
    decide, draft = job.writer.decide, Draft.continuing("restore", job.writer.parent)
    job.writer.complete(decide(draft), {})
    job.beat(2, ended=True)


@pytest.mark.parametrize("state", [pending, lost, timer, restored])
def test_a_job_that_needs_a_run_gets_one_without_input(
    method: Method, table: Table, read_all: MadeJob, state: Callable[[MadeJob], None]
) -> None:
    state(read_all)
    table.commit({"commitInfo": {}})
    run(method, table)
    assert len(method.specs) == 1


def test_a_pipeline_that_cannot_be_loaded_here_is_left_to_the_driver(
    method: Method, table: Table, read_all: MadeJob, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    told = run(method, table, pipeline=f"{broken}:orders")
    assert len(method.specs) == 1
    assert told.state is TaskInstanceState.SUCCESS


class Ending(Method):
    """Its driver finds nothing to do, and says why."""

    stopped = INPUT_DRAINED

    def launch(self, spec: Any) -> Any:
        self.specs.append(spec)
        job = MadeJob(self.root, spec.job, run=f"again-{len(self.specs)}")
        owner = Owner("r", dag_run=spec.dag_run, task=spec.task)
        ended = RunOutcome(stopped=self.stopped)
        job.beat(9, owner=owner, ended=True, outcome=ended)
        return Done()


class Behind(Ending):
    """The bound lies behind, as for sources that only Spark can read."""

    stopped = BOUND_BEHIND


def test_a_run_after_a_restore_is_enough(method: Method, table: Table, read_all: MadeJob) -> None:
    restored(read_all)
    method = Ending(method.root)
    for number in range(3):
        assert run(method, table, run_id=f"after-{number}").error is None
    assert len(method.specs) == 1


def test_a_pipeline_with_another_output_is_run(
    method: Method, table: Table, read_all: MadeJob, tmp_path: Path
) -> None:
    other = tmp_path / "other.py"
    other.write_text(ORDERS.read_text().replace('append("totals"', 'append("sums"'))
    run(method, table, pipeline=f"{other}:orders")
    assert len(method.specs) == 1


# Bounds


def test_an_interval_that_lies_behind_is_no_success(method: Method, table: Table, read_all: MadeJob) -> None:
    told = run(method, table, until=str(NOON + timedelta(hours=1)), retries=3, max_tries=3, outlets=OUTLETS)
    assert told.state is TaskInstanceState.FAILED
    assert method.specs == []
    for words in (
        "beyond until=2026-01-01 13:00",
        "events: version 3 read",
        "stateflow_recovery",
        "on_past_until",
    ):
        assert words in str(told.error)


def test_or_is_skipped_if_that_was_asked_for(method: Method, table: Table, read_all: MadeJob) -> None:
    told = run(method, table, until=str(NOON + timedelta(hours=1)), on_past_until="skip")
    assert told.state is TaskInstanceState.SKIPPED


def test_an_interval_without_commits_is_empty_and_well(
    method: Method, table: Table, read_all: MadeJob
) -> None:
    told = run(method, table, until=str(NOON + timedelta(hours=5)))
    assert told.state is TaskInstanceState.SUCCESS
    assert told.xcoms["return_value"]["stopped"] == "the bound was reached"
    assert method.specs == []


def test_a_first_run_whose_table_is_younger_than_its_interval_is_well(method: Method, table: Table) -> None:
    table.commit()
    told = run(method, table, until=str(NOON - timedelta(hours=1)), outlets=OUTLETS)
    assert told.state is TaskInstanceState.SUCCESS
    assert told.xcoms["return_value"]["checkpoint"] is None
    assert (method.specs, announced(told)) == ([], [])


def test_a_driver_that_finds_the_bound_behind_is_no_success_either(method: Method, table: Table) -> None:
    told = run(Behind(method.root), table, until="7")
    assert told.state is TaskInstanceState.FAILED
    assert "until=7" in str(told.error)


MINE = Owner("r", dag_run="orders_dag/scheduled__2026-01-31", task="run")


class OfTask(MadeJob):
    """Its records are of the task that these tests run."""

    def owner(self, run: str = "run") -> Owner:
        return MINE


def test_a_retry_whose_earlier_try_has_read_the_interval_is_well(
    method: Method, table: Table, read_all: MadeJob
) -> None:
    """Another run has gone on since, so that the interval lies behind; it was read, and nobody has been told."""
    scheduled.begin(read_all.store, read_all.layout, MINE.dag_run, "run", 4, read_all.clock)
    OfTask(str(method.root), "orders").batch()
    MadeJob(method.root, "orders", run="other").batch()
    head = job_head(method)
    for _ in range(head - 4):
        table.commit()
    told = run(method, table, until=str(NOON + timedelta(hours=4)), outlets=OUTLETS)
    assert told.state is TaskInstanceState.SUCCESS
    assert len(announced(told)) == 2
    # Its result is that of the task, not of a try that found nothing left.
    result = told.xcoms["return_value"]
    assert (result["batches"], result["rows"], result["empty"]) == (1, 100, False)


@pytest.mark.parametrize("stopped", [INPUT_DRAINED, "a stop request by ann", KILLED, INTERRUPTED])
def test_a_run_that_ended_well_while_its_worker_was_dead_is_reported_and_not_repeated(
    method: Method, table: Table, read_all: MadeJob, stopped: str
) -> None:
    for _ in range(3):  # the run has not read the last one
        table.commit()
    scheduled.begin(read_all.store, read_all.layout, MINE.dag_run, "run", 4, read_all.clock)
    earlier = OfTask(str(method.root), "orders")
    ended = RunOutcome(batches=1, rows=100, checkpoint=earlier.batch(), stopped=stopped)
    earlier.beat(9, owner=MINE, at=1, ended=True, outcome=ended)
    before = Job(str(method.root), "orders").status().looked_at
    told = run(method, table, outlets=OUTLETS)
    assert told.state is TaskInstanceState.SUCCESS
    done = stopped not in (KILLED, INTERRUPTED)
    assert len(method.specs) == (0 if done else 1)
    if done:
        result = told.xcoms["return_value"]
        assert (result["stopped"], result["batches"], result["rows"]) == (stopped, 1, 100)
        assert len(announced(told)) == 2
        assert Job(str(method.root), "orders").status().looked_at == before, "nobody has looked since"


def test_a_task_that_was_cleared_does_not_take_the_run_from_before_for_its_own(
    method: Method, table: Table, read_all: MadeJob
) -> None:
    """Its worker dies before the driver has claimed the job."""
    for _ in range(3):
        table.commit()
    assert run(method, table, run_id="scheduled__2026-01-31").error is None
    mark = scheduled.find(read_all.store, read_all.layout, MINE.dag_run, "run")
    assert mark is not None
    scheduled.reopen(read_all.store, read_all.layout, mark, job_head(method), mark.began_from)
    assert run(method, table, run_id="scheduled__2026-01-31").error is None
    assert len(method.specs) == 2


def job_head(method: Method) -> int:
    head = Job(str(method.root), "orders").log().head
    assert isinstance(head, Record)
    return head.slot


# Nothing after the commit fails a task


class Nonsense:
    """An outlet that Airflow knows nothing of."""


def test_an_alias_gets_the_job_s_asset_and_other_outlets_do_no_harm(method: Method, table: Table) -> None:
    alias = AssetAlias("whatever-runs")
    told = run(method, table, outlets=[alias, Nonsense(), "s3://lake/text", Asset.ref(name="totals")])
    assert told.state is TaskInstanceState.SUCCESS
    events = told.message.outlet_events
    [added] = [event for event in events if event.get("source_alias_name") == "whatever-runs"]
    assert added["dest_asset_key"]["uri"] == "stateflow://stateflow_default/orders"
    assert added["extra"]["checkpoint"] == 2


@pytest.mark.parametrize("broken", ["status", "checkpoints"])
def test_a_store_that_goes_away_after_the_commit_makes_no_task_red(
    method: Method, table: Table, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def away(*_: object, **__: object) -> None:
        raise UnavailableError("the store is away")

    monkeypatch.setattr(Job, broken, away)
    monkeypatch.setattr(scheduled, "finish", away)
    told = run(method, table, outlets=OUTLETS)
    assert told.state is TaskInstanceState.SUCCESS
    assert len(announced(told)) == 2
    assert told.xcoms["return_value"]["rows"] == 5


def test_events_keep_what_the_dag_gave_them(method: Method, table: Table) -> None:
    told = run(method, table, outlets=OUTLETS)
    assert [event["extra"]["rows"] for event in told.message.outlet_events] == [5, 5]


# Tables as assets


@pytest.mark.parametrize(
    ("target", "uri"),
    [
        ("s3a://lake/totals/", "s3://lake/totals"),
        ("gs://lake/totals", "gs://lake/totals"),
        ("/data/totals", "file:///data/totals"),
        ("file:/data/totals", "file:///data/totals"),
        ("file:///data/totals", "file:///data/totals"),
        ("totals", None),
    ],
)
def test_a_table_is_an_asset_under_the_name_that_others_give_it(target: str, uri: str | None) -> None:
    asset = table_asset(target)
    assert (asset.uri if asset else None) == uri


def test_a_table_of_a_catalog_is_an_asset_under_its_name() -> None:
    asset = table_asset("/data/totals", "spark_catalog.sales.totals")
    assert asset == Asset("spark_catalog.sales.totals")


def test_a_table_that_a_run_writes_gets_an_event_that_others_can_wait_for(
    method: Method, table: Table
) -> None:
    told = run(method, table, table_assets=True, outlets=[checkpoint_asset("orders")])
    assert told.state is TaskInstanceState.SUCCESS
    [added] = [e for e in told.message.outlet_events if e.get("source_alias_name")]
    assert added["source_alias_name"] == "stateflow/stateflow_default/orders/tables"
    assert added["dest_asset_key"]["uri"] == "file:///data/totals"
    assert (added["extra"]["sink"], added["extra"]["checkpoint"], added["extra"]["rows"]) == ("totals", 2, 5)


def test_a_table_that_was_not_written_gets_none(method: Method, table: Table, read_all: MadeJob) -> None:
    told = run(method, table, table_assets=True)
    assert (told.message.outlet_events, announced(told)) == ([], [])


def test_a_run_that_only_delivers_what_an_earlier_one_has_decided_is_not_empty(
    method: Method, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def carry_out(job: MadeJob, record: Record, *others: Any) -> dict[str, str]:
        return dict.fromkeys(record.sinks, "committed")

    monkeypatch.setattr(MadeJob, "carry_out", carry_out)
    totals = Table(tmp_path / "totals")
    totals.commit()
    made = MadeJob(method.root, "orders", run="earlier")
    made.batch(target=str(totals.folder))
    slot = made.batch(target=str(totals.folder), carried_out=False)
    made.beat(2, ended=True)
    method.batches = 0
    method.work = lambda job: written(totals, Job(str(method.root), "orders"), slot, "2026-01-02")
    outlets = [Asset(name="totals", uri=f"file://{totals.folder}"), checkpoint_asset("orders")]
    told = run(method, table, outlets=outlets, partition_events=True, on_empty="skip")
    assert told.state is TaskInstanceState.SUCCESS
    assert not told.xcoms["return_value"]["empty"]
    assert partitions(told, totals) == ["2026-01-02"]
    # The next one delivers nothing.
    method.work = lambda job: None
    told = run(method, table, outlets=outlets, partition_events=True, on_empty="skip", run_id="scheduled__2")
    assert told.state is TaskInstanceState.SKIPPED


@pytest.mark.parametrize("stopped", [INPUT_DRAINED, KILLED, INTERRUPTED, None])
def test_a_run_that_has_waited_for_another_one_and_found_nothing_is_empty_if_that_one_tells_itself(
    method: Method, table: Table, tmp_path: Path, stopped: str | None
) -> None:
    """A driver whose task was killed ends well, too, and nobody has told of what it did."""
    well = stopped == INPUT_DRAINED
    totals = Table(tmp_path / "totals")
    totals.commit()
    MadeJob(method.root, "orders", run="first").batch(target=str(totals.folder))

    def other(job: MadeJob) -> None:
        """Works, and ends, while the task waits."""
        made = MadeJob(method.root, "orders", run="other")
        made.writer.owner = EARLIER
        slot = made.batch(target=str(totals.folder))
        written(totals, Job(str(method.root), "orders"), slot, "2026-01-02")
        ended = RunOutcome(batches=1, stopped=stopped) if stopped else None
        made.beat(9, owner=EARLIER, epoch=made.writer.epoch, ended=ended is not None, outcome=ended)

    method.batches, method.work = 0, other
    outlets = [Asset(name="totals", uri=f"file://{totals.folder}"), checkpoint_asset("orders")]
    told = run(method, table, outlets=outlets, partition_events=True, on_empty="skip")
    assert told.state is (TaskInstanceState.SKIPPED if well else TaskInstanceState.SUCCESS)
    assert well or partitions(told, totals) == ["2026-01-02"]


# Partitions of tables


def written(table: Table, job: Job, slot: int, *days: str | None, **more: Any) -> None:
    """A commit of the sink that changes these partitions."""
    files = [
        {"add": {"path": str(day), "partitionValues": {"day": day, **more}, "dataChange": True}}
        for day in days
    ]
    txn = {"txn": {"appId": f"stateflow/{job.status().uuid}/totals", "version": slot}}
    table.commit(txn, *files)


def partitions(told: Outcome, table: Table) -> list[str | None]:
    uri = f"file://{table.folder}"
    events = [e for e in told.message.outlet_events if e["dest_asset_key"]["uri"] == uri]
    return sorted(str(event.get("partition_key")) for event in events)


def test_an_outlet_that_is_a_table_gets_an_event_for_each_partition_of_the_run(
    method: Method, table: Table, tmp_path: Path
) -> None:
    totals = Table(tmp_path / "totals")
    totals.commit()
    made = MadeJob(method.root, "orders", run="earlier")
    made.batch(target=str(totals.folder))
    written(totals, Job(str(method.root), "orders"), 2, "2026-01-01")
    table.commit()

    def work(job: MadeJob) -> None:
        for days in (("2026-01-02", "2026-01-03"), ("2026-01-03", None)):
            slot = job.batch(target=str(totals.folder))
            written(totals, Job(str(method.root), "orders"), slot, *days)
        # Files that are only rewritten, and another writer's, are no news.
        totals.commit({"add": {"path": "o", "partitionValues": {"day": "2026-01-09"}, "dataChange": False}})
        totals.commit({"add": {"path": "w", "partitionValues": {"day": "2026-01-08"}, "dataChange": True}})

    method.work = work
    outlets = [Asset(name="totals", uri=f"file://{totals.folder}"), checkpoint_asset("orders")]
    told = run(method, table, outlets=outlets, partition_events=True)
    assert told.state is TaskInstanceState.SUCCESS
    assert partitions(told, totals) == ["2026-01-02", "2026-01-03", "__HIVE_DEFAULT_PARTITION__"]
    facts = [e["extra"]["rows"] for e in told.message.outlet_events if e.get("partition_key") == "2026-01-02"]
    assert facts == [5]
    # Without being asked for it is the one event that it has always been.
    table.commit()
    assert partitions(run(method, table, outlets=outlets, run_id="scheduled__2"), totals) == ["None"]


@pytest.mark.parametrize("place", ["log", "checksum"])
def test_a_partition_is_named_by_the_columns_of_the_table_and_not_by_those_of_its_files(
    method: Method, table: Table, tmp_path: Path, place: str
) -> None:
    totals = Table(tmp_path / "totals")
    mapped = {"hour": "col-2", "day": "day", "v": "col-3"}
    fields = [
        {"name": name, "metadata": {"delta.columnMapping.physicalName": file}}
        for name, file in mapped.items()
    ]
    metadata = {"schemaString": json.dumps({"fields": fields}), "partitionColumns": ["hour", "day"]}
    totals.commit({"metaData": {"partitionColumns": ["day", "hour"]}})
    if place == "log":
        totals.commit({"metaData": metadata})

    def work(job: MadeJob) -> None:
        slot = job.batch(target=str(totals.folder))
        written(totals, Job(str(method.root), "orders"), slot, "2026-01-02", **{"col-2": "7"})
        if place == "checksum":
            newest = f"{len(list((totals.folder / '_delta_log').iterdir())) - 1:020d}.crc"
            (totals.folder / "_delta_log" / newest).write_text(json.dumps({"metadata": metadata}))

    method.work = work
    table.commit()
    told = run(method, table, outlets=[Asset(f"file://{totals.folder}")], partition_events=True)
    assert partitions(told, totals) == ["hour=7/day=2026-01-02"]


def test_commits_that_the_log_has_lost_are_counted(
    method: Method, table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    totals = Table(tmp_path / "totals")
    totals.commit()

    def work(job: MadeJob) -> None:
        for day in ("2026-01-01", "2026-01-02", "2026-01-03"):
            written(totals, Job(str(method.root), "orders"), job.batch(target=str(totals.folder)), day)
        for version in (0, 1, 2):
            (totals.folder / "_delta_log" / f"{version:020d}.json").unlink()

    method.work = work
    table.commit()
    outlets = [Asset(f"file://{totals.folder}")]
    told = run(method, table, outlets=outlets, partition_events=True)
    assert partitions(told, totals) == ["2026-01-03"]
    assert "lack the partitions of 2 of the run's commits (slots 2, 3)" in caplog.text


def test_a_table_whose_partitions_are_not_known_gets_its_event_and_the_log_says_so(
    method: Method, table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    totals = Table(tmp_path / "totals")

    def work(job: MadeJob) -> None:
        slot = job.batch(target=str(totals.folder))
        txn = {"appId": f"stateflow/{Job(str(method.root), 'orders').status().uuid}/totals", "version": slot}
        totals.commit({"txn": txn}, {"add": {"path": "f", "partitionValues": {}, "dataChange": True}})

    method.work = work
    table.commit()
    outlets = [Asset(f"file://{totals.folder}")]
    told = run(method, table, outlets=outlets, partition_events=True)
    assert partitions(told, totals) == ["None"]
    assert "has no partitions, so its event names none" in caplog.text
    method.work = lambda job: job.batch(target="s3a://lake/totals")
    for _ in range(3):
        table.commit()
    told = run(
        method, table, outlets=[Asset("s3://lake/totals")], partition_events=True, run_id="scheduled__2"
    )
    assert [e.get("partition_key") for e in told.message.outlet_events] == [None]
    assert (
        "names no partition: the log of Delta table s3a://lake/totals cannot be read from here" in caplog.text
    )
