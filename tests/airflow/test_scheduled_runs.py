"""Runs that a real Airflow begins by itself: days, tables that are awaited, tasks without a slot; and what happens to a driver when its
task, its worker and the scheduler go away."""

from __future__ import annotations

import signal
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import psutil
import pytest

from demo.table import read
from stateflow.checkpoint.control import RunOutcome, read_heartbeat
from stateflow.driver.processes import DriverFolder
from tests.airflow.server import (
    AirflowClient,
    AirflowServer,
    RunOf,
)
from tests.airflow.stage import PATIENCE, ROWS, Stage, driver_of, gone, signal_driver, until
from tests.airflow.story import SECRET, refusal, succeeded
from tests.long_form import IN_TEST_AIRFLOW

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(1800),
]  # Airflow and starts of Spark, on a machine that may be busy


def test_a_day_that_failed_goes_first_when_the_one_that_waits_for_it_is_failed_and_cleared(
    client: AirflowClient, folder: Path
) -> None:
    """As docs/airflow.md says of `max_active_runs=1` with `depends_on_past=True`."""

    def runs() -> dict[str, str]:
        found = client.call("GET", "/api/v2/dags/days/dagRuns", order_by="run_after")["dag_runs"]
        return {run["dag_run_id"]: run["state"] for run in found}

    client.unpause("days")
    until(lambda: list(runs().values()) == ["success", "failed", "running"], "the second day to fail")
    _, failed, waiting = (RunOf("days", run_id) for run_id in runs())
    (folder / "mended").touch()
    client.clear(failed)
    assert client.state(failed) == "queued"
    client.call("PATCH", waiting.path, {"state": "failed"})
    client.clear(waiting)
    assert [client.await_run(run, patience=PATIENCE) for run in (failed, waiting)] == ["success", "success"]
    assert (folder / "days").read_text().split() == ["0", "1", "2"]


# Days that are processed again, DAGs that wait for a table, tasks that hold no slot


def backfilled(client: AirflowClient, day: date, **conf: str) -> RunOf:
    """One day of `daily_totals`, as a person asks for it. Airflow lets a DAG have one backfill at a time."""
    at = f"{day}T00:00:00Z"
    asked = {"dag_id": "daily_totals", "from_date": at, "to_date": at, "dag_run_conf": conf}
    until(
        lambda: client.ask("POST", "/api/v2/backfills", asked).status_code < 300,
        f"a backfill of {day} to begin",
    )
    return only_run(client, "daily_totals", "backfill", logical_date_gte=at, logical_date_lte=at)


def only_run(client: AirflowClient, dag_id: str, kind: str, **which: str) -> RunOf:
    """The DAG's one run of a kind, which Airflow makes by itself."""
    [run] = await_runs(client, dag_id, kind, 1, **which)
    return run


def await_runs(client: AirflowClient, dag_id: str, kind: str, count: int, **which: str) -> list[RunOf]:
    until(lambda: len(runs_of(client, dag_id, kind, **which)) >= count, f"{count} {kind} runs of {dag_id}")
    return runs_of(client, dag_id, kind, **which)


def runs_of(client: AirflowClient, dag_id: str, kind: str, **which: str) -> list[RunOf]:
    answer = client.call("GET", f"/api/v2/dags/{dag_id}/dagRuns", run_type=kind, **which)
    return [RunOf(dag_id, str(each["dag_run_id"])) for each in answer["dag_runs"]]


def test_a_backfill_gives_way_to_the_scheduled_run_and_says_that_its_day_was_read(
    client: AirflowClient, folder: Path, today: date
) -> None:
    stage = Stage(folder, "daily")
    stage.orders.add(2, ROWS)
    for version, days in enumerate((4, 1)):  # at noon
        stage.age(version, datetime.combine(today - timedelta(days), time(12), UTC))
    stage.shut()
    client.unpause("daily_totals")
    scheduled = only_run(client, "daily_totals", "scheduled")
    stage.await_inside()

    beside = backfilled(client, today - timedelta(3), on_past_until="skip")
    client.await_task(beside, "run", states=["up_for_reschedule"])
    alive = f"job 'daily' is run by DAG run 'daily_totals/{scheduled.run_id}'"
    assert alive in client.log(beside, "run", 1)
    stage.open()
    succeeded(client, scheduled)
    succeeded(client, beside)
    assert client.tries(beside, "run") == ["skipped"], "giving way uses no try"

    read = backfilled(client, today - timedelta(2))
    sentence = refusal(client, read, "run")
    assert f"job 'daily' was read beyond until={today - timedelta(1)} 00:00:00+00:00" in sentence
    assert "stateflow_reprocess" in sentence
    assert client.tries(read, "run") == ["failed"]
    assert client.tries(scheduled, "run") == ["success"]
    assert stage.job.log().newest_epoch == 1, "one driver did it all"
    assert stage.verdict().right


