"""The history of a job, which outlives its records."""

from __future__ import annotations

import msgspec
import pytest
import xxhash

from stateflow.checkpoint.collection import collect
from stateflow.checkpoint.rescale import rescaled_operators
from stateflow.checkpoint.statistics import (
    CONTINUED_SLOT,
    HistoryLine,
    damaged_segments,
    held,
    history,
    history_line,
    read_segments,
    summary,
    taken_back,
)
from stateflow.format.layout import JobLayout
from stateflow.format.records import FileRef, Outcome, total_size
from stateflow.storage.files import inline
from tests.jobs.builder import JobBuilder
from tests.jobs.log import SOMEBODY, file, record
from tests.jobs.operators import one_shard
from tests.memory_store import Call, CrashError, MemoryStore
from tests.protocol.scenario import World, copy_sinks, drain
from tests.protocol.turns import Choose, Played, Turns, some_schedules


@pytest.fixture
def world() -> World:
    return World(MemoryStore())


@pytest.mark.parametrize(
    ("noted", "named"),
    [
        ("orders/7", True),
        (f"{'t' * 249}/2147483647", True),
        ("t" * 261, False),
        ("", False),
        (7, False),
        (None, False),
        (["orders/7"], False),
    ],
)
def test_a_partition_that_cannot_be_one_is_left_out_of_what_holds_the_watermark(
    noted: object, named: bool
) -> None:
    statistics = {
        "watermark_held_by": "orders",
        "watermark_held_since": 5,
        "watermark_held_partition": noted,
    }
    source = {"source": "orders", "since": 5}
    assert held(statistics) == ({**source, "partition": noted} if named else source)
    assert held({"watermark_held_partition": noted}) == {}


def segments(world: World) -> list[str]:
    return [entry.path for entry in world.store.list(world.layout.statistics)]


def checkpoints(world: World) -> list[HistoryLine]:
    return [line for line in history(world.store, world.layout) if line.kind == "checkpoint"]


def test_every_checkpoint_that_ever_stood_has_its_line(world: World) -> None:
    for target in (3, 7, 12):
        drain(target)(world)
    lines = history(world.store, world.layout)
    assert [line.id for line in lines] == list(range(1, 16))  # twelve batches and three fences
    assert len(checkpoints(world)) == 12
    assert all(line.processed_rows == 1 and line.status == "COMPLETED" for line in checkpoints(world))


def test_a_line_is_the_same_before_and_after_its_record_was_collected(world: World) -> None:
    drain(2)(world)
    before = {line.id: line for line in history(world.store, world.layout)}
    drain(9)(world)
    after = {line.id: line for line in history(world.store, world.layout)}
    assert {slot: after[slot] for slot in before} == before


def test_many_runs_leave_few_objects(world: World) -> None:
    for target in range(1, 60):
        drain(target)(world)
    assert len(segments(world)) == 1
    assert len(history(world.store, world.layout)) == 59 * 2


