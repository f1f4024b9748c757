"""The story on HDFS: at each file that is written, its writer dies or hears nothing when HDFS has got some share of it.

What a whole or a missing object means is enumerated in `test_crash_everywhere.py`. Here a file can be neither.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from stateflow.storage.hdfs import HdfsStore
from tests.fake_hdfs import Accident, FakeHdfs
from tests.memory_store import MemoryStore
from tests.protocol.scenario import STORY, Sink, World, check, copy_sinks, tell
from tests.protocol.test_crash_everywhere import CREATES_NOTHING, Life, conclude, survive

ACCIDENTS = {
    "it dies before a byte arrives": Accident(0, closed=True, dies=True),
    "it dies when half has arrived": Accident(0.5, closed=True, dies=True),
    "it dies when all but a byte has arrived": Accident(0.999, closed=True, dies=True),
    "it dies and its DataNode dies": Accident(0.5, closed=False, dies=True),
    "half has arrived and it hears nothing": Accident(0.5, closed=True, dies=False),
    "its DataNode dies and it hears nothing": Accident(0.5, closed=False, dies=False),
    "all has arrived and it hears nothing": Accident(1, closed=True, dies=False),
}


class Moment:
    """A world that can be put back to where it was."""

    def __init__(self, world: World, web: FakeHdfs) -> None:
        self.web, self.sinks, self.ticks = web.snapshot(), copy_sinks(world), world.ticks

    def again(self) -> tuple[World, FakeHdfs]:
        web = self.web.snapshot()
        world = World(store(web))
        world.sinks = {
            uid: Sink(list(s.rows), list(s.commits), set(s.poison)) for uid, s in self.sinks.items()
        }
        world.ticks = self.ticks
        return world, web


def store(web: FakeHdfs) -> HdfsStore:
    return HdfsStore("hdfs://namenode/root", pause=lambda _: None, web=web)


def moment_before(wanted: str) -> Moment:
    web = FakeHdfs()
    world = World(store(web))
    for name, life in STORY:
        if name == wanted:
            break
        life(world)
    return Moment(world, web)


def files_written(moment: Moment, life: Life) -> int:
    world, web = moment.again()
    life(world)
    return sum(op == "CREATE" for op, _ in web.calls)


def happens_once(number: int, accident: Accident) -> Callable[[str, str], Accident | None]:
    """It happens to the so manieth file."""
    turns = itertools.count()
    return lambda op, path: accident if next(turns) == number else None


@pytest.mark.slow
@pytest.mark.parametrize("accident", ACCIDENTS)
@pytest.mark.parametrize("name", [name for name, _ in STORY if name not in CREATES_NOTHING])
def test_whatever_becomes_of_a_writer_of_any_file_the_job_recovers_exactly_once(
    name: str, accident: str
) -> None:
    life = dict(STORY)[name]
    moment = moment_before(name)
    written = files_written(moment, life)
    assert written > 0
    for number in range(written):
        world, web = moment.again()
        web.accident = happens_once(number, ACCIDENTS[accident])
        survive(world, life)
        # Somebody else goes on: the process that noticed torn files is gone.
        world.store = store(web)
        check(world, settled=False)
        conclude(world, name, life)


def test_the_whole_story_ends_as_it_does_in_memory() -> None:
    in_memory, on_hdfs = tell(MemoryStore()), tell(store(FakeHdfs()))
    assert on_hdfs.store.list("") == in_memory.store.list("")