def test_a_new_job_s_days_are_read_one_by_one_and_no_run_overtakes_another(
    client: AirflowClient, folder: Path, today: date
) -> None:
    """What a backfill of a new job loses to the DAG's first scheduled run, `catchup` and `depends_on_past` do in order."""
    stage = Stage(folder, "first_day")
    stage.orders.add(3, ROWS)
    for version, days in enumerate((2, 1)):  # at noon; the third commit is today's
        stage.age(version, datetime.combine(today - timedelta(days), time(12), UTC))
    client.unpause("from_the_first_day")
    runs = await_runs(client, "from_the_first_day", "scheduled", 2)
    for run in runs:
        succeeded(client, run)
        assert client.tries(run, "run") == ["success"]
        assert client.xcom(run, "run")["rows"] == ROWS, "its own day, and no other"
    assert len(runs) == 2
    assert stage.job.log().newest_epoch == 2


def test_a_schedule_of_plain_cron_has_intervals_without_length(client: AirflowClient) -> None:
    client.unpause("plain_cron")
    document = client.call("GET", only_run(client, "plain_cron", "scheduled").path)
    assert document["data_interval_start"] == document["data_interval_end"] == document["logical_date"]


def test_what_spark_writes_to_stderr_in_the_task_s_own_process_is_no_error(
    client: AirflowClient, folder: Path
) -> None:
    stage = Stage(folder, "inside")
    stage.orders.add(1, ROWS)
    run = succeeded(client, client.trigger("inside"))
    log = client.log(run, "run")
    assert "WARN" in log, "Spark has said something"
    assert [line for line in log.splitlines() if line.startswith("ERROR")] == []
    assert stage.verdict().right


def test_who_waits_for_a_table_runs_once_for_each_run_that_wrote_to_it(
    client: AirflowClient, folder: Path
) -> None:
    stage = Stage(folder, "chain")
    waiting = ("consumed", "consumed_by_alias")
    for dag_id in waiting:
        client.unpause(dag_id)
    wakings: list[RunOf] = []
    for files in (1, 0, 1):
        stage.orders.add(files, ROWS)
        produced = client.trigger("produced")
        succeeded(client, produced)
        assert client.tries(produced, "run") == ["success"]
        assert client.xcom(produced, "run")["empty"] is (not files)
        if files:
            wakings.append(produced)
            for dag_id in waiting:
                await_runs(client, dag_id, "asset_triggered", len(wakings))
    woken = {dag_id: runs_of(client, dag_id, "asset_triggered") for dag_id in waiting}
    # Airflow cannot answer for an event (500) while a run that it woke is queued: that run has no start yet.
    for run in (run for runs in woken.values() for run in runs):
        succeeded(client, run)
    for runs in woken.values():
        assert len(runs) == len(wakings), "an empty run wakes nobody"
        events = [client.call("GET", f"{run.path}/upstreamAssetEvents")["asset_events"] for run in runs]
        assert sorted(event["source_run_id"] for [event] in events) == sorted(run.run_id for run in wakings)
        assert [event["extra"]["rows"] for [event] in events] == [ROWS, ROWS]
    assert stage.job.log().newest_epoch == len(wakings), "an empty run starts no driver"
    assert stage.verdict().right


