"""Against a plain model: a diff says exactly how two checkpoints' entries differ, whatever happened between them."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stateflow.reading.diff import Differences
from stateflow.reading.history import history_of_key
from stateflow.reading.past_states import KeyOfState, PastStates
from stateflow.reading.stored_entries import StateEntries, states_by_id
from tests.reading.grown import GROUPS, GrownJob, prefix

USERS = 7


def grown(
    folder: Path, backend: str, seed: int, *, batches: int = 12, threshold: int = 0, ttl_time: str = "event"
) -> GrownJob:
    job = GrownJob(folder / "root", backend=backend, seed=seed, inline_threshold=threshold, ttl_time=ttl_time)
    rng = random.Random(seed)
    for number in range(batches):
        act = rng.random()
        if number and act < 0.12:
            job.rescale(rng.choice((1, 2, 3)))
        elif number > 3 and act < 0.2:
            job.restore(rng.choice(list(job.models)))
        elif number and act < 0.3:
            group = rng.randrange(GROUPS)
            # The index of expiries stays, for what it names is only hidden.
            job.batch(ranges=((prefix(group, 1), prefix(group, 4)),))
        elif number == batches // 2:
            job.evolve()
            job.batch(job.some(USERS))
        else:
            job.batch(job.some(USERS))
    return job


def visible(job: GrownJob, slot: int, host: Path) -> dict[tuple[str, str], Any]:
    """The model of a checkpoint as a person sees it."""
    record = job.at(slot)
    reader = job.context(host).reader(record)
    states = states_by_id(
        record.operators["balance"], lambda name: StateEntries(reader.target("balance", name))
    )
    seen = {}
    for key, raw in job.models[slot].items():
        if (named := states.get(int.from_bytes(key[2:4], "big"))) is None:
            continue
        name, state = named
        if not state.expired(raw, job.clock_of(record) if name == "brief" else None):
            entry = state.name(key)
            seen[name, repr((entry.key, entry.part))] = state.value(entry, raw)
    return seen


def diff(job: GrownJob, one: int, other: int, host: Path) -> dict[tuple[str, str], tuple[str, Any, Any]]:
    differences = Differences(job.snapshot(one, host), job.snapshot(other, host), look_up=True)
    found = [(c.state, repr((c.key, c.part)), c.kind, c.before, c.after) for c in differences.changes()]
    assert len({each[:2] for each in found}) == len(found), "an entry was named twice"
    return {(state, entry): (kind, before, after) for state, entry, kind, before, after in found}


def applied(before: dict[Any, Any], changes: dict[Any, tuple[str, Any, Any]]) -> dict[Any, Any]:
    after = dict(before)
    for entry, (kind, was, now) in changes.items():
        assert after.get(entry) == was, entry
        assert kind == ("came" if was is None else "changed" if now is not None else kind)
        if now is None:
            assert kind in ("went", "expired")
            del after[entry]
        else:
            after[entry] = now
    return after


@pytest.mark.parametrize(
    ("backend", "seed", "threshold", "ttl_time"),
    [("rocksdb", seed, 0, "event") for seed in range(3)]
    + [
        ("rocksdb", 4, 0, "processing"),
        ("memory", 11, 0, "processing"),
        ("memory", 12, 1 << 20, "event"),
        ("rocksdb", 13, 1 << 20, "event"),
    ],
)
def test_a_diff_applied_to_one_checkpoint_gives_the_other(
    tmp_path: Path, backend: str, seed: int, threshold: int, ttl_time: str
) -> None:
    job = grown(tmp_path, backend, seed, threshold=threshold, ttl_time=ttl_time)
    host = tmp_path / "host"
    models = {slot: visible(job, slot, host) for slot in job.models}
    pairs = list(itertools.permutations(models, 2))
    neighbours = list(itertools.pairwise(models))
    for one, other in [*neighbours, *random.Random(seed).sample(pairs, 15)]:
        changes = diff(job, one, other, host)
        assert applied(models[one], changes) == models[other], (one, other)
        assert all(was != now for _, was, now in changes.values())
    for one, between, other in random.Random(seed).sample(list(itertools.permutations(models, 3)), 4):
        through = applied(
            applied(models[one], diff(job, one, between, host)), diff(job, between, other, host)
        )
        assert through == applied(models[one], diff(job, one, other, host))


@pytest.mark.parametrize(
    ("backend", "seed", "ttl_time"),
    [("rocksdb", 1, "event"), ("memory", 2, "event"), ("rocksdb", 3, "processing")],
)
def test_a_history_agrees_with_a_query_of_every_checkpoint(
    tmp_path: Path, backend: str, seed: int, ttl_time: str
) -> None:
    job = grown(tmp_path, backend, seed, ttl_time=ttl_time)
    context = job.context(tmp_path / "host")
    records = [job.at(slot) for slot in job.models]
    asked = list(itertools.product(job.schemas, range(USERS)))
    told: dict[tuple[str, int, int], Any] = {}
    for record in records:
        reader = replace(context, clock=lambda record=record: record.now).reader(record)
        for state, user in asked:
            found = reader.look_up("balance", state, user)
            told[state, user, record.slot] = found.json if found.found else None
        reader.close()
    for state, user in asked:
        past = history_of_key(records, PastStates(context), KeyOfState("balance", state, str(user)))
        changes = {version.slot: version for version in past.versions}
        now = None
        for record in records:
            if record.slot in changes:
                now = changes[record.slot].value
            assert now == told[state, user, record.slot], (state, user, record.slot)
