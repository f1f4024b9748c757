"""Whatever has happened to a job, and to jobs that began with its savepoints: a diff applied to one checkpoint gives the other, two diffs
in a row are one, a history says what a query says of every kept checkpoint, and a bisection finds the first one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stateflow.format.records import Record, StateSchema
from stateflow.reading.bisect import first_of_any, first_of_key
from stateflow.reading.diff import Differences, names_of_states
from stateflow.reading.history import history_of_key
from stateflow.reading.past_states import KeyOfState, PastStates, other_names
from stateflow.reading.predicates import function
from stateflow.state.backends import rocksdb
from tests.long_form import BEFORE_A_RELEASE
from tests.reading.grown import EVERY_KIND, Meaning
from tests.reading.lived import NUMBERS, USERS, LivedJob, first_name
from tests.reading.test_diff_oracle import applied, check_without_looking, held

Entry = tuple[str, str]
Entries = dict[Entry, Any]


@pytest.fixture(autouse=True)
def _ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few entries a range has, it is deleted at a stroke."""
    monkeypatch.setattr(rocksdb, "_POINT_DELETES", 0)


def entries(job: LivedJob, slot: int) -> Entries:
    found = {(m.state, repr((m.user, m.namespace, m.part))): m.value for m in job.meant(slot)}
    assert len(found) == len(job.meant(slot))
    return found


class Compared:
    """Two points, each of a job."""

    def __init__(self, one: tuple[LivedJob, int], other: tuple[LivedJob, int], host: Path) -> None:
        (job, before), (other_job, after) = one, other
        self.points = job.snapshot(before, host), other_job.snapshot(after, host)
        kept = job.records if job is other_job else list
        self.names = names_of_states(*(point.record for point in self.points), kept)
        self.former = self.names["balance"]
        """By today's name."""
        if (
            job is other_job and "collect_some" not in job.lived
        ):  # what names a state has had may be collected
            assert {first_name(name) for name in self.former} >= set(EVERY_KIND)
        assert all(first_name(name) == first_name(former) for name, former in self.former.items())
        self.before, self.after = entries(job, before), entries(other_job, after)

    def changes(self, *, look_up: bool = True) -> dict[Entry, tuple[str, Any, Any]]:
        """By entry, whose state has its name of the second point if that has it."""
        found = list(Differences(*self.points, look_up=look_up, names=self.names).changes())
        told = {(c.state, repr((c.key, c.namespace, c.part))): (c.kind, c.before, c.after) for c in found}
        assert len(told) == len(found), "an entry was named twice"
        return told

    def renamed(self, before: Entries) -> Entries:
        """The entries of the first point under the names of the second."""
        todays = {former: name for name, former in self.former.items()}
        return {(todays.get(state, state), entry): value for (state, entry), value in before.items()}

    def check(self) -> None:
        changes = self.changes()
        assert applied(self.renamed(self.before), changes) == self.after
        assert all(was != now for _, was, now in changes.values())

    def check_without_looking(self) -> None:
        check_without_looking(self.renamed(self.before), self.after, self.changes(look_up=False))