def test_a_full_segment_is_not_rewritten(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    monkeypatch.setattr("stateflow.checkpoint.statistics.SEGMENT", 4)
    drain(14)(world)
    assert len(segments(world)) == 4  # a fence and twelve collected checkpoints: 4, 4, 4 and 1
    first = world.store.read(segments(world)[0])
    drain(30)(world)
    assert world.store.read(segments(world)[0]) == first
    assert len(checkpoints(world)) == 30


def test_a_run_and_a_collector_beside_it_lose_no_line(world: World) -> None:
    for target in range(2, 20, 2):
        drain(target, retained=3)(world)
        world.collect(1)
    assert len(checkpoints(world)) == 18


def collected(world: World, name: str) -> None:
    collect(world.store, world.layout, collector=name, retained=1, orphans=False)


def test_two_who_collect_at_once_lose_no_line_whenever_the_other_one_comes(world: World) -> None:
    """And the run decides another batch between the two, so that the other one has more to keep."""
    drain(4)(world)
    collected(world, "earlier")
    writer = world.claim("run", retained=1)
    for _ in range(2):
        world.batch(writer)
    assert isinstance(world.store, MemoryStore)
    objects, slots = world.store.snapshot(), len(history(world.store, world.layout))
    for at in range(1_000):
        again = World(MemoryStore("test", objects))
        again.ticks, again.sinks = world.ticks, copy_sinks(world)

        def other(call: Call, at: int = at, again: World = again) -> None:
            assert isinstance(again.store, MemoryStore)
            if call.number == at:
                again.store.before = None
                again.batch(again.claim("other", retained=1))
                collected(again, "other")

        assert isinstance(again.store, MemoryStore)
        again.store.before = other
        collected(again, "one")
        if again.store.before is not None:
            break
        collected(again, "last")
        assert [line.id for line in history(again.store, again.layout)] == list(range(1, slots + 3)), at
    assert at > 20


def test_collectors_side_by_side_lose_no_line(world: World) -> None:
    def play(choose: Choose) -> Played:
        store = MemoryStore()
        again = World(store)
        writer = again.claim("run", retained=2)
        for _ in range(5):
            again.batch(writer)
        actors = {name: lambda name=name: collected(again, name) for name in ("GC1", "GC2", "GC3")}  # type: ignore[misc]
        played = Turns(again, store, actors).play(choose)
        store.before = again.step = None
        assert len(history(store, again.layout)) == 6
        assert {type(error) for error in played.errors.values()} <= {CrashError}
        return played

    assert sum(bool(played.errors) for played in some_schedules(play, 11, 60)) > 5


def test_who_reads_the_history_while_segments_are_merged_misses_no_line(world: World) -> None:
    drain(4)(world)
    collected(world, "earlier")
    world.batch(world.claim("run", retained=1))
    assert isinstance(world.store, MemoryStore)
    objects, whole = world.store.snapshot(), history(world.store, world.layout)
    for at in range(1_000):
        again = World(MemoryStore("test", objects))

        def merges(call: Call, at: int = at, again: World = again) -> None:
            assert isinstance(again.store, MemoryStore)
            if call.number == at:
                again.store.before = None
                collected(again, "other")

        assert isinstance(again.store, MemoryStore)
        again.store.before = merges
        assert history(again.store, again.layout) == whole, at
        if again.store.before is not None:
            break
    assert at > 5


@pytest.mark.parametrize("found", [b'"kind":"checkpoint"', b'"run":"drain 6"'])
def test_a_flipped_bit_costs_no_more_than_a_line_and_is_told(found: bytes, world: World) -> None:
    drain(6)(world)
    (path,) = segments(world)
    whole = world.store.read(path)
    at = whole.index(found) + len(found) - 2
    damaged = whole[:at] + bytes([whole[at] ^ 0x80]) + whole[at + 1 :]
    world.store.put(path, damaged)
    assert damaged_segments(world.store, world.layout) == [path]
    assert len(history(world.store, world.layout)) == 6
    drain(9)(world)
    assert world.store.read(path) == damaged  # so that it can be put back
    world.store.put(path, whole)
    assert damaged_segments(world.store, world.layout) == []
    assert len(history(world.store, world.layout)) == 11


def test_a_letter_that_became_another_is_told(world: World) -> None:
    drain(6)(world)
    (path,) = segments(world)
    world.store.put(path, world.store.read(path).replace(b'"fence"', b'"fenze"', 1))
    assert damaged_segments(world.store, world.layout) == [path]
    assert len(history(world.store, world.layout)) == 7


def test_full_segments_are_not_read_by_who_collects(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    monkeypatch.setattr("stateflow.checkpoint.statistics.SEGMENT", 4)
    drain(14)(world)
    assert isinstance(world.store, MemoryStore)
    before = len(world.store.calls)
    drain(16)(world)
    read = {call.path for call in world.store.calls[before:] if call.verb == "read"}
    assert [path for path in segments(world)[:3] if path in read] == []


def test_a_damaged_line_costs_one_line(world: World) -> None:
    drain(6)(world)
    (path,) = segments(world)
    lines = world.store.read(path).splitlines(keepends=True)
    world.store.put(path, b"".join([b"rubbish\n", *lines[1:]]))
    assert len(history(world.store, world.layout)) == 6  # a fence is the first of seven


def test_sizes_are_of_distinct_files_and_new_ones_are_told_apart() -> None:
    old, new = file("orders/shared/e1-c1-a.sst", 100), file("orders/shared/e2-c5-b.sst", 40)
    small = FileRef(name="CURRENT", size=3, xxh3="0" * 16, data=b"abc")
    staged = file("orders/staged/e2-c5-c.parquet", 7)
    line = history_line(record(5, epoch=2, files=(old, old, new, small), staged=(staged,)), None)
    assert line.state_size == 150
    assert line.checkpointed_size == 50
    assert line.num_files == 3
    assert line.status == "IN_PROGRESS"
    assert line.end_to_end_duration == 0


def test_times_are_milliseconds_from_the_trigger_to_the_outcome() -> None:
    import msgspec

    made = msgspec.structs.replace(
        record(5), at=3_000_000, statistics={"trigger_timestamp": 1_000, "processed_rows": 9, "cache_hits": 2}
    )
    done = Outcome(slot=5, record="w5", writer="o", epoch=1, at=4_500_000, owner=SOMEBODY)
    line = history_line(made, done)
    assert (line.trigger_timestamp, line.latest_ack_timestamp, line.end_to_end_duration) == (1000, 3000, 3500)
    assert line.processed_rows == 9
    assert line.metrics == {"cache_hits": 2}


def test_the_gauges_have_flinks_names(world: World) -> None:
    drain(5)(world)
    writer = world.claim()
    writer.decide(world.prepare(writer))
    gauges = summary(history(world.store, world.layout))
    last = world.log().checkpoints[-1]
    assert gauges.numberOfCompletedCheckpoints == 5
    assert gauges.numberOfInProgressCheckpoints == 1
    assert gauges.numberOfFailedCheckpoints == 0
    assert gauges.lastCheckpointId == last.slot
    assert gauges.lastCheckpointFullSize is not None
    assert gauges.lastCheckpointSize is not None
    assert gauges.lastCheckpointFullSize > gauges.lastCheckpointSize > 0


def test_an_abandoned_checkpoint_counts_as_failed(world: World) -> None:
    writer = world.claim()
    permit = writer.decide(world.prepare(writer))
    world.abandon(permit.slot)
    assert summary(history(world.store, world.layout)).numberOfFailedCheckpoints == 1


def test_what_several_shards_share_after_a_rescale_is_counted_once() -> None:
    before = record(3)
    files = (file("orders/shared/e1-c3-a.sst", 100), inline("CURRENT", b"MANIFEST-7"))
    operator = one_shard(*files, key=("n", "long"), groups=8)
    one = msgspec.structs.replace(before, operators={"count": operator})
    four = msgspec.structs.replace(before, operators=rescaled_operators({"count": operator}, 4, "orders"))
    assert len(list(four.operators["count"].files)) == 8
    assert four.state_size == one.state_size == 110
    assert history_line(four, None).state_size == history_line(one, None).state_size
    assert history_line(four, None).num_files == 1


def test_files_in_one_container_count_each() -> None:
    refs = [
        FileRef(str(n), 10, f"{n:016x}", "state/pack", "file:///savepoint", None, n * 10) for n in range(3)
    ]
    assert total_size([*refs, refs[0]]) == 30
    assert total_size([inline("a", b"one"), inline("b", b"two"), inline("c", b"one")]) == 6


def test_the_newest_segments_are_those_of_the_highest_slots_whatever_their_names_sort_like() -> None:
    store, layout = MemoryStore("digits"), JobLayout("orders")
    for slot in (99_999_998, 99_999_999, 100_000_000, 100_000_001):
        body = msgspec.json.encode(HistoryLine(id=slot, kind="checkpoint", status="COMPLETED")) + b"\n"
        store.put(layout.statistics_segment(slot, 1, xxhash.xxh3_64_hexdigest(body)), body)
    newest = read_segments(store, layout, choose=lambda entries: entries[-2:])
    assert [line.id for segment in newest for line in segment.lines] == [100_000_000, 100_000_001]


@pytest.mark.parametrize(
    ("based_on", "savepoint", "slots"),
    [
        ([None, 1, 2, 3], 0, []),
        ([None, 1, 2, 1], 0, [2, 3]),
        # A restore that goes back to before another one continues what that one left.
        ([None, 1, 2, 1, 4, 3], 0, [4, 5]),
        # A state from elsewhere, and a line that is lost: what lay below is not told.
        ([None, 1, 0, 3], 0, []),
        ([None, 1, 2, 7], 0, []),
        # A savepoint of the job itself, and one of nobody knows whom.
        ([None, 1, 2, 0], 1, [2, 3]),
        ([None, 1, 2, 0, 4, 2], 1, [3, 4, 5]),
        ([None, 1, 2, 0], 9, []),
        ([None, 1, 2, 0], "1", []),
    ],
)
def test_slots_that_restores_went_back_behind_are_told(
    based_on: list[int | None], savepoint: int | str, slots: list[int]
) -> None:
    made = [
        record(
            slot, based_on=below, kind="restore" if slot == 4 else "checkpoint",
            statistics={CONTINUED_SLOT: savepoint} if slot == 4 else {},
        )
        for slot, below in enumerate(based_on, 1)
    ]  # fmt: skip
    lines = [history_line(each, None) for each in made]
    assert sorted(slot for behind in taken_back(lines) for slot in behind) == slots


def test_they_are_told_when_the_records_are_gone() -> None:
    builder = JobBuilder(MemoryStore("root"), retained=1)
    first, _, third = [builder.decide().slot for _ in range(3)]
    builder.decide(kind="restore", based_on=first)
    for _ in range(3):
        builder.decide()
    builder.collect()
    assert [each.kind for each in builder.log().chain] == ["checkpoint"]
    assert taken_back(history(builder.store, builder.layout)) == (range(first + 1, third + 1),)
