"""The whole story: a run, a savepoint, kill -9 in the middle of a batch, Airflow's retry, and the recovery runbook."""

from __future__ import annotations

import json
from pathlib import Path

from demo.crash import kill_in_a_batch
from demo.table import Orders, compared
from stateflow.jobs.job import Job
from tests.airflow.server import AirflowClient, RunOf
from tests.airflow.stage import PATIENCE, ROWS

SECRET = "a-token-of-the-ledger"


def succeeded(client: AirflowClient, run: RunOf) -> RunOf:
    assert client.await_run(run, patience=PATIENCE) == "success", client.described(run)
    return run


# What cannot be done is said in a sentence, and nothing changes


def refusal(client: AirflowClient, run: RunOf, task_id: str, patience: float = PATIENCE) -> str:
    """What a task that failed says, in its last try: one line."""
    assert client.await_run(run, patience=patience) == "failed", client.described(run)
    lines = client.log(run, task_id).splitlines()
    sentences = [line for line in lines if line.startswith("Airflow") and "Exception: " in line]
    assert sentences, client.log(run, task_id)
    assert "Traceback" not in client.log(run, task_id)
    return sentences[-1].partition(": ")[2]


def whole_story(client: AirflowClient, approver: AirflowClient, folder: Path) -> None:
    """Told through Airflow's REST API; `folder` is the one that the server was given."""
    job = Job(str(folder / "checkpoints"), "orders")
    orders = Orders(folder / "orders")
    totals = folder / "totals"
    orders.add(2, ROWS)
    first = succeeded(client, client.trigger("stateflow_orders"))
    told = client.xcom(first, "run")
    assert (told["job"], told["rows"], told["checkpoint"]) == ("orders", 2 * ROWS, job.checkpoints()[-1].slot)

    kept = client.trigger("stateflow_savepoint", {"job": "orders", "note": "before the crash"})
    succeeded(client, kept)
    assert Path(client.xcom(kept, "savepoint")["savepoint"].removeprefix("file://")).is_dir()

    orders.add(4, ROWS)
    crashed = client.trigger("stateflow_orders")
    killed = kill_in_a_batch(job, above=job.log().newest_epoch, batches=1, patience=PATIENCE)
    succeeded(client, crashed)
    assert client.tries(crashed, "run") == ["failed", "success"]
    assert "the driver was killed (signal 9)" in client.log(crashed, "run", 1)
    assert compared(orders.folder, totals).right
    by = {record.slot: record.owner.dag_run for record in job.checkpoints()}
    assert by[max(by)] == f"stateflow_orders/{crashed.run_id}"
    assert killed.checkpoint < max(by)

    before = job.log().decided
    assert before is not None
    origin = f"checkpoint:{job.checkpoints()[0].slot}"
    back = client.trigger(
        "stateflow_recovery",
        {"job": "orders", "origin": origin, "rewind_sinks": True, "note": "for a test"},
    )
    question = client.await_question(back, "approve", PATIENCE)
    assert question["subject"].startswith(f"Restore job orders from {origin}? Plan ")
    assert "totals" in question["body"], "the plan says what becomes of the output"
    assert job.log().decided == before, "nothing is touched before it is approved"
    approver.answer(back, "approve", "Approve")
    succeeded(client, back)
    again = client.newest_run("stateflow_orders")
    succeeded(client, again)
    verdict = compared(orders.folder, totals)
    assert verdict.right
    assert verdict.orders == 6 * ROWS
    assert job.status().timeline == before.timeline + 1
    commits = [
        json.loads(line) for path in sorted((totals / "_delta_log").glob("*.json")) for line in path.open()
    ]
    assert "RESTORE" in [c["commitInfo"]["operation"] for c in commits if "commitInfo" in c]
