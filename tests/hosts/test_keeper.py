"""The keeper of a host, with an application that has no Spark: what it tells it, and when it ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pytest

from stateflow.errors import BusyError
from stateflow.hosts import lease, starting
from stateflow.hosts.keeper import claim
from stateflow.hosts.settings import HostSettings, KeeperProcess, read_settings, write
from tests.hosts.hosting import alive, eventually
from tests.refusals.refusal import refused

APPLICATION = """
import json, sys
print(json.dumps({"ready": "nowhere", "processes": {}}), flush=True)
for line in sys.stdin:
    if line.strip() in ("drain", "stop"):
        sys.exit(0)
"""
STAYING = """
import json, os, sys
number = int(sys.argv[2])
ready = {"ready": "nowhere", "processes": {}}
with open(sys.argv[1] + f"/heard-{number}", "a") as heard:
    for said in (ready, {"recycle": "it is used up"}) if number == 1 and os.environ.get("REPLACED") else (ready,):
        print(json.dumps(said), flush=True)
    for line in sys.stdin:
        print(line.strip(), file=heard, flush=True)
"""
"""One whose runs do not end by themselves."""
LOSING = """
import json, os, sys
number = int(sys.argv[2])
print(json.dumps({"ready": f"nowhere-{number}", "processes": {}}), flush=True)
if number == 1:
    print(json.dumps({"lost": True}), flush=True)
for line in sys.stdin:
    if line.strip() in ("drain", "stop"):
        sys.exit(0)
sys.exit(1)
"""
"""One whose Spark dies, and which lives on with the last words of its runs."""
HINDERED = """
import json, sys
number = int(sys.argv[2])
if number == 2:
    sys.exit(1)
for said in ({"ready": f"nowhere-{number}", "processes": {}}, {"recycle": "it is used up"})[: 2 if number == 1 else 1]:
    print(json.dumps(said), flush=True)
for line in sys.stdin:
    if line.strip() in ("replaced", "stop"):
        sys.exit(0)
"""
"""One whose first replacement does not start."""
USED_UP = """
import json, os, sys, time
number = int(sys.argv[2])
open(sys.argv[1] + f"/begun-{number}", "w").close()
print(json.dumps({"ready": f"nowhere-{number}", "processes": {}}), flush=True)
while number == 1 and not os.path.exists("GO"):
    time.sleep(0.05)
if number == 1:
    print(json.dumps({"recycle": "it is used up"}), flush=True)
for line in sys.stdin:
    if line.strip() in ("replaced", "stop"):
        sys.exit(0)
sys.exit(1)
"""
"""One that is replaced when a file is there."""
SLOW = """
import json, socket, sys, tempfile, threading, time
from stateflow.hosts.client import Connection
def answer():
    while True:
        asked = Connection(server.accept()[0])
        asked.receive()
        asked.send({"places": 1})
time.sleep(2.5)
server = socket.socket(socket.AF_UNIX)
room = tempfile.TemporaryDirectory()
server.bind(place := room.name + "/socket")
server.listen()
threading.Thread(target=answer, daemon=True).start()
print(json.dumps({"ready": place, "processes": {}}), flush=True)
for line in sys.stdin:
    if line.strip() in ("drain", "stop"):
        sys.exit(0)
"""
"""One whose Spark takes its time, and that says then that it is there."""
DEAF = """
import json, sys, time
print(json.dumps({"ready": "nowhere", "processes": {}}), flush=True)
time.sleep(600)
"""
"""One that does not hear what it is told."""
LEAVING = """
import json, subprocess, sys
spark = subprocess.Popen(["sh", "-c", 'sleep 1; touch "$0"/over', sys.argv[1]], stdout=2)
print(json.dumps({"ready": "nowhere", "processes": {"jvm": spark.pid}}), flush=True)
sys.stdin.readline()
"""
"""One whose Spark ends a while after it."""
TALKING = """
import json, sys
for said in ("hello", "42", "[]", "null", '{"key": "a"}', '{"ready": 1, "processes": {}}', '{"ready": "here"}', "[" * 20000):
    print(said)
print(json.dumps({"ready": "nowhere", "processes": {}}), flush=True)
print("true", flush=True)
for line in sys.stdin:
    sys.exit(0)
"""
"""One that prints what is no message."""
BACKWARDS = (
    "import time; real, began = time.time, time.time(); time.time = lambda: began - 100 * (real() - began); "
)
IMPATIENT = """
import queue, subprocess
from stateflow.hosts import keeper
class Full(subprocess.Popen):
    def __init__(self, command, **given):
        if command[-1] != "1":
            raise OSError("no process is left")
        super().__init__(command, **given)
