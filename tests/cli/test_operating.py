"""stop, abandon, verify and gc: what changes something says first what it would do."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stateflow.checkpoint.control import stop_requested
from stateflow.checkpoint.pins import list_pins, pin
from stateflow.checkpoint.process import this_process
from stateflow.cli.main import app
from stateflow.format.records import Owner
from stateflow.jobs.job import Job
from tests.cli.conftest import Command
from tests.jobs.files import files_of
from tests.jobs.made import MadeJob, made_job
from tests.jobs.queried import queried_job


def test_stopping_a_job_that_does_not_run_says_so(command: Command, root: Path) -> None:
    made_job(root)
    said = command("stop", "orders", "--checkpoint-dir", root, "-o", "json")
    assert said.code == 0
    assert said.json == {"job": "orders", "epoch": 1, "outcome": "not running", "checkpoint": 4}


def test_a_stop_request_names_the_run_and_the_reason(command: Command, root: Path) -> None:
    job = made_job(root, ended=False)
    said = command("stop", "orders", "--note", "deploying", "--checkpoint-dir", root)
    assert said.code == 0
    assert "epoch 1" in said.out
    request = stop_requested(job.store, job.layout, 1)
    assert request is not None
    assert request.reason == "deploying"


def test_waiting_ends_when_the_run_has_ended(command: Command, root: Path) -> None:
    job = made_job(root, ended=False)

    def end() -> None:
        while stop_requested(job.store, job.layout, 1) is None:
            time.sleep(0.01)
        job.beat(2, ended=True)

    run = threading.Thread(target=end)
    run.start()
    said = command("stop", "orders", "--wait", "--checkpoint-dir", root, "-o", "json")
    run.join()
    assert said.json["outcome"] == "stopped"


def test_a_drain_is_one_only_if_the_run_has_drained_and_none_is_missing_twice(
    command: Command, root: Path
) -> None:
    drain = ("stop", "orders", "--drain", "--wait", "--checkpoint-dir", root)

    def ending(job: MadeJob, last: Callable[[], object]) -> None:
        while stop_requested(job.store, job.layout, job.writer.epoch) is None:
            time.sleep(0.01)
        last()
        job.beat(2, ended=True)

    job = made_job(root, ended=False)
    run = threading.Thread(target=ending, args=(job, job.batch))
    run.start()
    said = command(*drain)
    run.join()
    assert said.code == 2
    assert "job 'orders' is stopped, and nothing has drained it: run it once more with" in said.err
    assert "job 'orders' is not running, and nothing has drained it" in command(*drain).err
    job.decide(operators=job.head().operators, final=True)
    assert command(*drain).code == 0


def test_waiting_for_a_run_that_has_died_does_not_take_for_ever(
    command: Command, root: Path, tmp_path: Path
) -> None:
    made_job(root, ended=False)
    quick = 'heartbeat_timeout = "300 ms"\nheartbeat_interval = "100 ms"\n'
    (tmp_path / "here" / "stateflow.toml").write_text(quick)
    said = command("stop", "orders", "--wait", "--checkpoint-dir", root, "-o", "json")
    assert said.code == 0
    assert said.json["outcome"] == "lost"


def test_waiting_has_an_end(command: Command, root: Path) -> None:
    made_job(root, ended=False)
    said = command("stop", "orders", "--wait", "--timeout", "0", "--checkpoint-dir", root)
    assert said.code == 8
    assert "has not ended in 0 s" in said.err


def stuck(root: Path) -> tuple[MadeJob, int]:
    job = made_job(root)
    # A user's function: whether it has the rows nobody can ask, so no Spark is needed.
    return job, job.batch(carried_out=False, kind="function")


def test_abandon_only_tells_what_it_would_do(command: Command, root: Path) -> None:
    _, slot = stuck(root)
    before = files_of(root)
    said = command("abandon", "orders", slot, "--checkpoint-dir", root, "-o", "json")
    assert said.code == 0
    assert said.json["abandoned"] is False
    assert said.json["sinks"] == {"totals": "function /data/totals"}
    assert said.json["rows"] == 100
    assert files_of(root) == before
    assert "--yes" in command("abandon", "orders", slot, "--checkpoint-dir", root).err


def test_abandon_advises_all_that_was_typed(command: Command, root: Path) -> None:
    _, slot = stuck(root)
    typed = ("--note", "it's gone -- for good", "--conf", "a.b=c d", "--conf", "its.password=hush")
    said = command("abandon", "orders", slot, *typed, "--checkpoint-dir", root)
    pasted = shlex.split(said.err.partition("`stateflow ")[2].rpartition("`")[0])
    shown = (*typed[:-1], "its.password=***")
    assert sorted(pasted) == sorted(
        ("abandon", "orders", str(slot), *shown, "--yes", "--checkpoint-dir", str(root))
    )
    assert command(*pasted).out
    pins = command("show", "orders", "--checkpoint-dir", root, "-o", "json").json["pins"]
    assert [pin["reason"] for pin in pins] == ["it's gone -- for good"]


def test_abandon_with_yes_completes_the_record_and_pins_its_output(command: Command, root: Path) -> None:
    _, slot = stuck(root)
    said = command(
        "abandon", "orders", slot, "--yes", "--note", "gone", "--checkpoint-dir", root, "-o", "json"
    )
    assert said.code == 0
    assert said.json["undelivered"] == ["totals"]
    shown = command("show", "orders", "--checkpoint-dir", root, "-o", "json").json
    assert shown["pending"] == []
    assert [(p["kind"], p["checkpoint"], p["reason"]) for p in shown["pins"]] == [("abandoned", slot, "gone")]


def test_abandoning_what_is_not_pending_is_refused(command: Command, root: Path) -> None:
    made_job(root)
    said = command("abandon", "orders", "4", "--yes", "--checkpoint-dir", root)
    assert said.code == 2
    assert "every record is carried out" in said.err


def test_a_sound_job_verifies(command: Command, root: Path) -> None:
    made_job(root)
    said = command("verify", "orders", "--deep", "--checkpoint-dir", root, "-o", "json")
    assert said.code == 0
    assert said.json == {"job": "orders", "deep": True, "sound": True, "findings": []}
    assert "is sound" in command("verify", "orders", "--checkpoint-dir", root).out


def test_a_missing_file_is_told_and_is_exit_code_6(command: Command, root: Path) -> None:
    made_job(root)
    lost = next((root / "orders" / "shared").glob("*state4*"))
    lost.unlink()
    said = command("verify", "orders", "--checkpoint-dir", root, "-o", "json")
    assert said.code == 6
    assert said.json["sound"] is False
    assert said.json["findings"][0]["path"] == f"orders/shared/{lost.name}"


def test_a_flipped_bit_is_found_by_a_deep_look(command: Command, root: Path) -> None:
    made_job(root)
    damaged = next((root / "orders" / "shared").glob("*state4*"))
    damaged.chmod(0o644)
    damaged.write_bytes(b"X" + damaged.read_bytes()[1:])
    assert command("verify", "orders", "--checkpoint-dir", root).code == 0
    assert command("verify", "orders", "--deep", "--checkpoint-dir", root).code == 6


def crowded(root: Path) -> MadeJob:
    """More checkpoints than are kept, and a file of a run that crashed."""
    job = made_job(root, batches=5)
    job.store.put(job.layout.shared_file(1, 2, "left", ".sst"), b"x" * 1000)
    job.retained = 2
    job.begin("another run")
    return job


def test_gc_says_what_would_go_and_why_and_deletes_nothing(command: Command, root: Path) -> None:
    crowded(root)
    before = files_of(root)
    arguments = ("gc", "orders", "--retained", "2", "--checkpoint-dir", root)
    told = command(*arguments, "-o", "json").json
    assert told["deleted"] is False
    assert told["records"]["2"] == "subsumed"
    assert told["kept"]["6"] == "head"
    assert told["bytes_by_reason"]["orphan"] == 1000
    assert files_of(root) == before
    text = command(*arguments)
    assert "subsumed" in text.out
    assert f"`stateflow gc orders --retained 2 --yes --checkpoint-dir {root}`" in text.err
    for given, typed in (
        (("--age", "7 days"), "--age '7 days'"),
        (("--retention", "daily for 9 days"), "--retention 'daily for 9 days'"),
    ):
        other = command("gc", "orders", *given, "--checkpoint-dir", root)
        assert f"`stateflow gc orders {typed} --yes --checkpoint-dir {root}`" in other.err, other.err
    assert re.search(r"deleted \d+ claims, control files", command(*arguments, "--yes").out)


def test_a_command_that_is_advised_is_of_the_root_that_was_typed(
    command: Command, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pasted, it would otherwise delete in the root of the environment."""
    other = root.with_name("other root")
    crowded(root)
    crowded(other)
    monkeypatch.setenv("STATEFLOW_CHECKPOINT_DIR", str(root))
    before = files_of(root)
    text = command("gc", "orders", "--retained", "2", "--checkpoint-dir", other).err
    pasted = shlex.split(text.partition("`stateflow ")[2].partition("`")[0])
    assert command(*pasted).out.startswith("deleted ")
    assert files_of(root) == before
    assert "`stateflow gc orders --retained 2 --yes`" in command("gc", "orders", "--retained", "2").err
    for form in ("text", "json"):  # an error of the library, which does not know what was typed
        gone = command("gc", "orders", "--release", "x", "--checkpoint-dir", other, "-o", form).err
        assert f"`stateflow show orders -o json --checkpoint-dir '{other}'`" in gone


