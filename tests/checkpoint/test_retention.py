"""What a record announces that it keeps, and that it stays until a later record lets it go."""

from __future__ import annotations

import logging

import pytest

from stateflow.checkpoint.collection import collect, inspect
from stateflow.checkpoint.edit import edit
from stateflow.checkpoint.retention import Retention, announced_by
from stateflow.checkpoint.verification import verify
from stateflow.config.retention_rule import NO_RULE, RetentionRule, retention_rule
from stateflow.errors import CorruptError
from stateflow.format.references import job_files
from stateflow.storage.store import Entry
from tests.jobs.log import complete, log, pending, record
from tests.memory_store import Call, MemoryStore
from tests.protocol.scenario import World, check
from tests.refusals.refusal import refused

MINUTE = 60_000_000
HOURLY = retention_rule("hourly for 3 days")
AT = [0, 20, 40, 70, 90, 130]
"""Minutes of the checkpoints in slots 1 to 6."""


@pytest.mark.parametrize(
    ("what", "floor", "kept", "kind", "retention", "announced"),
    [
        ("no rule", 1, (), "checkpoint", Retention(1), (7, ())),
        ("the last of each hour", 1, (), "checkpoint", Retention(1, rule=HOURLY), (5, (3,))),
        (
            "what stays one after the other has no mention",
            1,
            (),
            "fence",
            Retention(1, rule=HOURLY),
            (5, (3,)),
        ),
        ("a fence, too", 1, (), "fence", Retention(2, rule=HOURLY), (5, (3,))),
        ("no more than before below the floor", 5, (), "checkpoint", Retention(1, rule=HOURLY), (5, ())),
        ("what was kept before", 5, (3,), "checkpoint", Retention(1, rule=HOURLY), (5, (3,))),
        ("a rule that was taken away", 5, (3,), "checkpoint", Retention(1), (7, ())),
        ("nothing is said: as before", 5, (3,), "fence", None, (5, (3,))),
        ("an erasure", 5, (3,), "erase", Retention(1, rule=HOURLY), (7, ())),
        ("all that are young", 1, (), "checkpoint", Retention(1, age=65 * MINUTE, now=130 * MINUTE), (4, ())),
    ],
)
def test_a_record_announces(
    what: str,
    floor: int,
    kept: tuple[int, ...],
    kind: str,
    retention: Retention | None,
    announced: tuple[int, tuple[int, ...]],
) -> None:
    slots = range(1, 7)
    if floor > 1:
        slots = sorted({*kept, *range(floor, 7)})
    found = log(
        *(complete(record(n, at=AT[n - 1] * MINUTE, floor=floor, kept=kept)) for n in slots),
    )
    assert announced_by(found, kind, retention) == announced


def test_what_was_let_go_once_is_not_kept_again() -> None:
    """A collector may be deleting it. It would be the last of its hour."""
    newest = complete(record(6, floor=5, kept=(2,), at=130 * MINUTE))
    older = [complete(record(n, at=AT[n - 1] * MINUTE)) for n in (2, 3, 5)]
    found = log(*older, newest)
    assert announced_by(found, "checkpoint", Retention(1, rule=HOURLY)).kept == (2,)


def test_what_is_damaged_stays_announced_and_what_is_gone_does_not() -> None:
    newest = complete(record(6, floor=5, kept=(2, 3), at=130 * MINUTE))
    found = log(pending(record(3)), complete(record(5, floor=5, at=90 * MINUTE)), newest)
    assert found.lost == (2, 3)
    assert announced_by(found, "checkpoint", Retention(1, rule=HOURLY)).kept == (3,)


@pytest.fixture
def world() -> World:
    made = World(MemoryStore())
    made.tick, made.kept_files = 2 * MINUTE, 1
    return made


def by(world: World, rule: RetentionRule = HOURLY, retained: int = 1) -> Retention:
    return Retention(retained, rule=rule, now=world.clock())


def run(world: World, batches: int, rule: RetentionRule = HOURLY) -> None:
    writer = world.claim(retained=by(world, rule))
    for _ in range(batches):
        world.batch(writer)
        writer.collect(by(world, rule), orphans=False)
    writer.collect(by(world, rule), orphans=True)


def slots(world: World) -> list[int]:
    return [each.slot for each in world.log().checkpoints]


def state_file(world: World, slot: int) -> list[str]:
    return [path for path in job_files([world.log().record(slot)]) if "/shared/" in path]


def test_kept_checkpoints_are_behind_the_floor_and_whole(world: World) -> None:
    run(world, 12)
    log = world.log()
    assert len(log.kept) >= 2
    assert max(log.kept) < log.floor
    assert slots(world) == [*log.kept, *(n for n in slots(world) if n >= log.floor)]
    assert [f.text for f in verify(world.store, world.layout, deep=True)] == []
    check(world, settled=True)


def test_a_collector_that_knows_no_rule_deletes_nothing_that_it_keeps(world: World) -> None:
    run(world, 12)
    before = slots(world)
    plan = inspect(world.store, world.layout, 1)
    assert set(world.log().kept) <= set(plan.announced)
    assert world.collect(1).removed == ()
    assert slots(world) == before


