"""Against a plain model: a diff says exactly how two checkpoints' entries differ, whatever happened between them, and a history
says what a query says of each."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stateflow.format.records import Record, StateSchema
from stateflow.reading.diff import Differences
from stateflow.reading.history import history_of_key
from stateflow.reading.key_state import key_state
from stateflow.reading.past_states import KeyOfState, PastStates
from stateflow.state.backends import rocksdb
from tests.long_form import BEFORE_A_RELEASE
from tests.reading.grown import EVERY_KIND, GROUPS, GrownJob, Meaning, prefix

USERS = 7
MAY_BE_MISSING = {"total", "items", "log", "waiting", "brief", "short", "chat", "recent"}
"""States of which a range was deleted, or something expired: without a look into shared files nobody knows of it."""
Entry = tuple[str, str]
Changes = dict[Entry, tuple[str, Any, Any]]


@pytest.fixture(autouse=True)
def _ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few entries a range has, it is deleted at a stroke."""
    monkeypatch.setattr(rocksdb, "_POINT_DELETES", 0)


def grown(
    folder: Path,
    backend: str,
    seed: int,
    *,
    batches: int = 12,
    threshold: int = 0,
    ttl_time: str = "event",
    name: str = "orders",
    ids_from: int = 0,
) -> GrownJob:
    job = GrownJob(
        folder / "root",
        name,
        backend=backend,
        seed=seed,
        inline_threshold=threshold,
        ttl_time=ttl_time,
        schemas=EVERY_KIND,
        ids_from=ids_from,
    )
    rng = random.Random(seed)
    for number in range(batches):
        act = rng.random()
        if number and act < 0.1:
            job.rescale(rng.choice((1, 2, 3)))
        elif number and act < 0.15:
            job.join_pieces()
        elif number > 3 and act < 0.22:
            job.restore(rng.choice(list(job.models)))
        elif number > 3 and act < 0.29:
            job.erase(rng.randrange(USERS))
        elif number and act < 0.38:
            group = rng.randrange(GROUPS)
            # The index of expiries stays, for what it names is only hidden.
            job.batch(ranges=((prefix(group, 1 + ids_from), prefix(group, 4 + ids_from)), job.passed(group)))
        elif number == batches // 2:
            job.evolve()
            job.batch(job.some(USERS))
        else:
            job.batch(job.some(USERS))
    return job


def visible(meant: Iterable[Meaning]) -> dict[Entry, Any]:
    return {(m.state, repr((m.user, m.namespace, m.part))): m.value for m in meant}


def diff(
    job: GrownJob, one: int, other: int, host: Path, *, of: GrownJob | None = None, look_up: bool = True
) -> Changes:
    points = job.snapshot(one, host), (of or job).snapshot(other, host)
    found = [
        (c.state, repr((c.key, c.namespace, c.part)), c.kind, c.before, c.after)
        for c in Differences(*points, look_up=look_up).changes()
    ]
    assert len({each[:2] for each in found}) == len(found), "an entry was named twice"
    return {(state, entry): (kind, before, after) for state, entry, kind, before, after in found}


def applied(before: dict[Entry, Any], changes: Changes) -> dict[Entry, Any]:
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