def check_diffs(jobs: list[LivedJob], host: Path, rng: random.Random, most: int) -> None:
    points = [(job, slot) for job in jobs for slot in job.models]
    neighbours = [pair for job in jobs for pair in itertools.pairwise((job, slot) for slot in job.models)]
    pairs = list(itertools.permutations(points, 2))
    for one, other in [*neighbours, *rng.sample(pairs, min(most, len(pairs)))]:
        try:
            Compared(one, other, host).check()
        except AssertionError as error:
            raise AssertionError(f"{one[0].name} {one[1]} to {other[0].name} {other[1]}: {error}") from error
    for one, other in rng.sample(pairs, min(most // 3, len(pairs))):
        Compared(one, other, host).check_without_looking()
    own = list(itertools.permutations([each for each in points if each[0] is jobs[0]], 3))
    for one, between, other in rng.sample(own, min(most // 3, len(own))):
        first, second, whole = (
            Compared(*each, host) for each in ((one, between), (between, other), (one, other))
        )
        through = applied(
            second.renamed(applied(first.renamed(first.before), first.changes())), second.changes()
        )
        assert through == applied(whole.renamed(whole.before), whole.changes()) == second.after


class Queried:
    """What a query finds in every kept checkpoint of a job, checked against the model."""

    def __init__(self, job: LivedJob, host: Path, users: Sequence[int]) -> None:
        self.job, self.context, self.users, self.records = job, job.place(host), users, job.records()
        assert [record.slot for record in self.records] == sorted(job.models)
        self.told: dict[tuple[str, int, str | None, int], Any] = {}
        """By state, user, namespace and slot."""
        for record in self.records:
            self._query(record)

    def _query(self, record: Record) -> None:
        reader = replace(self.context, clock=lambda: record.now).reader(record)
        meant: dict[tuple[str, int, str | None], list[Meaning]] = {}
        for each in self.job.meant(record.slot):
            meant.setdefault((each.state, each.user, each.namespace), []).append(each)
        for state, schema in record.operators["balance"].states.items():
            for place in itertools.product([state], self.users, namespaces(schema)):
                found = reader.look_up("balance", state, place[1], namespace=place[2])
                here = meant.get(place)
                assert found.found is (here is not None), (place, record.slot)
                if here is not None:
                    assert found.value == held(schema, here), (place, record.slot)
                    self.told[*place, record.slot] = found.json
        reader.close()

    def check_history(self, state: str) -> None:
        """`state`: one of its names."""
        others = other_names(self.records, "balance", state)
        if first_name(state) in EVERY_KIND and "collect_some" not in self.job.lived:
            assert all(others.get(r.slot, state) in r.operators["balance"].states for r in self.records), (
                state
            )
        schema = next(s for r in self.records for n, s in r.operators["balance"].states.items() if n == state)
        for user, namespace in itertools.product(self.users, namespaces(schema)):
            asked = KeyOfState("balance", state, str(user), namespace=namespace)
            found = history_of_key(self.records, PastStates(self.context), asked)
            versions = {version.slot: version for version in found.versions}
            now = None
            for record in self.records:
                if record.slot in versions:
                    now = versions[record.slot].value
                name = others.get(record.slot, state)
                assert now == self.told.get((name, user, namespace, record.slot)), (asked, record.slot)

    def check_bisections(self, state: str, wanted: int) -> None:
        """`state`: the name of today of one that holds numbers."""
        others = other_names(self.records, "balance", state)
        predicate = function("wanted", lambda value: value == wanted)
        known = [r for r in self.records if others.get(r.slot, state) in r.operators["balance"].states]
        having = [
            {(m.user, m.value) for m in self.job.meant(r.slot) if m.state == others.get(r.slot, state)}
            for r in known
        ]
        first = next(
            (r.slot for r, some in zip(known, having, strict=True) if any(v == wanted for _, v in some)), None
        )
        found = first_of_any(self.records, self.context, "balance", state, predicate)
        assert (found.record and found.record.slot) == first, (state, wanted)
        if EVERY_KIND[first_name(state)].kind not in ("value", "reducing"):
            return
        for user in self.users:
            first = next(
                (r.slot for r, some in zip(known, having, strict=True) if (user, wanted) in some), None
            )
            asked = KeyOfState("balance", state, str(user), limit=None)
            found = first_of_key(self.records, PastStates(self.context), asked, predicate, scan=True)
            assert (found.record and found.record.slot) == first, (state, user, wanted)


def namespaces(schema: StateSchema) -> Sequence[str | None]:
    return (None, "a", "b") if schema.namespace else (None,)


def check_questions(job: LivedJob, host: Path, rng: random.Random, users: Sequence[int]) -> None:
    asked = Queried(job, host, users)
    states = [name for record in asked.records for name in record.operators["balance"].states]
    by_state = {
        first_name(name): sorted(each for each in set(states) if first_name(each) == first_name(name))
        for name in states
    }
    for names in by_state.values():
        asked.check_history(rng.choice(names))
    for name in asked.records[-1].operators["balance"].states:
        if first_name(name) in NUMBERS:
            asked.check_bisections(name, rng.randrange(4))


def check_a_family(folder: Path, seed: int, *, acts: int, most: int, users: int) -> list[str]:
    """A job, and two that begin with its savepoints."""
    rng = random.Random(seed)
    job = LivedJob(
        folder / "root",
        seed=seed,
        backend=rng.choice(("rocksdb", "rocksdb", "memory")),
        inline_threshold=rng.choice((0, 0, 1 << 20)),
        ttl_time=rng.choice(("event", "processing")),
    )
    lived = list(job.lives(acts))
    jobs = [job]
    for number, claim_mode in enumerate(("claim", "no_claim")):
        child = job.child(f"child-{number}", claim_mode, packed=rng.random() < 0.5)  # type: ignore[arg-type]
        lived += child.lives(acts // 3)
        jobs.append(child)
    host = folder / "host"
    check_diffs(jobs, host, rng, most)
    for each in jobs:
        check_questions(each, host, rng, rng.sample(range(USERS), users))
    return lived


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_past_of_a_job_that_has_lived_is_that_of_a_plain_model(tmp_path: Path, seed: int) -> None:
    check_a_family(tmp_path, seed, acts=16, most=12, users=2)


@BEFORE_A_RELEASE
@pytest.mark.parametrize("seed", range(1000, 1060))
def test_many_jobs_that_have_lived_longer(tmp_path: Path, seed: int) -> None:
    check_a_family(tmp_path, seed, acts=30, most=30, users=3)
