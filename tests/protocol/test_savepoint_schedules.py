"""Makers, claimers and disposals of one savepoint's folder side by side, switching at every store call."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from stateflow.errors import StateflowError
from stateflow.format.records import Owner, Record, Savepoint
from stateflow.savepoints.dispose import dispose_savepoint
from stateflow.savepoints.format import (
    claim_savepoint,
    read_savepoint,
    read_savepoint_claim,
    verify_savepoint,
)
from tests.jobs.snapshots import checkpoint, clock, native
from tests.memory_store import MemoryStore
from tests.protocol.scenario import World
from tests.protocol.turns import Choose, Played, Turns, every_schedule, some_schedules

CASTS: Mapping[str, tuple[tuple[str, ...], bool]] = {
    "disposals and claims": (("person 1", "person 2", "claim 1", "claim 2"), True),
    "made and disposed of": (("maker 1", "person 1", "claim 1"), False),
    "made twice and disposed of": (("maker 1", "maker 2", "claim 1", "person 1"), False),
    "claimed, given up and disposed of": (("owner 1", "claim 1", "person 1"), True),
    "given up where another is made": (("maker 1", "owner 1", "claim 2", "person 1"), False),
    "made where a clean-up has found leftovers": (("maker 1", "leftovers 1", "claim 1"), False),
    "made where a clean-up has found an expired one": (("maker 1", "expired 1", "person 1"), True),
}
"""Who plays, and whether there is a savepoint before."""


class Scene:
    def __init__(self) -> None:
        self.root = MemoryStore("root")
        self.record: Record = checkpoint(self.root, (30, 20))
        self.scratch = Path(tempfile.mkdtemp())
        ready = MemoryStore("saved")
        self.ready: Savepoint = native(self.root, self.record, ready, self.scratch, threads=1)
        self.folder = ready.snapshot()

    def played(self, cast: str, told: Counter[str]) -> Callable[[Choose], Played]:
        names, there = CASTS[cast]

        def play(choose: Choose) -> Played:
            target = MemoryStore("saved", self.folder if there else {})
            ends: dict[str, object] = {}

            def actor(name: str) -> Callable[[], None]:
                def act() -> None:
                    try:
                        ends[name] = self.act(name, target)
                    except StateflowError as error:
                        ends[name] = error

                return act

            result = Turns(World(target), target, {name: actor(name) for name in names}).play(choose)
            target.before = None
            try:
                self.judge(target, result, ends)
            except AssertionError as error:
                raise AssertionError(f"{error}: {ends}\nafter\n{result.story()}") from error
            told.update(name for name, end in ends.items() if not isinstance(end, StateflowError))
            return result

        return play

    def act(self, name: str, target: MemoryStore) -> object:
        owner = Owner(run=name)
        match name.split()[0]:
            case "maker":
                return native(self.root, self.record, target, self.scratch, threads=1)
            case "claim":
                return claim_savepoint(target, job=name, name=name, owner=owner, clock=clock)
            case "owner":
                claim_savepoint(target, job=name, name=name, owner=owner, clock=clock)
                return dispose_savepoint(target, owner=owner, clock=clock, by_job=name)
            case "leftovers":
                return dispose_savepoint(target, owner=owner, clock=clock, expect="")
            case "expired":
                return dispose_savepoint(target, owner=owner, clock=clock, expect=self.ready.id)
        return dispose_savepoint(target, owner=owner, clock=clock)

    def judge(self, target: MemoryStore, result: Played, ends: Mapping[str, object]) -> None:
        dead = set(result.errors)
        won = {name: end for name, end in ends.items() if not isinstance(end, StateflowError)}
        claim, there = read_savepoint_claim(target), bool(target.list("_metadata"))
        broken = there and any(f.severity == "error" for f in verify_savepoint(target, deep=True))
        owners = [name for name in won if name.startswith("claim")]
        assert len(owners) <= 1, "two jobs own it"
        if owners:
            assert claim is not None, "a job's claim is gone"
            assert claim.job == owners[0], "a job's claim is another's"
            assert there, "a job owns nothing"
        if there and not (claim is not None and not claim.job):
            # Only a maker that died before it looked again leaves what a disposal has emptied: it has told nobody.
            assert not broken or any(name.startswith("maker") for name in dead), "visible and broken"
        if claim is not None and not claim.job:
            assert dead, "a disposal left its claim"
        for name, end in won.items():
            disposed = any(other.startswith(("person", "owner")) for other in (*won, *dead))
            if isinstance(end, Savepoint) and name.startswith("maker") and not disposed:
                assert there, "what was made is gone, and nobody wanted it to go"
                assert read_savepoint(target).id == end.id, "what was made is another's"
                assert claim is None or claim.job or claim.savepoint != end.id, "it is being disposed of"


@pytest.mark.slow
@pytest.mark.parametrize("cast", CASTS)
def test_what_stands_is_whole_and_nobody_loses_what_was_told_to_be_his(cast: str) -> None:
    told: Counter[str] = Counter()
    for _ in some_schedules(Scene().played(cast, told), seed=5, count=300):
        pass
    assert all(told[name] for name in CASTS[cast][0]), "somebody never got anywhere"


@pytest.mark.parametrize("cast", ["made where a clean-up has found leftovers", "made and disposed of"])
def test_the_same_in_every_schedule_with_few_preemptions(cast: str) -> None:
    scene, told = Scene(), Counter[str]()
    count = sum(1 for _ in every_schedule(scene.played(cast, told), 1))
    assert count > 50