def check_diffs(job: GrownJob, host: Path, rng: random.Random, most: int = 15) -> None:
    models = {slot: visible(job.meant(slot)) for slot in job.models}
    pairs = list(itertools.permutations(models, 2))
    for one, other in [*itertools.pairwise(models), *rng.sample(pairs, most)]:
        changes = diff(job, one, other, host)
        assert applied(models[one], changes) == models[other], (one, other)
        assert all(was != now for _, was, now in changes.values())
    for one, between, other in rng.sample(list(itertools.permutations(models, 3)), 4):
        through = applied(
            applied(models[one], diff(job, one, between, host)), diff(job, between, other, host)
        )
        assert through == applied(models[one], diff(job, one, other, host))
    for one, other in rng.sample(pairs, most // 3):
        told = diff(job, one, other, host, look_up=False)
        check_without_looking(models[one], models[other], told)
        missing = {state for state, _ in diff(job, one, other, host).keys() - told.keys()}
        assert missing <= MAY_BE_MISSING, (one, other)


def check_without_looking(before: dict[Entry, Any], after: dict[Entry, Any], changes: Changes) -> None:
    """What is not known is said to be so, and what is said is right."""
    for entry, (kind, was, now) in changes.items():
        assert kind == "unknown" or now == after.get(entry), entry
        assert kind in ("written", "deleted") or was == before.get(entry), entry


def check_another_job(job: GrownJob, copy: GrownJob, host: Path, rng: random.Random) -> None:
    """States are compared by their names: the other job has other ids, and another backend."""
    for one, other in rng.sample(list(itertools.product(job.models, copy.models)), 4):
        there, here = visible(job.meant(one)), visible(copy.meant(other))
        assert applied(there, diff(job, one, other, host, of=copy)) == here
        assert applied(here, diff(copy, other, one, host, of=job)) == there


def held(schema: StateSchema, meant: list[Meaning]) -> Any:
    """What a query is to show of one key, of one namespace, in one state."""
    if schema.kind == "map":
        return {m.part: m.value for m in meant}
    if schema.kind == "list":
        return [m.value for m in sorted(meant, key=lambda m: m.part)]
    if schema.kind == "columns":
        return sorted(
            ({**m.part, **m.value} for m in meant),
            key=lambda row: (row.get("at"), row["sku"]) if schema.timed else row["sku"],
        )
    if schema.many:
        return sorted(m.value for m in meant)
    (only,) = meant
    return only.value


def check_histories(job: GrownJob, host: Path, users: Iterable[int]) -> None:
    context = job.place(host)
    records = [job.at(slot) for slot in job.models]
    asked = [
        (state, user, namespace)
        for state, schema in job.schemas.items()
        for user in users
        for namespace in ((None, "a", "b") if schema.namespace else (None,))
    ]
    told: dict[tuple[str, int, str | None, int], Any] = {}
    for record in records:
        reader = replace(context, clock=lambda record=record: record.now).reader(record)
        by_key: dict[tuple[str, int, str | None], list[Meaning]] = {}
        for meaning in job.meant(record.slot):
            by_key.setdefault((meaning.state, meaning.user, meaning.namespace), []).append(meaning)
        for place in asked:
            state, user, namespace = place
            found = reader.look_up("balance", state, user, namespace=namespace)
            meant = by_key.get(place)
            assert found.found is (meant is not None), (place, record.slot)
            if meant is not None:
                assert found.value == held(job.schemas[state], meant), (place, record.slot)
            told[*place, record.slot] = found.json if found.found else None
        check_whole_key(job, record, reader, told, users)
        reader.close()
    for state, user, namespace in asked:
        question = KeyOfState("balance", state, str(user), namespace=namespace)
        changes = {v.slot: v for v in history_of_key(records, PastStates(context), question).versions}
        now = None
        for record in records:
            if record.slot in changes:
                now = changes[record.slot].value
            assert now == told[state, user, namespace, record.slot], (state, user, namespace, record.slot)


def check_whole_key(job: GrownJob, record: Record, reader: Any, told: Any, users: Iterable[int]) -> None:
    """All that an operator keeps of a key, at once."""
    for user in users:
        values = key_state(reader, "balance", user, now=record.now, watermark=record.watermark).values()
        expected = {
            state if namespace is None else f"{state}[{namespace}]": value
            for (state, whose, namespace, slot), value in told.items()
            if (whose, slot) == (user, record.slot) and value is not None
        }
        assert values == expected, (user, record.slot)


@pytest.mark.slow
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
    check_diffs(job, tmp_path / "host", random.Random(seed))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "seed", "ttl_time"),
    [("rocksdb", 1, "event"), ("memory", 2, "event"), ("rocksdb", 3, "processing")],
)
def test_a_history_agrees_with_a_query_of_every_checkpoint(
    tmp_path: Path, backend: str, seed: int, ttl_time: str
) -> None:
    check_histories(grown(tmp_path, backend, seed, ttl_time=ttl_time), tmp_path / "host", range(USERS))


def test_a_diff_with_another_job_gives_that_jobs_state(tmp_path: Path) -> None:
    job = grown(tmp_path, "rocksdb", 21, batches=6)
    copy = grown(tmp_path, "memory", 22, batches=6, name="copy", ids_from=40)
    check_another_job(job, copy, tmp_path / "host", random.Random(21))


@BEFORE_A_RELEASE
@pytest.mark.parametrize("first", range(100, 400, 30))
def test_many_jobs_with_more_batches(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 30):
        try:
            check_a_large_job(tmp_path / str(seed), seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def check_a_large_job(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    chosen: dict[str, Any] = {
        "threshold": rng.choice((0, 1 << 20)),
        "ttl_time": rng.choice(("event", "processing")),
    }
    backends = rng.sample(["rocksdb", "memory"], 2)
    job = grown(folder, backends[0], seed, batches=25, **chosen)
    check_diffs(job, folder / "host", rng, 40)
    check_histories(job, folder / "host", rng.sample(range(USERS), 3))
    copy = grown(folder, rng.choice(backends), seed + 1000, batches=8, name="copy", ids_from=40, **chosen)
    check_another_job(job, copy, folder / "host", rng)
