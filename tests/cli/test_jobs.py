"""jobs, show and checkpoints: what there is, for people and for programs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

import stateflow as sf
from stateflow.checkpoint.control import RunOutcome
from stateflow.checkpoint.process import this_process
from stateflow.checkpoint.processes import identity_of_this_process, process_start
from stateflow.format.instants import END_OF_TIME
from stateflow.format.records import ExpiryShare, SchemaVersion
from tests.cli.conftest import Command
from tests.jobs.made import OFFSET, MadeJob, made_job
from tests.jobs.operators import operator_of
from tests.jobs.queried import QueriedJob, entries_of, filled


def test_jobs_lists_every_job_with_its_state(command: Command, root: Path) -> None:
    made_job(root, "orders", batches=2)
    running = made_job(root, "clicks", batches=1, ended=False)
    running.beat(2, at=time.time_ns() // 1000)
    said = command("jobs", "--checkpoint-dir", root, "-o", "json")
    assert said.code == 0
    assert said.json["root"] == str(root)
    clicks, orders = said.json["jobs"]
    assert clicks["name"] == "clicks"
    assert clicks["status"] == "RUNNING"
    assert orders == {
        "name": "orders",
        "status": "IDLE",
        "epoch": 1,
        "head": 3,
        "pending": [],
        "timeline": 1,
        "state_size": 20,
        "watermark": None,
        "health": "ok",
        "reason": orders["reason"],
        "numberOfCompletedCheckpoints": 2,
        "numberOfInProgressCheckpoints": 0,
        "numberOfFailedCheckpoints": 0,
        "lastCheckpointId": 3,
        "lastCheckpointDuration": orders["lastCheckpointDuration"],
        "lastCheckpointSize": 10,
        "lastCheckpointFullSize": 20,
        "lastCheckpointRestoreTimestamp": None,
    }
    text = command("jobs", "--checkpoint-dir", root).out
    assert "orders" in text
    assert "RUNNING" in text


def test_a_job_whose_last_run_failed_is_not_well(command: Command, root: Path) -> None:
    job = made_job(root, "orders", batches=1)
    failure = RunOutcome(exit_code=7, error="the table is gone")
    job.beat(9, owner=this_process(), at=1, ended=True, outcome=failure)
    sentence = "job 'orders' failed in its last run (the table is gone): start it again when that is settled"
    [listed] = command("jobs", "--checkpoint-dir", root, "-o", "json").json["jobs"]
    assert (listed["health"], listed["reason"]) == ("failed", sentence)
    text = command("jobs", "--checkpoint-dir", root).out
    assert text.splitlines()[-1] == sentence
    shown = command("show", "orders", "--checkpoint-dir", root, "-o", "json").json
    assert (shown["health"], shown["reason"]) == ("failed", sentence)
    assert f"failed: {sentence}" in " ".join(command("show", "orders", "--checkpoint-dir", root).out.split())


def test_show_names_the_warm_host_of_the_newest_run(command: Command, root: Path) -> None:
    job = made_job(root, "orders", batches=1)
    assert "warm host" not in command("show", "orders", "--checkpoint-dir", root).out
    owner = msgspec.structs.replace(this_process(), host="worker-1")
    job.beat(9, owner=owner, at=1, ended=True, warm_host="team")
    text = " ".join(command("show", "orders", "--checkpoint-dir", root).out.split())
    assert "on worker-1, on its warm host team" in text
    shown = command("show", "orders", "--checkpoint-dir", root, "-o", "json").json
    assert shown["owner"]["warm_host"] == "team"


def test_show_lists_the_types_under_which_values_may_be_stored(command: Command, root: Path) -> None:
    job = MadeJob(root)
    job.batch()
    before = job.head()
    operator = before.operators["balance"]
    wider = msgspec.structs.replace(
        operator.states["total"], value="optional<float>", version=1, since=before.slot + 1,
        versions=(SchemaVersion(number=0, value="float", next=1),),
    )  # fmt: skip
    states = {**operator.states, "total": wider}
    job.decide(operators={"balance": msgspec.structs.replace(operator, states=states)})
    arguments = ("show", "orders", "--schemas", "--checkpoint-dir", root)
    rows = command(*arguments, "-o", "json").json["schemas"]
    assert [(r["state"], r["number"], r["type"], r["slot"], r["today"], r["by"]) for r in rows] == [
        ("total", 0, "float", 0, False, "rules"),
        ("total", 1, "optional<float>", before.slot + 1, True, ""),
        ("orders", 0, "int", 0, True, ""),
    ]
    text = command(*arguments).out
    assert "1 (today)" in text
    assert "its first record" in text


def test_show_estimates_the_bytes_of_states_that_expire(command: Command, root: Path) -> None:
    job = QueriedJob(root)
    shard = job.shard(entries_of(filled(1, 2)), 0, 127)
    brief = job.states["brief"].id
    shares = (
        ExpiryShare(brief, 0, 1, 10, 2048),
        ExpiryShare(brief, END_OF_TIME - 1, END_OF_TIME - 1, 10, 4096),
    )
    job.record([msgspec.structs.replace(shard, expiring=shares)])
    arguments = ("show", "orders", "--checkpoint-dir", root)
    operator = command(*arguments, "-o", "json").json["operators"][0]
    assert operator["live_bytes"] == {"brief": 4096, "carts": 0, "last": 0}
    assert operator["expired_bytes"] == {"brief": 2048, "carts": 0, "last": 0}
    line = next(line for line in command(*arguments).out.splitlines() if "1 hour after" in line)
    assert line.split()[-4:] == ["~4.0", "KB", "~2.0", "KB"]


def test_show_tells_what_an_operator_is_and_whether_its_batch_was_summed_up(
    command: Command, root: Path
) -> None:
    job = QueriedJob(root)
    operator = operator_of(
        [job.shard(entries_of(filled(1, 2)), 0, 127)], key=job.key, states=job.states, next_state_id=100
    )
    options = {"operator": "running aggregate", "aggregate 'n'": "count()"}
    job.decide(
        operators={"balance": msgspec.structs.replace(operator, options=options)},
        statistics={
            "combiner": {"balance": {"rows": 900, "groups": 10, "combined": True}},
            "operators": {"balance": {"counters": {"partly_late_rows": 3}}},
        },
    )
    arguments = ("show", "orders", "--checkpoint-dir", root)
    assert (
        "running aggregate n; of the newest batch 3 partly late; the newest batch was summed up before the shuffle: 90.0 rows per group"
        in command(*arguments).out
    )
    assert command(*arguments, "-o", "json").json["operators"][0]["what"] == "running aggregate n"


def test_show_counts_the_bytes_of_every_state(command: Command, root: Path) -> None:
    job = QueriedJob(root)
    job.checkpoint(entries_of(filled(1, 2)))
    arguments = ("show", "orders", "--bytes", "--checkpoint-dir", root)
    states = {state["state"]: state for state in command(*arguments, "-o", "json").json["states"]}
    assert (states["total"]["entries"], states["log"]["entries"]) == (2, 4)
    # The harness wrote it in January 2026, for an hour.
    assert states["brief"]["expired_bytes"] > 0
    assert states["brief"]["live_bytes"] == 0
    assert states["total"]["live_bytes"] > 0
    assert "brief" in command(*arguments).out
    both = command(*arguments, "--schemas")
    assert both.code == 2
    assert "give one of them" in both.err


def test_show_names_the_source_that_holds_the_watermark(command: Command, root: Path) -> None:
    since = 1_767_225_600_000_000
    noted = {"watermark_held_by": "clicks", "watermark_held_since": since}
    MadeJob(root, watermark=since, noted=noted).batch()
    shown = command("show", "orders", "--checkpoint-dir", root)
    assert "held back by source clicks, without rows since 2026-01-01 00:00:00" in " ".join(shown.out.split())
    document = command("show", "orders", "--checkpoint-dir", root, "-o", "json").json
    assert document["watermark_held"] == {"source": "clicks", "since": since}
    MadeJob(root, name="free").batch()
    assert "held back" not in command("show", "free", "--checkpoint-dir", root).out
    assert command("show", "free", "--checkpoint-dir", root, "-o", "json").json["watermark_held"] == {}


def test_show_names_the_partition_that_holds_the_watermark(command: Command, root: Path) -> None:
    since = 1_767_225_600_000_000
    noted = {
        "watermark_held_by": "clicks",
        "watermark_held_since": since,
        "watermark_held_partition": "clicks/7",
    }
    MadeJob(root, watermark=since, noted=noted).batch()
    shown = " ".join(command("show", "orders", "--checkpoint-dir", root).out.split())
    assert (
        "held back by partition clicks/7 of source clicks, whose last rows came at 2026-01-01 00:00:00"
        in shown
    )
    document = command("show", "orders", "--checkpoint-dir", root, "-o", "json").json
    assert document["watermark_held"] == {"source": "clicks", "since": since, "partition": "clicks/7"}


def test_show_tells_the_size_of_batches_who_waits_and_of_hot_keys(command: Command, root: Path) -> None:
    orders = {"source": "orders", "unit": "bytes", "most": 48 << 20, "took": 44 << 20}
    clicks = {"source": "clicks", "unit": "rows", "most": 120_000}
    noted = {
        "batch_size": {"target_ms": 30_000, "streams": [orders, clicks]},
        "waited": {"clicks": "orders"},
        "operators": {"balance": {"hot_key": {"share": 0.52, "subtask": 0}}},
    }
    MadeJob(root, noted=noted).batch(rows=700)
    document = command("show", "orders", "--checkpoint-dir", root, "-o", "json").json
    took = document["batch_size"].pop("duration_ms")
    assert took == document["checkpoints"]["lastCheckpointDuration"]
    streams = [orders, {**clicks, "took": None}]
    assert document["batch_size"] == {"target_ms": 30_000, "rows": 700, "streams": streams}
    assert document["waited"] == {"clicks": "orders"}
    assert document["operators"][0]["hot_key"] == {"share": 0.52, "subtask": 0}
    text = " ".join(command("show", "orders", "--checkpoint-dir", root).out.split())
    assert "of 30.0 s; at most 48.0 MB of orders (took 44.0 MB), 120,000 rows of clicks" in text
    assert "batch size 700 rows took" in text
    assert "waits clicks for orders" in text
    said = "operator balance: one key has about 52% of the newest batch's rows, in subtask 0 of 1; the run's log names it"
    assert f"hot key {said}" in text
    MadeJob(root, name="free").batch()
    free = command("show", "free", "--checkpoint-dir", root)
    assert not any(name in free.out for name in ("batch size", "waits", "hot key"))


def test_the_size_of_batches_is_that_of_one_with_input(command: Command, root: Path) -> None:
    sizes = {"target_ms": 30_000, "streams": [{"source": "orders", "unit": "rows", "most": 10_000}]}
    job = MadeJob(root, noted={"batch_size": sizes})
    job.batch(rows=700)
    job.noted = {**job.noted, "input_free": True}
    job.batch(rows=0)
    assert command("show", "orders", "--checkpoint-dir", root, "-o", "json").json["batch_size"]["rows"] == 700


def test_a_damaged_job_does_not_hide_the_others(command: Command, root: Path) -> None:
    made_job(root, "orders")
    (root / "broken").mkdir()
    (root / "broken" / "job").write_text("no record")
    listed = {
        job["name"]: job for job in command("jobs", "--checkpoint-dir", root, "-o", "json").json["jobs"]
    }
    assert listed["orders"]["status"] == "IDLE"
    assert listed["broken"]["status"] == "UNREADABLE"
    assert "broken/job" in listed["broken"]["error"]


def test_a_job_that_has_lost_its_identity_is_listed_and_named_by_whoever_is_asked(
    command: Command, root: Path
) -> None:
    made_job(root, "orders")
    (root / "orders" / "job").unlink()
    (listed,) = command("jobs", "--checkpoint-dir", root, "-o", "json").json["jobs"]
    assert listed["status"] == "UNREADABLE"
    assert "orders/job, which says who job 'orders' is, is missing" in listed["error"]
    for verb in ("show", "gc", "verify", "checkpoints"):
        refusal = command(verb, "orders", "--checkpoint-dir", root)
        assert refusal.code == 6
        assert "orders/job" in refusal.err
        assert "put it back from a copy of the store" in refusal.err


def test_a_run_whose_heart_stopped_is_lost(command: Command, root: Path) -> None:
    made_job(root, ended=False)
    assert command("show", "orders", "--checkpoint-dir", root, "-o", "json").json["status"] == "LOST"


def test_a_run_whose_process_was_killed_here_is_lost_at_once(command: Command, root: Path) -> None:
    job = made_job(root)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = msgspec.structs.replace(this_process(), pid=child.pid)
    own, started = identity_of_this_process(), process_start(child.pid)
    assert own is not None
    assert started
    process = msgspec.structs.replace(own, pid=child.pid, started=started)

    def shown() -> tuple[str, str]:
        job.beat(9, owner=owner, process=process, at=time.time_ns() // 1000)
        text = command("show", "orders", "--checkpoint-dir", root).out
        line = next(line for line in text.splitlines() if line.startswith("status"))
        return " ".join(line.split()), command("show", "orders", "--checkpoint-dir", root, "-o", "json").json[
            "status"
        ]

    assert shown() == ("status RUNNING", "RUNNING")
    child.kill()
    child.wait()
    text, status = shown()
    assert status == "LOST"
    assert re.fullmatch(r"status LOST, no heartbeat since 20\S+ \S+, \d seconds? ago", text)


@pytest.mark.parametrize(
    ("silence", "says"),
    [
        (1, r"RUNNING"),
        (6, r"no heartbeat since \S+ \S+, [67] seconds ago"),
        (60, r"LOST, no heartbeat since .*"),
    ],
)
def test_show_says_what_is_known_of_a_run_that_is_silent(
    command: Command, root: Path, silence: int, says: str
) -> None:
    job = made_job(root)
    job.beat(at=time.time_ns() // 1000 - silence * 1_000_000)
    text = command("show", "orders", "--checkpoint-dir", root).out
    line = next(line for line in text.splitlines() if line.startswith("status"))
    assert re.fullmatch(f"status {says}", " ".join(line.split()))


def test_show_masks_what_is_called_like_a_secret_as_text_and_as_json(
    command: Command, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"input": "s3://me:hush@bucket/x", "db_password": "hush", "output": "/data/totals"}
    decide = MadeJob.decide
    monkeypatch.setattr(
        MadeJob, "decide", lambda self, **facts: decide(self, **{**facts, "parameters": given})
    )
    made_job(root)
    for more in ([], ["-o", "json"]):
        for words in (["show", "orders"], ["jobs"]):
            told = command(*words, "--checkpoint-dir", root, *more).out
            assert "hush" not in told
            assert words == ["jobs"] or "s3://me:***@bucket/x" in told


def test_show_tells_what_a_job_is_made_of(command: Command, root: Path) -> None:
    job = made_job(root)
    job.tag(3, "before-the-sale")
    job.progress(4)
    shown = command("show", "orders", "--checkpoint-dir", root, "-o", "json").json
    assert shown["head"] == 4
    assert shown["tags"] == {"before-the-sale": 3}
    assert shown["parameters"] == {"input": "/data/orders", "output": "/data/totals"}
    assert shown["progress"]["checkpoint"] == 4
    (operator,) = shown["operators"]
    assert operator["uid"] == "balance"
    assert operator["key"] == "user int"
    assert (operator["parallelism"], operator["max_parallelism"], operator["shards"]) == (1, 128, 1)
    assert set(operator["states"]) == {"total", "orders"}
    (source,) = shown["sources"]
    assert source["kind"] == "delta"
    assert source["position"] == "version 3 read completely"
    assert source["lines"] == [OFFSET % 4], "what `state import --offset` takes"
    assert shown["sinks"] == [
        {"uid": "totals", "kind": "delta_append", "target": "/data/totals", "last_commit": 4, "name": ""}
    ]
    text = command("show", "orders", "--checkpoint-dir", root).out
    for word in ("balance", "before-the-sale -> 3", "/data/totals", "events", "~10"):
        assert word in text


def test_checkpoints_are_told_with_flinks_names_newest_first(command: Command, root: Path) -> None:
    made_job(root, batches=3)
    told = command("checkpoints", "orders", "--checkpoint-dir", root, "-o", "json").json
    assert told["job"] == "orders"
    assert told["counts"] == {"restored": 0, "total": 3, "in_progress": 0, "completed": 3, "failed": 0}
    assert told["summary"]["numberOfCompletedCheckpoints"] == 3
    assert [line["id"] for line in told["history"]] == [4, 3, 2, 1]
    assert {
        "id", "kind", "status", "epoch", "timeline", "trigger_timestamp", "latest_ack_timestamp", "end_to_end_duration",
        "state_size", "checkpointed_size", "num_subtasks", "processed_rows", "sinks", "metrics", "discarded",
    } <= set(told["history"][0])  # fmt: skip
    assert told["history"][0]["status"] == "COMPLETED"
    assert told["history"][0]["processed_rows"] == 100


def test_a_fence_is_no_checkpoint_that_is_kept(command: Command, root: Path) -> None:
    made_job(root, batches=1)
    shown = command("checkpoints", "orders", "--checkpoint-dir", root).out
    kept = {line.split()[1]: "yes" in line.split() for line in shown.splitlines() if "COMPLETED" in line}
    assert kept == {"checkpoint": True, "fence": False}


def test_the_history_can_be_cut_short(command: Command, root: Path) -> None:
    made_job(root, batches=3)
    told = command("checkpoints", "orders", "-n", "2", "--checkpoint-dir", root, "-o", "json").json
    assert [line["id"] for line in told["history"]] == [4, 3]
    assert told["counts"]["total"] == 3


def test_a_collected_checkpoint_is_still_told(command: Command, root: Path) -> None:
    job = made_job(root, batches=5)
    job.retained = 1
    job.begin("another run")
    assert command("gc", "orders", "--retained", "1", "--yes", "--checkpoint-dir", root).code == 0
    told = command("checkpoints", "orders", "--checkpoint-dir", root, "-o", "json").json
    discarded = {line["id"]: line["discarded"] for line in told["history"]}
    assert discarded[6] is False
    assert discarded[2] is True


def test_what_is_pending_is_shown(command: Command, root: Path) -> None:
    job = made_job(root)
    slot = job.batch(carried_out=False)
    assert command("show", "orders", "--checkpoint-dir", root, "-o", "json").json["pending"] == [slot]
    shown = command("checkpoints", "orders", "--checkpoint-dir", root).out
    pending = next(line.split() for line in shown.splitlines() if "IN_PROGRESS" in line)
    assert (pending[0], "yes" in pending) == (str(slot), False), "its state cannot be read yet"
    assert command("query", "orders", "balance", "total", 1, "--at", slot, "--checkpoint-dir", root).code != 0


def test_an_unknown_job_is_not_found_and_the_known_ones_are_named(command: Command, root: Path) -> None:
    made_job(root)
    for name in ("show", "checkpoints", "stop", "verify", "gc"):
        said = command(name, "oders", "--checkpoint-dir", root)
        assert said.code == 3
        assert "there is no job 'oders'" in said.err
        assert "its jobs are: orders" in said.err
        assert said.out == ""


def test_a_root_that_is_missing_is_not_found(command: Command, root: Path) -> None:
    said = command("jobs", "--checkpoint-dir", root)
    assert said.code == 3
    assert str(root) in said.err


def test_no_root_at_all_is_a_usage_error(command: Command) -> None:
    said = command("jobs")
    assert said.code == 2
    assert "STATEFLOW_CHECKPOINT_DIR" in said.err


def test_the_root_may_come_from_the_environment(
    command: Command, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_job(root)
    monkeypatch.setenv("STATEFLOW_CHECKPOINT_DIR", str(root))
    assert command("show", "orders").code == 0


def test_the_root_may_come_from_the_file(command: Command, root: Path, tmp_path: Path) -> None:
    made_job(root)
    (tmp_path / "here" / "stateflow.toml").write_text(f'checkpoint_dir = "{root}"\n')
    assert command("trust").code == 0
    assert command("show", "orders").code == 0


def test_a_store_that_does_not_answer_is_unavailable(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = "endpoint=http://127.0.0.1:9,region=us-east-1,access_key_id=key,secret_access_key=hidden-word,allow_http=true,max_retries=1"
    monkeypatch.setenv("STATEFLOW_STORAGE_OPTIONS", options)
    said = command("jobs", "--checkpoint-dir", "s3://bucket/root", "-o", "json")
    assert said.code == 9
    error = json.loads(said.err.splitlines()[-1])["error"]
    assert error["type"] == "UnavailableError"
    assert error["exit_code"] == 9
    assert "s3://bucket" in error["message"]
    assert "hidden-word" not in said.err + said.out


def test_a_root_that_is_not_there_is_told_with_where_it_was_set(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = command("jobs", "--checkpoint-dir", f"{tmp_path}/none")
    assert "check checkpoint_dir, set by the command line (--checkpoint-dir); the first" in typed.err
    assert "once its Spark has started" in typed.err
    monkeypatch.setenv("STATEFLOW_CHECKPOINT_DIR", f"{tmp_path}/none")
    assert (
        "check checkpoint_dir, set by the environment (STATEFLOW_CHECKPOINT_DIR); the first"
        in command("jobs").err
    )


def test_show_names_the_outputs_after_a_record_that_writes_none(command: Command, root: Path) -> None:
    made_job(root)
    sf.Job(str(root), "orders").rescale(2)
    shown = command("show", "orders", "--checkpoint-dir", root, "-o", "json").json["sinks"]
    assert [(sink["uid"], sink["kind"], sink["target"]) for sink in shown] == [
        ("totals", "delta_append", "/data/totals")
    ]


@pytest.mark.parametrize(("word", "meant"), [("list", "jobs"), ("status", "show"), ("rollback", "restore")])
def test_a_word_of_another_tool_is_told_what_it_is_here(command: Command, word: str, meant: str) -> None:
    said = command(word)
    assert said.code == 2
    assert f"No such command '{word}'. Did you mean '{meant}'?" in " ".join(said.err.split())