def test_a_narrower_rule_lets_go_and_its_bytes_are_counted(world: World) -> None:
    run(world, 12)
    kept = world.log().kept
    only = [path for slot in kept for path in state_file(world, slot)]
    sizes = {entry.path: entry.size for entry in world.store.list(world.layout.shared)}
    writer = world.claim(retained=1)
    report = writer.collect(1, orphans=False)
    assert set(kept) <= set(report.removed)
    assert report.bytes_by_reason["subsumed"] >= sum(sizes[path] for path in only)
    assert not {*only} & {entry.path for entry in world.store.list(world.layout.shared)}
    check(world, settled=True)


def test_a_wider_rule_keeps_from_now_on_and_brings_nothing_back(world: World) -> None:
    run(world, 12, NO_RULE)
    before = slots(world)
    run(world, 12)
    assert len(world.log().kept) >= 2
    assert min(slots(world)) >= before[0]


def test_who_says_nothing_of_retention_keeps_what_was_announced(world: World) -> None:
    """An erasure's claim, an abandonment, an edit without options."""
    run(world, 12)
    kept = world.log().kept
    world.claim("somebody")
    assert world.log().kept == kept
    world.collect(1)
    assert set(kept) <= set(slots(world))


def test_a_restore_keeps_what_was_announced_and_a_kept_checkpoint_is_restored(world: World) -> None:
    run(world, 12)
    before = world.log()
    target = before.record(before.kept[0])
    edit(
        world.store,
        world.layout,
        lambda writer: world.rewind(target),
        owner=world.owner("restore"),
        ids=world.ids,
        clock=world.clock,
        carry_out=world.carry_out,
    )
    world.collect(1)
    after = world.log()
    assert after.head is not None
    assert after.head.operators == target.operators
    assert (after.floor, after.kept) == (before.floor, before.kept)
    assert {each.slot for each in before.checkpoints} <= set(slots(world))


@pytest.mark.parametrize("retention", [{"age": 90 * MINUTE}, {"rule": retention_rule("all for 2 hours")}])
def test_runs_of_a_single_batch_let_go_of_what_is_old(world: World, retention: dict[str, object]) -> None:
    """The fence announces the new floor: the only batch of the run before could not."""
    for _ in range(20):
        kept = Retention(1, **retention, now=world.clock())  # type: ignore[arg-type]
        writer = world.claim(retained=kept)
        world.batch(writer)
        writer.collect(kept, orphans=True)
    assert len(slots(world)) < 10
    assert world.log().floor > 10


@pytest.mark.parametrize("missed", ["", "_pending", "_metadata"])
@pytest.mark.parametrize("orphans", [False, True])
def test_a_listing_that_misses_what_the_rule_keeps_loses_nothing(
    missed: str, orphans: bool, world: World
) -> None:
    """Below the floor no gap tells; the newest record does."""
    run(world, 12)
    store, kept = world.store, world.log().kept
    assert isinstance(store, MemoryStore)
    before = store.snapshot()

    def tear(call: Call, found: list[Entry]) -> list[Entry]:
        if call.path != world.layout.log:
            return found
        return [entry for entry in found if not entry.path.startswith(world.layout.slot(kept[0]) + missed)]

    store.tear = tear
    report = collect(store, world.layout, collector="gc", retained=1, orphans=orphans)
    assert (report.removed, report.files) == ((), 0)
    assert store.snapshot() == before
    assert kept[0] in slots(world)
    writer = world.claim(retained=by(world))
    world.batch(writer)
    store.tear = None
    assert kept[0] in world.log().kept


@pytest.mark.parametrize("lost", ["_pending", "_metadata"])
def test_a_kept_checkpoint_that_was_damaged_stops_collections_but_no_run(lost: str, world: World) -> None:
    run(world, 12)
    slot, store = world.log().kept[0], world.store
    assert isinstance(store, MemoryStore)
    path = f"{world.layout.slot(slot)}{lost}"
    body = store.read(path)
    store.delete([path])
    writer = world.claim(retained=by(world))
    world.batch(writer)
    with refused(CorruptError, f"checkpoint {slot}", "the retention", "put it back", "remove the folder"):
        writer.collect(by(world), orphans=True)
    assert f"checkpoint {slot}, which the retention of job 'orders' keeps, cannot be read" in " ".join(
        f.text for f in verify(store, world.layout)
    )
    store.put(path, body)
    writer.collect(by(world), orphans=True)
    assert slot in slots(world)
    store.delete([path])
    store.delete([entry.path for entry in store.list(world.layout.slot(slot))])
    writer.collect(by(world), orphans=True)
    world.batch(writer)
    assert slot not in world.log().kept


def test_a_kept_checkpoint_that_somebody_deleted_is_named(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    run(world, 12)
    slot = world.log().kept[0]
    world.store.delete([entry.path for entry in world.store.list(world.layout.slot(slot))])
    with caplog.at_level(logging.WARNING):
        world.collect(1)
    assert f"checkpoint {slot}, which the retention of job 'orders' keeps" in caplog.text
    assert "somebody has deleted it" in caplog.text
    run(world, 1)
    assert slot not in world.log().kept
    check(world, settled=True)