def test_gc_with_yes_deletes_exactly_that(command: Command, root: Path) -> None:
    crowded(root)
    arguments = ("gc", "orders", "--retained", "2", "--checkpoint-dir", root, "-o", "json")
    told = command(*arguments).json
    done = command(*arguments, "--yes").json
    assert done["deleted"] is True
    for field in ("records", "files", "bytes_by_reason"):
        assert done[field] == told[field]
    again = command(*arguments).json
    assert (again["records"], again["files"]) == ({}, 0)
    assert command("verify", "orders", "--deep", "--checkpoint-dir", root).code == 0
    assert not list((root / "orders" / "shared").glob("*left*"))


def test_what_is_wrong_with_an_option_is_said_of_what_was_typed(command: Command, root: Path) -> None:
    crowded(root)
    age = command("gc", "orders", "--age", "7", "--checkpoint-dir", root)
    assert (age.code, "the command line (--age)" in age.err) == (2, True)
    slip = ("savepoint", "create", "orders", "--option", "max_paralelism=3", "--checkpoint-dir", root)
    said = command(*slip)
    assert (said.code, "the command line (--option max_paralelism)" in said.err) == (2, True)


def test_an_option_counts_that_has_an_argument_of_its_own_which_was_not_given(tmp_path: Path) -> None:
    from stateflow.cli.options import configured

    def parallelism(*settings: str, **named: int | None) -> tuple[int, str]:
        options = configured(str(tmp_path), settings, **named)
        return options.parallelism, options.origin("parallelism")

    given = "parallelism=3"
    assert parallelism(given, parallelism=None) == (3, "the command line (--option parallelism)")
    assert parallelism(given, parallelism=4) == (4, "the command line (--parallelism)")
    assert configured(None, ["checkpoint-dir=/a"]).checkpoint_dir == "/a"
    assert configured("/b", ["checkpoint-dir=/a"]).checkpoint_dir == "/b"