class Now(queue.SimpleQueue):
    def get(self, timeout):
        return super().get(timeout=0.0001)
keeper.subprocess.Popen, keeper.queue.SimpleQueue, keeper.MOST_PAUSE = Full, Now, 1e-9
"""
"""A machine on which one process starts and no other, and a keeper that tries another start at once."""
FAST = "import time; real = time.time; time.time = lambda: real() + 7200; "
"""Clocks of a machine that somebody sets."""
DEAF_TO_ENDS = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
KEEP = "import sys; from pathlib import Path; from stateflow.hosts.keeper import keep; sys.exit(keep(Path(sys.argv[1]), [sys.executable, '-c', sys.argv[2]]))"
KEEP_ITS = KEEP.replace("sys.argv[2]])", "sys.argv[2]], HostSettings(places=PLACES))").replace(
    "import keep;", "import keep; from stateflow.hosts.settings import HostSettings;"
)


def kept(
    folder: Path,
    settings: HostSettings,
    application: str = APPLICATION,
    *,
    clock: str = "",
    log: int | IO[str] = subprocess.PIPE,
) -> subprocess.Popen[str]:
    starting.prepare(folder, settings)
    process = subprocess.Popen(
        [sys.executable, "-c", clock + KEEP, str(folder), application], stderr=log, text=True
    )
    eventually((folder / "current.json").exists, "its application takes runs")
    return process


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "hosts" / "team"
    if keeper := starting.keeper_of(tmp_path / "hosts" / "team"):
        os.kill(keeper.pid, 9)


@pytest.mark.parametrize("clock", ["", BACKWARDS, FAST], ids=["right", "backwards", "ahead"])
def test_a_host_whose_lease_nobody_renews_drains(folder: Path, clock: str) -> None:
    keeper = kept(folder, HostSettings(lease=1.0), clock=clock)
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        lease.renew(folder)
        time.sleep(0.1)
    assert keeper.poll() is None, "it stays while somebody renews it"
    _, said = keeper.communicate(timeout=60)
    assert keeper.returncode == 0
    assert "nobody has renewed the lease for 1 s: the host drains" in said
    assert not starting.has_died(folder), "it has ended by itself"


def test_whoever_waits_for_a_start_that_takes_longer_than_the_lease_renews_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "KEEPER", (sys.executable, "-c", KEEP.replace("sys.argv[2]", repr(SLOW))))
    assert starting.start(folder, HostSettings(lease=1.0)) == {"places": 1}
    log = folder / "host.log"
    assert "drains" not in log.read_text()
    eventually(lambda: "nobody has renewed the lease for 1 s" in log.read_text(), "then nobody keeps it")
    eventually(lambda: starting.keeper_of(folder) is None, "and it ends")


def test_a_host_of_another_container_that_shares_its_folder_keeps_its_settings(folder: Path) -> None:
    starting.prepare(folder, HostSettings(places=2))
    lock = claim(folder)
    # As its process is seen where that number means nobody, or somebody else.
    write(folder, "keeper.json", KeeperProcess(os.getpid(), "another start"))
    for asked in (HostSettings(places=2), HostSettings(places=7)):
        with refused(BusyError, "'team'", "another container", "`stateflow host stop team`"):
            starting.prepare(folder, asked)
    assert read_settings(folder).places == 2
    # One that begins between the look for it and the writing.
    (folder / "keeper.json").unlink()
    with refused(BusyError, "'team'", "`stateflow host show team`"):
        starting.prepare(folder, HostSettings(places=7))
    assert read_settings(folder).places == 2
    os.close(lock)


def test_of_two_starts_in_one_moment_one_is_refused_and_the_other_has_its_own_settings(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has prepared its start first, and claims the host last."""
    mine, theirs = HostSettings(places=2), HostSettings(places=7)
    locks: list[int] = []

    class Later(subprocess.Popen[bytes]):
        def __init__(self, *given: Any, **more: Any) -> None:
            locks.append(claim(folder))
            write(folder, "settings.json", theirs)
            super().__init__(*given, **more)

    try:
        with monkeypatch.context() as patched:
            patched.setattr(
                starting, "KEEPER", (sys.executable, "-m", "stateflow.cli.host_processes", "keep")
            )
            patched.setattr(starting.subprocess, "Popen", Later)
            with refused(BusyError, "'team'", "--runs 7, not 2", "`stateflow host stop team`"):
                starting.start(folder, mine)
        assert read_settings(folder) == theirs
    finally:
        os.close(locks[0])
        shutil.rmtree(folder)

    first = [sys.executable, "-c", KEEP_ITS.replace("PLACES", "2"), str(folder), APPLICATION]
    starting.prepare(folder, mine)
    starting.prepare(folder, theirs)
    keeper = subprocess.Popen(first, stderr=subprocess.PIPE, text=True)
    eventually((folder / "current.json").exists, "its application takes runs")
    assert read_settings(folder) == mine
    keeper.terminate()
    keeper.communicate(timeout=60)


