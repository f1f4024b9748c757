"""An operation that deletes stays in the folder that it began in, whatever its name leads to meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from stateflow.checkpoint.collection import collect
from stateflow.checkpoint.deletion import delete_job
from stateflow.errors import FencedError, StateflowError
from stateflow.savepoints.dispose import dispose_claimed, dispose_savepoint
from stateflow.storage import beneath
from stateflow.storage.local import LocalStore
from tests.jobs.snapshots import JOB, SOMEBODY, checkpoint, claim, clock, native
from tests.memory_store import MemoryStore
from tests.protocol.scenario import World, drain, drop_tag, make_tag
from tests.refusals.refusal import refused


def savepoint(root: Path) -> None:
    made_in = MemoryStore()
    native(made_in, checkpoint(made_in), LocalStore(root), root.parent / "scratch")


def claimed(root: Path) -> None:
    savepoint(root)
    claim(LocalStore(root), JOB)


def job(root: Path, later_ids: int = 0) -> None:
    world = World(LocalStore(root))
    for _ in range(later_ids):
        world.ids()
    for step in (drain(2), make_tag, drain(6), drop_tag):
        step(world)


def dispose(store: LocalStore) -> None:
    dispose_savepoint(store, owner=SOMEBODY, clock=clock)


def dispose_of_claimed(store: LocalStore) -> None:
    forget = dispose_claimed({}, job=JOB, owner=SOMEBODY, clock=clock, open_base=lambda *_: store)
    forget(store.url)


def gather(store: LocalStore) -> None:
    collect(store, World(store).layout, collector="gc", retained=1, orphans=True)


def remove(store: LocalStore) -> None:
    world = World(store)
    delete_job(store, world.layout, owner=SOMEBODY, ids=world.ids, clock=clock, dispose=lambda url: None)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Swap:
    """Exchanges two folders before the n-th time that somebody opens one of them by its name, and the first time after
    the operation has begun."""

    def __init__(self, one: Path, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.one, self.other = one, other
        self.opened, self.at = 0, 0
        opened = beneath._root

        def open_and_count(root: Path, make: bool) -> int:
            descriptor = opened(root, make)
            self.opened += 1
            if self.opened == self.at:
                self.exchange()
            return descriptor

        monkeypatch.setattr(beneath, "_root", open_and_count)

    def exchange(self) -> None:
        aside = self.one.with_name("aside")
        self.one.rename(aside)
        self.other.rename(self.one)
        aside.rename(self.other)


CASES: dict[str, tuple[Callable[[Path], object], Callable[[LocalStore], object]]] = {
    "dispose of a savepoint": (savepoint, dispose),
    "dispose of a claimed savepoint": (claimed, dispose_of_claimed),
    "collect": (job, gather),
    "delete a job": (job, remove),
}


@pytest.mark.parametrize("case", CASES)
def test_a_root_that_is_exchanged_at_any_moment_costs_the_other_one_nothing(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, operation = CASES[case]
    at, swapped = 1, True
    while swapped:
        folder = tmp_path / str(at)
        one, other = folder / "one", folder / "other"
        for each in (one, other):
            each.mkdir(parents=True)
            make(each)
        before = files(other)
        with monkeypatch.context() as patch:
            swap = Swap(one, other, patch)
            swap.at = at
            with suppress(StateflowError):
                operation(LocalStore(one))
            swapped = swap.opened >= at
        assert files(one if swapped else other) == before, f"exchanged after {at} openings"
        at += 1
    assert at > 2, "nothing was exchanged"


def test_a_run_whose_root_was_exchanged_collects_nothing_of_the_other_job(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    job(one)
    job(other, later_ids=1)
    world = World(LocalStore(one))
    writer = world.claim("run")
    before = files(other)
    aside = one.rename(tmp_path / "aside")
    other.rename(one)
    with refused(FencedError, "another job 'orders'", str(one), "nothing of it is deleted"):
        writer.collect(1, orphans=True)
    assert files(one) == before
    assert aside.is_dir()