def test_gc_plans_without_the_pins_that_it_would_let_go(command: Command, root: Path) -> None:
    job = crowded(root)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()

    def held(slot: int, host: str) -> str:
        owner = Owner(run=host, host=host, pid=ended.pid, pid_scope=this_process().pid_scope)
        made = pin(job.store, job.layout, slot, kind="reader", owner=owner, ids=job.ids, clock=job.clock)
        return made.id

    dead, far = held(3, socket.gethostname()), held(4, "far")
    gc = ("gc", "orders", "--retained", "2", "--checkpoint-dir", root, "-o", "json")
    assert {"3", "4"} & command(*gc).json["records"].keys() == {"3"}
    gc += ("--release", far, "--release", dead)  # the second is gone anyway
    said = command(*gc)
    assert {"3", "4"} <= said.json["records"].keys()
    assert "would let go of checkpoint 3: reader of a process that is gone" in said.err
    assert {each.id for each in list_pins(job.store, job.layout)} == {dead, far}
    done = command(*gc, "--yes")
    assert done.code == 0, done.err
    assert done.json["records"] == said.json["records"]
    assert done.json["files"] == said.json["files"]
    assert not list_pins(job.store, job.layout)


def test_gc_with_nothing_but_a_pin_to_let_go_does_not_say_that_there_is_nothing(
    command: Command, root: Path
) -> None:
    job = made_job(root)
    owner = Owner(run="far", host="far", pid=1)
    slot = job.head().slot
    made = pin(job.store, job.layout, slot, kind="reader", owner=owner, ids=job.ids, clock=job.clock)
    gc = ("gc", "orders", "--checkpoint-dir", root)
    assert "nothing to collect" in command(*gc).out
    said = command(*gc, "--release", made.id)
    assert "nothing to collect" not in said.out
    assert f"`stateflow gc orders --release {made.id} --yes --checkpoint-dir {root}`" in said.err


def test_gc_keeps_what_a_tag_pins(command: Command, root: Path) -> None:
    crowded(root).tag(3, "before")
    told = command("gc", "orders", "--retained", "2", "--checkpoint-dir", root, "-o", "json").json
    assert told["kept"]["3"] == "tag before"
    assert "3" not in told["records"]


@pytest.mark.parametrize("unread", ["stdout", "stderr"])
def test_a_command_whose_reader_is_gone_does_what_it_was_called_for(
    command: Command, root: Path, monkeypatch: pytest.MonkeyPatch, unread: str
) -> None:
    """As in `stateflow stop orders --savepoint | head -0`."""
    job = queried_job(root, 42)
    shared = ("--checkpoint-dir", str(root))

    def piped(*words: str) -> int:
        reader, writer = os.pipe()
        os.close(reader)
        with monkeypatch.context() as patched, os.fdopen(writer, "w") as stream:
            patched.setattr(sys, unread, stream)
            code: int | None = app([*words, *shared], standalone_mode=False)
        return code or 0

    assert piped("show", "orders") == 0
    assert piped("stop", "orders", "--savepoint") == 0
    assert len(command("savepoint", "list", "orders", *shared, "-o", "json").json["savepoints"]) == 1
    before = job.head().slot
    assert piped("state", "erase", "orders", "42", "--yes") == 0
    assert Job(str(root), "orders").status().head != before