def test_a_host_without_a_lease_stays(folder: Path) -> None:
    keeper = kept(folder, HostSettings())
    os.utime(folder / lease.RENEWED, (0, 0))
    time.sleep(1.5)
    assert alive(keeper.pid)
    assert starting.drain(folder)
    assert keeper.wait(60) == 0
    assert not starting.drain(folder)
    keeper.communicate()


def test_a_killed_keeper_is_told_from_one_that_has_ended(folder: Path) -> None:
    assert starting.has_died(folder), "nothing is there"
    keeper = kept(folder, HostSettings())
    assert not starting.has_died(folder)
    keeper.kill()
    keeper.communicate()
    assert starting.has_died(folder)


def test_a_dead_spark_has_its_successor_at_once_and_the_name_no_longer(folder: Path) -> None:
    keeper = kept(folder, HostSettings(), LOSING)
    eventually(lambda: "nowhere-2" in current(folder), "another application takes runs")
    keeper.terminate()
    _, said = keeper.communicate(timeout=60)
    assert keeper.returncode == 0
    assert said.count("another one starts") == 1, said
    assert "application 2 starts" in said


@pytest.mark.parametrize("clock", ["", BACKWARDS, DEAF_TO_ENDS], ids=["right", "backwards", "started deaf"])
def test_a_replacement_that_does_not_start_is_tried_again(folder: Path, clock: str) -> None:
    keeper = kept(folder, HostSettings(), HINDERED, clock=clock)
    eventually(lambda: "nowhere-3" in current(folder), "the second replacement takes runs")
    keeper.terminate()
    _, said = keeper.communicate(timeout=60)
    assert keeper.returncode == 0
    assert "application 2 has ended with code 1: another one starts in 1 s" in said
    assert "application 4" not in said


