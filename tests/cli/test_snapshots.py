"""Savepoints, tags, restores, rescales and deletion as they are typed; none of this starts Spark."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from stateflow.checkpoint.log import read_log
from stateflow.checkpoint.pins import pin
from stateflow.format.layout import JobLayout
from stateflow.format.records import DeadMark, OperatorListState, Owner, encode
from stateflow.jobs.job import Job
from stateflow.storage.local import LocalStore
from tests.cli.conftest import Command
from tests.jobs.files import files_of
from tests.jobs.made import ORDERS, MadeJob, made_job
from tests.refusals.refusal import lacking

PIPELINE = f"{ORDERS}:orders"


@pytest.fixture
def job(root: Path) -> MadeJob:
    return made_job(root)


def created(command: Command, root: Path, *more: str) -> Any:
    said = command("savepoint", "create", "orders", "--checkpoint-dir", root, "-o", "json", *more)
    assert said.code == 0, said.err
    return said.json


def test_a_savepoint_is_made_listed_shown_and_disposed_of(command: Command, root: Path, job: MadeJob) -> None:
    made = created(command, root, "--note", "before the upgrade")
    assert (made["job"], made["checkpoint"], made["type"]) == ("orders", 4, "native")
    listed = command("savepoint", "list", "--checkpoint-dir", root, "-o", "json").json["savepoints"]
    assert [each["place"] for each in listed] == [made["place"]]
    shown = command("savepoint", "show", made["place"])
    assert shown.code == 0
    assert "before the upgrade" in shown.out
    verified = command("verify", made["place"], "--deep")
    assert verified.code == 0
    assert "is sound" in verified.out
    assert "Nothing was done" in command("savepoint", "dispose", made["place"]).err
    assert command("savepoint", "dispose", made["place"], "--yes").code == 0
    assert (
        command("savepoint", "list", "orders", "--checkpoint-dir", root, "-o", "json").json["savepoints"]
        == []
    )


def test_a_savepoint_is_made_by_a_process_of_its_own_that_keeps_what_it_says_in_the_cache_folder(
    root: Path, job: MadeJob, tmp_path: Path
) -> None:
    cache = tmp_path / "cache-of-mine"
    typed = [
        "savepoint",
        "create",
        "orders",
        "--detach",
        "--checkpoint-dir",
        str(root),
        "--option",
        f"cache_dir={cache}",
        "-o",
        "json",
    ]
    said = subprocess.run(
        [sys.executable, "-m", "stateflow.cli", *typed],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    begun = json.loads(said.stdout)
    log = Path(begun["log"])
    assert log.parent == cache / "logs"
    with suppress(psutil.NoSuchProcess):
        psutil.Process(begun["pid"]).wait(60)
    assert json.loads(log.read_text())["checkpoint"] == 4


def test_a_savepoint_is_shown_with_the_state_that_has_no_key(
    command: Command, root: Path, job: MadeJob
) -> None:
    balance = msgspec.structs.replace(
        job.head().operators["balance"],
        operator_states={"pages": OperatorListState("list", "int", ((b"\x02", b"\x03"), (), (b"\x04",)))},
    )
    job.decide(operators={"balance": balance})
    said = command("savepoint", "create", "orders", "--checkpoint-dir", root)
    assert said.code == 0, said.err
    [row] = [line.split() for line in said.out.splitlines() if "pages" in line]
    assert row == ["balance", "pages", "operator", "list", "int", "3"]
    shown = created(command, root, "--to", str(root / "elsewhere"))
    assert shown["operators"]["balance"]["operator_states"] == {
        "pages": {"kind": "list", "type": "int", "elements": 3}
    }


def test_what_somebody_wrote_into_a_note_does_not_command_the_terminal(
    command: Command, root: Path, job: MadeJob
) -> None:
    made = created(command, root, "--note", "\x1b]0;owned\x07\x9b2J[red]café 日本")
    for said in (
        command("savepoint", "show", made["place"]),
        command("savepoint", "list", "--checkpoint-dir", root),
    ):
        assert said.code == 0
        assert not {"\x1b", "\x07", "\x9b"} & set(said.out)
        assert "\\x1b]0;owned\\x07\\x9b2J[red]café 日本" in "".join(said.out.split("\n"))


def test_a_savepoint_made_in_python_is_one_line_when_printed(root: Path, job: MadeJob) -> None:
    made = Job(str(root), "orders").savepoint("native", to=f"{root}-savepoint")
    assert str(made) == f"MadeSavepoint('{made.url}': native, checkpoint 4 of job 'orders')"


def test_a_savepoint_whose_file_is_gone_is_named_and_not_restored(
    command: Command, root: Path, job: MadeJob, tmp_path: Path
) -> None:
    place = tmp_path / "elsewhere"
    created(command, root, "--to", str(place))
    lost = next(path for path in (place / "state").iterdir())
    lost.unlink()
    said = command("verify", place)
    assert said.code == 6
    assert lost.name in said.err
    said = command(
        "restore", "copy", PIPELINE, "--from", place, "--checkpoint-dir", root, "--yes", "-p", "output=x"
    )
    assert said.code == 6
    assert lost.name in said.err
    assert not (root / "copy").exists()


def test_a_savepoint_of_a_newer_format_says_what_to_upgrade(
    command: Command, root: Path, job: MadeJob, tmp_path: Path
) -> None:
    place = tmp_path / "elsewhere"
    created(command, root, "--to", str(place))
    body = (place / "_metadata").read_bytes()
    (place / "_metadata").write_bytes(body.replace(b"stateflow 1 ", b"stateflow 9 ", 1))
    said = command("restore", "copy", PIPELINE, "--from", place, "--checkpoint-dir", root)
    assert said.code == 4
    assert "newer stateflow" in said.err


@pytest.mark.parametrize("detached", [(), ("--detach",)])
def test_a_savepoint_that_expires_at_once_is_refused(
    command: Command, root: Path, job: MadeJob, detached: tuple[str, ...]
) -> None:
    said = command("savepoint", "create", "orders", "--expires", "0", *detached, "--checkpoint-dir", root)
    assert said.code == 2
    assert "leave `expires` out" in said.err
    assert not (root / "_savepoints").exists()


def test_expired_savepoints_go_with_gc_and_others_stay(command: Command, root: Path, job: MadeJob) -> None:
    kept = created(command, root, "--expires", "1 week")["place"]
    over = created(command, root, "--expires", "1 ms")["place"]
    plan = command("gc", "orders", "--checkpoint-dir", root, "-o", "json").json
    assert plan["expired_savepoints"] == [over]
    said = command("gc", "orders", "--checkpoint-dir", root, "--yes")
    assert said.code == 0
    assert f"deleted {over}: savepoint whose time is over, " in said.out
    assert kept not in said.out
    listed = command("savepoint", "list", "--checkpoint-dir", root, "-o", "json").json["savepoints"]
    assert [each["place"] for each in listed] == [kept]


def test_tags_keep_a_checkpoint_and_are_let_go(command: Command, root: Path, job: MadeJob) -> None:
    assert command("tag", "orders", "v1", "--checkpoint", "3", "--checkpoint-dir", root).code == 0
    again = command("tag", "orders", "v1", "--checkpoint-dir", root)
    assert again.code == 2
    assert "has a tag 'v1' already" in again.err
    assert "v1 -> 3" in command("show", "orders", "--checkpoint-dir", root).out
    assert command("tag", "orders", "v1", "--remove", "--checkpoint-dir", root).code == 0
    assert command("tag", "orders", "v1", "--remove", "--checkpoint-dir", root).code == 3


def test_a_restore_prints_its_plan_and_writes_nothing_until_told_to(
    command: Command, root: Path, job: MadeJob
) -> None:
    before = files_of(root)
    planned = command("restore", "orders", PIPELINE, "--from", "checkpoint:3", "--checkpoint-dir", root)
    assert planned.code == 0, planned.err
    assert "Restore job orders from checkpoint:3" in planned.out
    assert "delivered again" in planned.out
    assert "the job goes back by 1 record; it stays restorable" in planned.out
    assert files_of(root) == before
    done = command(
        "restore", "orders", PIPELINE, "--from", "checkpoint:3", "--checkpoint-dir", root, "--yes", "--note", "oops",
        "-o", "json",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert done.json["restored"] is True
    shown = command("show", "orders", "--checkpoint-dir", root)
    assert "restore from checkpoint:3" in shown.out
    assert "oops" in shown.out
    acts = json.loads(command("show", "orders", "--checkpoint-dir", root, "-o", "json").out)["audit"]
    assert [(act["kind"], act["origin"], act["note"]) for act in acts] == [
        ("restore", "checkpoint:3", "oops")
    ]


def test_a_restore_carries_out_the_plan_whose_digest_it_is_given_or_none(
    command: Command, root: Path, job: MadeJob
) -> None:
    restore = ("restore", "orders", PIPELINE, "--from", "checkpoint:3", "--checkpoint-dir", root)
    planned = command(*restore, "-o", "json")
    digest = planned.json["digest"]
    assert f"digest      {digest}" in command(*restore).out
    before = files_of(root)
    other = command(*restore, "-p", "output=/evil", "--plan-digest", digest, "--yes")
    assert other.code == 2
    assert "is not the one that was approved any more" in other.err
    assert f"was {digest[:12]} and is" in other.err
    assert command(*restore, "--plan-digest", digest[:12], "--yes").code == 2
    assert files_of(root) == before
    done = command(*restore, "--plan-digest", digest, "--yes", "-o", "json")
    assert done.code == 0, done.err
    assert (done.json["restored"], done.json["digest"]) == (True, digest)


def test_a_fork_onto_the_same_table_is_refused(command: Command, root: Path, job: MadeJob) -> None:
    arguments = (
        "restore",
        "copy",
        PIPELINE,
        "--from",
        "latest",
        "--from-job",
        "orders",
        "--checkpoint-dir",
        root,
    )
    same = command(*arguments)
    assert same.code == 2
    assert "an output of its own" in same.err
    other = command(*arguments, "-p", "output=/elsewhere", "--yes")
    assert other.code == 0, other.err
    assert command("verify", "copy", "--checkpoint-dir", root).code == 0


def test_a_live_run_is_not_fenced_by_a_slip(command: Command, root: Path, tmp_path: Path) -> None:
    import threading

    made = made_job(root, ended=False)
    quick = 'heartbeat_timeout = "900 ms"\nheartbeat_interval = "100 ms"\n'
    (tmp_path / "here" / "stateflow.toml").write_text(quick)
    done = threading.Event()

    def beat() -> None:
        count = 2
        while not done.wait(0.05):
            made.beat(count)
            count += 1

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        for command_line in (
            ("restore", "orders", PIPELINE, "--from", "checkpoint:3", "--yes"),
            ("rescale", "orders", "--parallelism", "2"),
            ("delete", "orders", "--yes"),
        ):
            said = command(*command_line, "--checkpoint-dir", root)
            assert said.code == 8, (command_line, said.out, said.err)
            assert "alive" in said.err
    finally:
        done.set()
        thread.join()


def test_a_rescale_copies_nothing_and_says_where_the_state_went(
    command: Command, root: Path, job: MadeJob
) -> None:
    shared = files_of(root / "orders" / "shared")
    said = command("rescale", "orders", "--parallelism", "4", "--checkpoint-dir", root, "-o", "json")
    assert said.code == 0, said.err
    assert set(said.json["shards"].values()) == {4}
    assert files_of(root / "orders" / "shared") == shared
    head = read_log(LocalStore(root), JobLayout("orders")).head
    assert head is not None
    assert head.kind == "rescale"
    too_many = command("rescale", "orders", "--parallelism", "4000", "--checkpoint-dir", root)
    assert too_many.code == 2
    assert "use 1 to 128" in too_many.err


def test_a_rescale_names_the_operators_that_keep_what_their_pipeline_gives_them(
    command: Command, root: Path, job: MadeJob
) -> None:
    operators = job.head().operators
    own = {uid: msgspec.structs.replace(operator, parallelism=4) for uid, operator in operators.items()}
    job.decide(operators=own)
    for _ in range(2):
        said = command("rescale", "orders", "--parallelism", "3", "--checkpoint-dir", root, "-o", "json")
        assert said.code == 0, said.err
        assert all(f"operator {uid} keeps 4, which its pipeline gives it" in said.err for uid in own)
        head = read_log(LocalStore(root), JobLayout("orders")).head
        assert head is not None
        assert {len(operator.assignment) for operator in head.operators.values()} == {4}


def test_a_deleted_job_leaves_only_its_tombstone_and_savepoints_of_others(
    command: Command, root: Path, job: MadeJob
) -> None:
    place = created(command, root)["place"]
    said = command("delete", "orders", "--checkpoint-dir", root)
    assert "Nothing was done" in said.err
    assert (root / "orders" / "job").exists()
    assert command("delete", "orders", "--yes", "--checkpoint-dir", root).code == 0
    assert files_of(root / "orders") == {"epochs/99999999"}
    left = root / "orders" / "shared" / "by-a-zombie.sst"
    left.parent.mkdir()
    left.write_bytes(b"state")
    assert "deleted already" in command("delete", "orders", "--checkpoint-dir", root).err
    assert command("delete", "orders", "--yes", "--checkpoint-dir", root).code == 0
    assert files_of(root / "orders") == {"epochs/99999999"}
    assert command("show", "orders", "--checkpoint-dir", root).code == 3
    assert command("verify", place).code == 0
    listed = command("savepoint", "list", "orders", "--checkpoint-dir", root, "-o", "json")
    assert [each["place"] for each in listed.json["savepoints"]] == [place]
    assert command("savepoint", "dispose", place, "--yes").code == 0
    assert command("savepoint", "list", "orders", "--checkpoint-dir", root).code == 3


def test_a_claimed_savepoint_that_goes_with_its_job_is_named_and_counted(
    command: Command, root: Path, job: MadeJob, tmp_path: Path
) -> None:
    place = created(command, root, "--to", str(tmp_path / "elsewhere"))["place"]
    kept = command("restore", "copy", PIPELINE, "--from", place, "-p", "output=x", "--checkpoint-dir", root)
    assert "claim mode  no-claim\n" in kept.out
    fork = ("restore", "copy", PIPELINE, "--from", place, "--claim-mode", "claim", "-p", "output=x", "--yes")
    assert "claim mode  claim\n" in command(*fork[:-1], "--checkpoint-dir", root).out
    assert command(*fork, "--checkpoint-dir", root).code == 0
    planned = command("delete", "copy", "--checkpoint-dir", root, "-o", "json").json
    (savepoint,) = planned["savepoints"]
    assert savepoint["place"] == place
    assert savepoint["bytes"] > 0
    assert place in command("delete", "copy", "--checkpoint-dir", root).out
    shutil.copytree(root, tmp_path / "copied")
    for words in ((), ("--yes",)):
        said = command("delete", "copy", "--checkpoint-dir", tmp_path / "copied", *words)
        assert (said.code, place in said.out) == (0, False), said.out
    assert f"{place} stays: job 'copy' claimed it in {LocalStore(root).url}" in said.err
    assert command("verify", place).code == 0
    said = command("delete", "copy", "--checkpoint-dir", root, "--yes")
    assert said.code == 0
    assert f"and the savepoints that it had claimed: {place} (" in said.out
    assert command("delete", "orders", "--checkpoint-dir", root, "-o", "json").json["savepoints"] == []
    assert "claimed savepoints  none" in command("delete", "orders", "--checkpoint-dir", root).out


def test_past_a_pin_that_cannot_be_read_leads_what_a_verification_says(
    command: Command, root: Path, job: MadeJob
) -> None:
    """Everything that deletes or decides is refused, since the pin may keep anything."""
    pin = root / "orders/pins" / job.tag(job.head().slot, "v1").id
    pin.chmod(0o644)
    pin.write_bytes(b"")
    at = ("--checkpoint-dir", root)
    for words in (("gc", "orders", "--yes"), ("show", "orders"), ("savepoint", "create", "orders")):
        said = command(*words, *at)
        assert (said.code, "run `stateflow verify" in said.err) == (6, True), said.err
    said = command("verify", "orders", *at)
    assert said.code == 6
    advised = re.search(r"`stateflow (gc orders --release \S+ --yes)", said.err)
    assert advised is not None, said.err
    words = advised[1].split()
    assert command(*words[:-1], *at).code == 0
    assert pin.exists()
    assert command(*words, *at).code == 0
    assert not pin.exists()
    assert command("verify", "orders", *at).code == 0


def test_a_pin_that_cannot_be_read_keeps_nobody_from_deleting_the_job(
    command: Command, root: Path, job: MadeJob
) -> None:
    (root / "orders/pins").mkdir(exist_ok=True)
    (root / "orders/pins/damaged").write_bytes(b"rubbish")
    said = command("delete", "orders", "--checkpoint-dir", root)
    assert (said.code, "pins/damaged" in said.out) == (0, True), said.err
    assert command("delete", "orders", "--yes", "--checkpoint-dir", root).code == 0
    assert files_of(root / "orders") == {"epochs/99999999"}


@pytest.mark.parametrize(
    ("format_of_pin", "code", "named"),
    [(1, 2, "remove orders/pins/ffff"), (2, 4, f"orders/pins/{'f' * 32} was written in format 2")],
)
def test_a_job_that_a_fork_reads_is_not_deleted_whatever_release_has_pinned_it(
    command: Command, root: Path, job: MadeJob, format_of_pin: int, code: int, named: str
) -> None:
    """Without --yes the command says the same."""
    held = pin(
        job.store, job.layout, job.head().slot, kind="fork", owner=Owner(run="run", user="ann"),
        ids=lambda: "f" * 32, clock=lambda: 0, reason="restored into job copy",
    )  # fmt: skip
    file = root / "orders/pins" / held.id
    file.chmod(0o644)
    file.write_bytes(file.read_bytes().replace(b"stateflow 1 ", b"stateflow %d " % format_of_pin, 1))
    (root / "orders/pins/damaged").write_bytes(b"rubbish")  # listed first
    before = files_of(root / "orders")
    for words in ((), ("--yes",)):
        said = command("delete", "orders", *words, "--checkpoint-dir", root)
        assert (said.code, named in said.err) == (code, True), said.err
    assert files_of(root / "orders") == before
    file.unlink()
    assert command("delete", "orders", "--yes", "--checkpoint-dir", root).code == 0


def test_a_damaged_savepoint_is_told_with_what_is_left_to_do(
    command: Command, root: Path, job: MadeJob, tmp_path: Path
) -> None:
    place = tmp_path / "elsewhere"
    created(command, root, "--to", str(place))
    body = (place / "_metadata").read_bytes()
    (place / "_metadata").write_bytes(body[:-9])
    said = command("verify", place)
    assert said.code == 6
    assert "use another savepoint" in said.err
    assert "stateflow verify" not in said.out + said.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("savepoint", "create", "nobody"), 3, "no job 'nobody'"),
        (("savepoint", "create", "orders", "--checkpoint", "77"), 3, "no checkpoint 77"),
        (("savepoint", "create", "orders", "--type", "tar"), 2, "neither native nor canonical"),
        (
            ("state", "import", "none.py", "--to", "x", "--table", "a.b=c", "--type", "tar"),
            2,
            "neither native nor canonical",
        ),
        (("savepoint", "create", "orders", "--expires", "soon"), 2, "'soon' is not a duration"),
        (
            ("savepoint", "create", "orders", "--expires", "999999999 days"),
            2,
            "is longer than time is counted",
        ),
        (
            ("savepoint", "create", "orders", "--expires", "3000000 days"),
            2,
            "leave `expires` out for one that",
        ),
        (("savepoint", "create", "orders", "--name", "../up"), 2, "not usable"),
        (("savepoint", "show", "/nowhere/at/all"), 3, "no savepoint"),
        (("tag", "orders", "v2", "--checkpoint", "77"), 3, "77"),
        (("tag", "orders", "v2", "--checkpoint", "tag:v9"), 3, "no tag 'v9'"),
        (("tag", "orders", "6"), 2, "would be taken for the checkpoint of that name"),
        (("tag", "orders", "latest"), 2, "would be taken for the checkpoint of that name"),
        (("tag", "orders", "v2", "--checkpoint", "abc"), 2, "'abc' names no checkpoint: write latest, 42,"),
        (("tag", "orders", "v2", "--checkpoint", "latest:x"), 2, "'latest:x' names no checkpoint"),
        (("savepoint", "create", "orders", "--checkpoint", "abc"), 2, "'abc' names no checkpoint"),
        (("savepoint", "create", "orders", "--checkpoint", "tag:"), 2, "'tag' names no checkpoint"),
        (
            ("savepoint", "create", "orders", "--detach", "--expires", "7"),
            2,
            "--expires: '7' is not a duration",
        ),
        (
            ("savepoint", "create", "orders", "--detach", "--type", "canonical", "--split-size", "big"),
            2,
            "--split-size: 'big' is not",
        ),
        (("savepoint", "create", "orders", "--detach", "--checkpoint", "77"), 3, "no checkpoint 77"),
        (("savepoint", "create", "orders", "--detach", "--name", "../up"), 2, "not usable"),
        (("savepoint", "list", "ordres"), 3, "no job 'ordres' in"),
        (("restore", "orders", PIPELINE, "--from", "latest", "--claim-mode", "claim"), 2, "is a checkpoint"),
        (("restore", "orders", PIPELINE, "--from", "tag:v9"), 3, "no tag 'v9'"),
        (("restore", "orders", PIPELINE, "--from", "checkpoint:x"), 2, "checkpoint:42"),
        (
            ("restore", "orders", PIPELINE, "--from", "latest", "--claim-mode", "steal"),
            2,
            "neither claim nor no-claim",
        ),
        (("restore", "orders", PIPELINE, "--from", "latest", "--max-parallelism", "8"), 2, "canonical"),
        (("restore", "orders", PIPELINE, "--from", "latest", "--parallelism", "999"), 2, "1 to 128"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, tuple) else None,
)
def test_bad_input_is_one_sentence_with_the_right_code_and_changes_nothing(
    command: Command, root: Path, job: MadeJob, arguments: tuple[str, ...], code: int, words: str
) -> None:
    before = files_of(root)
    said = command(*arguments, *(() if arguments[1] == "show" else ("--checkpoint-dir", root)))
    assert (said.code, said.out) == (code, "")
    assert words in said.err
    assert "Traceback" not in said.err
    assert files_of(root) == before


def test_gc_takes_a_mark_away_that_a_collector_which_was_cut_off_has_left_on_a_tagged_checkpoint(
    command: Command, root: Path, job: MadeJob
) -> None:
    job.tag(2, "v1")
    mark = job.layout.dead(2, "cut-off")
    job.store.put(mark, encode(DeadMark(slot=2, collector="cut-off")))
    again = ("tag", "orders", "v2", "--checkpoint", "tag:v1", "--checkpoint-dir", root)
    assert command(*again).code == 3
    verify = ("verify", "orders", "--checkpoint-dir", root, "-o", "json")
    (finding,) = command(*verify).json["findings"]
    assert (finding["severity"], finding["path"]) == ("warning", mark)
    assert lacking(finding["text"], ("checkpoint 2", "tag v1", "`stateflow gc orders --yes`")) == []
    assert command("gc", "orders", "--yes", "--checkpoint-dir", root).code == 0
    assert command(*verify).json["findings"] == []
    assert command(*again).code == 0


def test_gc_lets_go_of_what_dead_processes_were_reading_and_of_nothing_else(
    command: Command, root: Path, job: MadeJob
) -> None:
    import os
    import socket
    import subprocess
    import sys

    from stateflow.checkpoint.pins import list_pins, pin
    from stateflow.checkpoint.process import this_process
    from stateflow.format.records import Owner

    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    pids = {
        "dead": (socket.gethostname(), ended.pid),
        "alive": (socket.gethostname(), os.getpid()),
        "far": ("far", 1),
    }
    made = {}
    for run, (host, pid) in pids.items():
        owner = Owner(run=run, host=host, pid=pid, pid_scope=this_process().pid_scope)
        made[run] = pin(
            job.store, job.layout, 3, kind="savepoint", owner=owner, ids=job.ids, clock=job.clock
        ).id
    gc = ("gc", "orders", "--checkpoint-dir", root)

    def left() -> set[str]:
        return {each.owner.run for each in list_pins(job.store, job.layout)}

    assert command(*gc).code == 0
    assert left() == {"dead", "alive", "far"}
    assert command(*gc, "--yes").code == 0
    assert left() == {"alive", "far"}
    assert command(*gc, "--release", "nothing", "--yes").code == 3
    assert command(*gc, "--release", made["far"], "--yes").code == 0
    assert left() == {"alive"}