def test_a_deferred_task_waits_for_a_busy_job_without_a_slot_and_goes_on_when_it_is_idle(
    server: AirflowServer, client: AirflowClient, folder: Path
) -> None:
    """Also when the triggerer dies while both tasks are with it."""
    stage = Stage(folder, "patient")
    stage.orders.add(1, ROWS)
    stage.shut()
    first = client.trigger("patient")
    client.await_task(first, "run", states=["deferred"])
    stage.await_inside()
    stage.orders.add(1, ROWS)
    second = client.trigger("patient")
    client.await_task(second, "run", states=["deferred"])
    assert f"is run by DAG run 'patient/{first.run_id}'" in client.log(second, "run")
    assert "waiting for its end in the triggerer" in client.log(second, "run")
    server.restart("triggerer", kill=True)
    stage.open()
    for run in (first, second):
        succeeded(client, run)
        assert client.tries(run, "run") == ["success"]
    assert {record.epoch for record in stage.checkpoints()} == {1, 2}
    assert stage.job.log().newest_epoch == 2, "each task has started one driver"
    assert stage.verdict().right


def test_a_pipeline_in_a_dag_s_own_file_runs_under_the_supervisor_of_a_task(
    client: AirflowClient, folder: Path
) -> None:
    """Airflow's supervisor makes a task's environment, in which a DAG's file could not be imported again."""
    stage = Stage(folder, "ledger")
    stage.orders.add(1, ROWS)
    plain = succeeded(client, client.trigger("ledger"))
    assert client.tries(plain, "ledger") == ["success"]
    stage.orders.add(1, ROWS)
    secretly = succeeded(client, client.trigger("ledger_with_secret"))
    assert client.xcom(secretly, "ledger")["rows"] == ROWS, "it goes on where the other run ended"
    assert stage.verdict().right
    lengths = [row["secret"] for row in read(folder / "ledger" / "totals")]
    assert set(lengths) == {0, len(SECRET)}, "the second run's driver was given one"

    shown = client.task(secretly, "ledger")["rendered_fields"]
    assert "'LEDGER_TOKEN': '***'" in shown["launcher"]
    root = str(folder / "checkpoints")
    drivers = [
        DriverFolder("ledger", f"{run.dag_id}/{run.run_id}", "ledger", root) for run in (plain, secretly)
    ]
    [_, driver] = [found.folder for each in drivers if (found := each.newest()) is not None]
    kept = [*folder.joinpath("checkpoints").rglob("*"), *driver.rglob("*")]
    places = {str(path): path.read_bytes() for path in kept if path.is_file()}
    places |= {"page": str(shown).encode(), "log": client.log(secretly, "ledger").encode()}
    assert [place for place, text in places.items() if SECRET.encode() in text] == []


# Who goes away, and what becomes of the driver


def gated_run(client: AirflowClient, stage: Stage, on_live: str = "refuse") -> RunOf:
    return client.trigger("gated_runs", {"job": stage.name, "on_live": on_live})


def outcome_of(stage: Stage, epoch: int) -> RunOutcome | None:
    beat = read_heartbeat(stage.job.store, stage.job.layout, epoch)
    return beat.outcome if beat is not None else None


def kill_worker(client: AirflowClient, run: RunOf) -> None:
    """Airflow's worker process and the task's below it, both by SIGKILL."""
    task = psutil.Process(int(client.task(run, "run")["pid"]))
    worker = task.parent()
    assert worker is not None
    assert "airflow worker" in " ".join(worker.cmdline())
    for process in (worker, task):
        process.kill()


@IN_TEST_AIRFLOW
def test_two_runs_at_once_and_a_task_that_is_marked_failed_while_its_driver_lives(
    client: AirflowClient, folder: Path
) -> None:
    stage = Stage(folder, "pair")
    stage.orders.add(2, ROWS)
    stage.shut()
    first = gated_run(client, stage)
    stage.await_inside()
    driver = driver_of(stage.job)

    refused, second = gated_run(client, stage), gated_run(client, stage, on_live="wait")
    client.await_task(refused, "run", states=["up_for_reschedule"])
    alive = f"job 'pair' is run by DAG run 'gated_runs/{first.run_id}'"
    assert alive in client.log(refused, "run", 1)
    until(lambda: "waiting for its end" in client.log(second, "run"), "the second run to wait")
    assert alive in client.log(second, "run")

    client.mark(first, "run", "failed")
    until(lambda: "was killed" in client.log(first, "run"), "the task to hear of it")
    assert not gone(driver), "its batch is not over"
    stage.open()
    # At once: what the first run says of its end goes with the collection of the second.
    until(lambda: outcome_of(stage, 1) is not None, "the first run to say how it ended")
    assert (ended := outcome_of(stage, 1)) is not None
    assert ended.stopped == "its task was killed"
    succeeded(client, second)
    assert gone(driver)
    assert client.state(first) == "failed"
    succeeded(client, refused)
    assert client.tries(refused, "run") == ["success"], "giving way uses no try"
    assert [record.epoch for record in stage.checkpoints()] == [1, 1, 2]
    assert stage.verdict().right


