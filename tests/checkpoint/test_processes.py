"""A process is taken for dead only where that is known."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pytest

from stateflow.checkpoint import processes
from stateflow.checkpoint.control import refuse_while_live
from stateflow.checkpoint.processes import ProcessIdentity, identity_of_this_process, is_dead, process_start
from stateflow.errors import BusyError
from stateflow.format.records import Owner
from tests.protocol.scenario import World

HERE = ProcessIdentity("boot", "pid:[1] time:[2]", 99, "900")
ITS = ProcessIdentity("boot", "pid:[1] time:[2]", 7, "100")


@pytest.mark.parametrize(
    ("process", "started", "dead"),
    [
        (ITS, None, True),
        (ITS, "100", False),
        (ITS, "200", True),  # its number was given to another process
        (ITS, "", False),  # nothing is known of the process with this number
        (msgspec.structs.replace(ITS, boot="another machine, or before a restart"), None, False),
        (msgspec.structs.replace(ITS, namespaces="pid:[3] time:[2]"), None, False),
        (msgspec.structs.replace(ITS, namespaces="pid:[1] time:[4]"), "200", False),
        (None, None, False),  # a system that does not say
    ],
)
def test_only_a_process_of_the_same_table_is_known_to_be_dead(
    process: ProcessIdentity | None, started: str | None, dead: bool
) -> None:
    assert is_dead(process, lambda: HERE, lambda pid: started) is dead
    assert not is_dead(process, lambda: None, lambda pid: started), "this process knows no table"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def identity_of(child: subprocess.Popen[bytes]) -> ProcessIdentity:
    own = identity_of_this_process()
    assert own is not None
    assert own == identity_of_this_process()
    started = process_start(child.pid)
    assert started not in (None, "", own.started)
    return msgspec.structs.replace(own, pid=child.pid, started=str(started))


def test_a_process_has_one_start_and_a_dead_one_none(child: subprocess.Popen[bytes]) -> None:
    its = identity_of(child)
    assert not is_dead(its)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_start(child.pid) is None, "nobody has waited for it, and it is dead all the same"
    assert is_dead(its)
    child.communicate()
    assert process_start(child.pid) is None
    assert is_dead(its)


def test_a_process_that_the_system_hides_is_not_taken_for_dead(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    its = identity_of(child)

    def hidden(path: str) -> object:
        raise FileNotFoundError(path)

    monkeypatch.setattr(processes, "Path", hidden)
    assert process_start(child.pid) == ""
    monkeypatch.undo()
    assert not is_dead(its, started=lambda pid: "")


@dataclass
class Waiting:
    seconds: float = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def world() -> World:
    from tests.memory_store import MemoryStore

    made = World(MemoryStore())
    made.claim("A")
    return made


def waited_for(world: World, process: ProcessIdentity | None, *, beats: bool = False) -> float:
    """How long a second run waits for the one whose last heartbeat is of this process."""
    counter = 0

    def heartbeat() -> None:
        nonlocal counter
        counter += beats
        world.beat(counter, epoch=world.log().newest_epoch, owner=Owner(run="A"), process=process)

    heartbeat()
    clock = Waiting()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        heartbeat()

    refuse_while_live(
        world.store, world.layout, Owner(run="B"), patience=10, monotonic=clock.monotonic, sleep=sleep
    )
    return clock.seconds


def test_a_run_whose_process_is_dead_is_not_waited_for(world: World, child: subprocess.Popen[bytes]) -> None:
    its = identity_of(child)
    with pytest.raises(BusyError):
        waited_for(world, its, beats=True)
    assert waited_for(world, its) == 10, "it lives, and may beat again"
    child.kill()
    child.communicate()
    assert waited_for(world, its) == 0
    assert waited_for(world, None) == 10
    elsewhere = msgspec.structs.replace(its, boot="another machine with this host's name")
    assert waited_for(world, elsewhere) == 10


def test_a_run_that_dies_while_it_is_watched_is_waited_for_no_longer(
    world: World, child: subprocess.Popen[bytes]
) -> None:
    world.beat(1, epoch=world.log().newest_epoch, owner=Owner(run="A"), process=identity_of(child))
    clock = Waiting()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.seconds == 3:
            child.kill()
            child.communicate()

    refuse_while_live(
        world.store, world.layout, Owner(run="B"), patience=10, monotonic=clock.monotonic, sleep=sleep
    )
    assert clock.seconds == 3