def test_however_often_a_replacement_does_not_start_the_application_before_it_goes_on(
    folder: Path, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    with said.open("w", encoding="utf-8") as log:
        keeper = kept(folder, HostSettings(), HINDERED, clock=IMPATIENT, log=log)
    eventually(lambda: "application 2000 cannot" in said.read_text(), "two thousand starts fail")
    assert "nowhere-1" in current(folder)
    keeper.terminate()
    assert keeper.wait(60) == 0


def test_a_disk_without_room_for_the_log_ends_no_host(folder: Path) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        keeper = kept(folder, HostSettings(), HINDERED, log=full)
    eventually(lambda: "nowhere-3" in current(folder), "the second replacement takes runs")
    keeper.terminate()
    assert keeper.wait(60) == 0


def test_the_log_of_a_host_begins_anew_when_it_is_large(folder: Path) -> None:
    folder.mkdir(parents=True)
    bounded = "from stateflow.driver import supervisor; supervisor.LOG_BYTES = 1000; "
    with (folder / "host.log").open("a", encoding="utf-8") as log:
        keeper = kept(folder, HostSettings(), clock=bounded, log=log)
        log.write("what Spark says\n" * 100)
    eventually(lambda: (folder / "host.log").stat().st_size == 0, "it begins anew")
    assert (folder / "host.log.1").read_text().endswith("what Spark says\n")
    keeper.terminate()
    assert keeper.wait(60) == 0


def test_while_the_name_of_a_host_cannot_be_written_the_application_that_has_it_goes_on(folder: Path) -> None:
    go = folder.parent / "go"
    keeper = kept(folder, HostSettings(), USED_UP.replace("GO", str(go)))
    hindrance = folder / "current.json.part"
    hindrance.mkdir()
    go.touch()
    eventually((folder / "begun-3").exists, "a second replacement is ready")
    assert "nowhere-1" in current(folder)
    hindrance.rmdir()
    eventually(lambda: "nowhere-1" not in current(folder), "a replacement takes runs")
    keeper.terminate()
    _, said = keeper.communicate(timeout=60)
    assert keeper.returncode == 0
    assert "application 2 cannot take the name of the host" in said


def test_a_signal_waits_until_an_application_has_been_told_what_it_is_being_told(folder: Path) -> None:
    starting.prepare(folder, HostSettings())
    # As a signal that comes amid a word: Python refuses another one on the same pipe then.
    amid = """
import os, signal, stateflow.hosts.keeper as keeper
def tell(self, application, what, tell=keeper.Keeper._tell):
    if self.telling:
        raise RuntimeError("reentrant call")
    self.telling = True
    if what == "replaced":
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000): pass
    tell(self, application, what)
    self.telling = False
keeper.Keeper.telling, keeper.Keeper._tell = False, tell
"""
    application = USED_UP.replace("GO", str(folder))
    words = [sys.executable, "-c", amid + KEEP, str(folder), application]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "application 2 takes runs" in done.stderr


def test_a_line_that_is_no_message_is_logged_and_ends_nothing(folder: Path) -> None:
    keeper = kept(folder, HostSettings(), TALKING)
    assert "nowhere" in current(folder)
    keeper.terminate()
    _, said = keeper.communicate(timeout=60)
    assert keeper.returncode == 0, said
    for line in ("hello", "42", "[]", "null", '{"key": "a"}', '{"ready": "here"}', "true"):
        assert f" {line}\n" in said


def test_an_application_that_does_not_end_when_it_is_told_to_is_killed(folder: Path) -> None:
    keeper = kept(
        folder,
        HostSettings(drain_timeout=0.5),
        DEAF,
        clock="from stateflow.hosts import keeper; keeper.GRACE = 1.0; ",
    )
    keeper.terminate()
    _, said = keeper.communicate(timeout=60)
    assert keeper.returncode == 0, said
    assert said.count("application 1 did not end in 1 s: it is killed") == 1


def test_a_host_has_ended_when_the_spark_of_its_application_has(folder: Path) -> None:
    keeper = kept(folder, HostSettings(), LEAVING)
    keeper.terminate()
    keeper.wait(60)
    assert (folder / "over").exists()
    keeper.communicate()


def test_a_host_whose_folder_was_removed_ends_and_leaves_alone_who_has_its_name(folder: Path) -> None:
    before = kept(folder, HostSettings())
    shutil.rmtree(folder)
    after = kept(folder, HostSettings())
    _, said = before.communicate(timeout=60)
    assert before.returncode == 0
    assert "keeper.json was removed, so nobody finds the host any more: the host drains" in said
    keeper = starting.keeper_of(folder)
    assert keeper is not None
    assert keeper.pid == after.pid
    assert current(folder) != ""
    after.terminate()
    after.communicate(timeout=60)


def test_a_host_that_never_began_is_not_among_those_that_have_ended(folder: Path) -> None:
    starting.prepare(folder, HostSettings())
    words = [sys.executable, "-c", KEEP, str(folder), "raise SystemExit(1)"]
    assert subprocess.run(words, stderr=subprocess.PIPE, timeout=60, check=False).returncode == 1
    assert not (folder / "settings.json").exists()


def current(folder: Path) -> str:
    with suppress(FileNotFoundError):
        return (folder / "current.json").read_text(encoding="utf-8")
    return ""


def heard(folder: Path, number: int) -> list[str]:
    return (folder / f"heard-{number}").read_text(encoding="utf-8").split()


def test_runs_that_do_not_end_are_told_to_end_their_batch_before_a_drained_host_ends(folder: Path) -> None:
    keeper = kept(folder, HostSettings(drain_timeout=0.5), STAYING)
    starting.drain(folder)
    _, said = keeper.communicate(timeout=60)
    assert heard(folder, 1) == ["drain", "stop"]
    assert "application 1 did not drain in 0 s: each of its runs ends after its batch" in said
    assert "application 1 did not stop in 0 s: it is ended with its runs" in said


def test_runs_that_do_not_end_move_to_the_application_that_has_replaced_theirs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLACED", "yes")
    keeper = kept(folder, HostSettings(drain_timeout=0.5), STAYING)
    eventually(lambda: "move" in heard(folder, 1), "they are told to move")
    assert heard(folder, 1) == ["replaced", "move"]
    assert heard(folder, 2) == []
    keeper.terminate()
    keeper.communicate(timeout=60)
    assert heard(folder, 2) == ["stop"]