@IN_TEST_AIRFLOW
def test_the_scheduler_dies_and_then_a_worker_and_the_driver_is_gone_on_with(
    server: AirflowServer, client: AirflowClient, folder: Path
) -> None:
    stage = Stage(folder, "orphan")
    stage.orders.add(2, ROWS)
    stage.shut()
    run = gated_run(client, stage)
    stage.await_inside()
    driver = driver_of(stage.job)
    server.restart("scheduler", kill=True)
    kill_worker(client, run)
    client.await_task(run, "run", states=["running"], attempt=2)
    until(lambda: "going on with it" in client.log(run, "run"), "the retry to find the driver")
    assert driver_of(stage.job).pid == driver.pid
    stage.open()
    succeeded(client, run)
    assert stage.job.log().newest_epoch == 1, "one driver did it all"
    assert gone(driver)
    assert stage.verdict().right


@IN_TEST_AIRFLOW
def test_a_retry_on_another_host_fences_the_zombie_that_still_writes(
    client: AirflowClient, folder: Path
) -> None:
    stage = Stage(folder, "zombie")
    stage.orders.add(2, ROWS)
    stage.shut()
    run = gated_run(client, stage)
    stage.await_inside()
    driver = driver_of(stage.job)
    # Another host sees neither the process nor its folder, only a heartbeat that stands still.
    kept = DriverFolder("zombie", f"gated_runs/{run.run_id}", "run", str(folder / "checkpoints")).newest()
    assert kept is not None
    hidden = kept.folder.rename(folder / "elsewhere")
    signal_driver(driver, signal.SIGSTOP)
    kill_worker(client, run)
    stage.open()
    try:
        succeeded(client, run)
        assert not gone(driver)
        before = stage.verdict()
    finally:
        signal_driver(driver, signal.SIGCONT)
    until(lambda: gone(driver), "the zombie to notice")
    output = (hidden / "output.log").read_text()
    assert "was taken over" in output
    assert stage.job.log().newest_epoch == 2
    assert before.right
    assert stage.verdict() == before


@IN_TEST_AIRFLOW
def test_a_recovery_takes_whoever_has_read_the_output_back_with_it(
    server: AirflowServer, client: AirflowClient, folder: Path
) -> None:
    stage = Stage(folder, "gated")
    reader = stage.job.beside("sums")

    def rows() -> list[list[str]]:
        return [sorted(map(str, read(folder / "gated" / name))) for name in ("totals", "sums")]

    def both_run() -> None:
        stage.orders.add(1, ROWS)
        succeeded(client, gated_run(client, stage))
        succeeded(client, client.trigger("sums"))

    both_run()
    slot, back_to = stage.checkpoints()[-1].slot, reader.checkpoints()[-1].slot
    both_run()
    forward = rows()
    asked = {"job": "gated", "origin": f"checkpoint:{slot}", "rewind_sinks": True, "with_readers": True}
    back = client.trigger("stateflow_recovery", asked)
    body = client.await_question(back, "approve", PATIENCE)["body"]
    assert "together with the jobs that have read what this undoes" in body
    assert f"| `sums` | `checkpoint:{back_to}` |" in body
    assert "*Approve* stops the drivers of gated, sums" in body
    server.client("second").answer(back, "approve", "Approve")
    succeeded(client, back)
    assert sorted(client.xcom(back, "restore")["records"]) == ["gated", "sums"]
    for dag_id in ("gated_runs", "sums"):
        succeeded(client, client.newest_run(dag_id))
    succeeded(client, client.trigger("sums"))
    assert rows() == forward
    assert stage.verdict().right
    assert [job.status().timeline for job in (stage.job, reader)] == [2, 2]
    for job in (stage.job, reader):
        assert [name.partition("-manual")[0] for name in job.status().tags] == ["before-recovery"]
