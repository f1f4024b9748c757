"""What has expired is never returned, and leaves the store: against a plain model, with restarts and rescaling."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stateflow as sf
from stateflow.format.encoding import split
from stateflow.format.records import END_OF_TIME
from stateflow.operators.expiry import TURNS
from stateflow.state.expiry.index import in_order
from tests.in_memory import IN_MEMORY
from tests.operators.expiring import GROUPS, SECOND, Expiring, Rows, full_key

TTL = 10 * SECOND


@given(st.lists(st.binary(max_size=3)))
def test_keys_that_come_nearly_in_order_are_each_named_once(keys: list[bytes]) -> None:
    assert in_order(keys) == in_order(sorted(keys)) == sorted(set(keys))


@dataclass
class Model:
    """Values with their expiries, by key and place."""

    on_read: bool
    held: dict[Any, tuple[Any, int]] = field(default_factory=dict)
    appended: int = 0

    def live(self, place: Any, clock: int) -> Any:
        """The value; it is gone for good once it has expired."""
        found = self.held.get(place)
        if found is None or found[1] <= clock:
            self.held.pop(place, None)
            return None
        return found[0]

    def read(self, place: Any, clock: int) -> Any:
        value = self.live(place, clock)
        if value is not None and self.on_read:
            self.put(place, value, clock)
        return value

    def put(self, place: Any, value: Any, clock: int) -> None:
        self.held[place] = value, clock + TTL

    def of(self, key: int, what: str) -> list[Any]:
        return sorted(place for place in self.held if place[:2] == (key, what))

    def do(self, key: int, what: str, number: int, clock: int) -> list[Any]:
        match what:
            case "set":
                self.put((key, "value"), number, clock)
                self.put((key, "words"), [number], clock)
            case "add":
                self.put((key, "total"), (self.live((key, "total"), clock) or 0) + number, clock)
                self.put((key, "count"), (self.live((key, "count"), clock) or 0) + 1, clock)
            case "append":
                self.appended += 1
                self.put((key, "items", self.appended), number, clock)
            case "put":
                self.put((key, "table", number % 3), number, clock)
            case "clear":
                for place in [(key, "value"), (key, "words"), *self.of(key, "items")]:
                    self.held.pop(place, None)
            case "remove":
                self.held.pop((key, "table", number % 3), None)
            case "read":
                return self._everything(key, clock)
        return []

    def _everything(self, key: int, clock: int) -> list[Any]:
        items = [self.read(place, clock) for place in self.of(key, "items")]
        table = {place[2]: self.read(place, clock) for place in self.of(key, "table")}
        return [
            (key, "value", self.read((key, "value"), clock)),
            (key, "words", self.read((key, "words"), clock) or []),
            (key, "total", self.read((key, "total"), clock)),
            (key, "count", self.read((key, "count"), clock)),
            (key, "items", [item for item in items if item is not None]),
            (key, "table", {n: value for n, value in table.items() if value is not None}),
        ]


step = st.tuples(
    st.sampled_from(["set", "add", "append", "put", "clear", "remove", "read"]), st.integers(0, 5)
)
batches = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, 5), st.lists(step, min_size=1, max_size=4), max_size=6),
        st.integers(0, 6 * SECOND),
        st.sampled_from([0, 0, 0, 1, 2, 4]),
    ),
    min_size=1,
    max_size=14,
)
Batches = list[tuple[Rows, int, int]]


@pytest.mark.parametrize("time", ["processing", "event"])
@pytest.mark.parametrize("renew", ["write", "read"])
@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_expired_entries_are_never_returned_and_leave_the_store(kind: str, renew: Any, time: Any) -> None:
    @settings(max_examples=15 if kind == "memory" else 4)
    @given(batches)
    def check(batches: Batches) -> None:
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            _against_the_model(Path(folder), kind, renew, time, batches)

    check()


def _against_the_model(
    folder: Path, kind: str, renew: Any, time: Any, batches: Batches, turns: int = 1
) -> None:
    job = Expiring(folder, kind, sf.ttl("10 s", renew=renew, time=time))
    model = Model(renew == "read")
    clock = 1_000 * SECOND
    clocks: list[int] = []

    def moments() -> tuple[int, int | None]:
        return (clock, None) if time == "processing" else (1, clock)

    for rows, later, parts in batches:
        clock += later
        if parts:
            job.rescale(parts)
        found = job.batch(rows, *moments())
        expected = [
            out for key, steps in rows.items() for what, n in steps for out in model.do(key, what, n, clock)
        ]
        assert sorted(found, key=repr) == sorted(expected, key=repr)
        clocks.append(clock)
        # What expires after a key group has had its turn waits for the next one.
        job.check(clocks[-turns] if len(clocks) >= turns else 0, clock)
    clock += TTL
    for _ in range(turns):
        job.batch({}, *moments())
    assert job.contents() == {}
    job.batch({}, *moments())
    assert {
        due for shard in job.shards for due in (shard.next_event_expiry, shard.next_processing_expiry)
    } == {None}


@pytest.mark.parametrize("renew", ["write", "read"])
@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_the_key_groups_of_a_large_shard_take_turns(
    kind: str, renew: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateflow.operators.expiry.LARGE", 0)
    monkeypatch.setattr("stateflow.operators.expiry.TURNS", 3)

    @settings(max_examples=15 if kind == "memory" else 4)
    @given(batches)
    def check(batches: Batches) -> None:
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            _against_the_model(Path(folder), kind, renew, "processing", batches, turns=3)

    check()


def everything(keys: range) -> Rows:
    steps = [("set", 1), ("add", 1), ("append", 1), ("put", 1)]
    return {key: list(steps) for key in keys}


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Expiring]:
    return lambda ttl: Expiring(tmp_path, "memory", ttl)


def test_an_entry_written_with_every_batch_is_named_once(job: Callable[..., Expiring]) -> None:
    made = job("10 s")
    for second in range(40):
        made.batch({1: [("add", 1)], 2: [("set", 1)], 3: [("put", 1)]}, second * SECOND)
    named = [key for key, _ in made.blocks()]
    assert len(named) == len(set(named)) == len(made.entries())


def test_clearing_and_setting_does_not_fill_the_index(job: Callable[..., Expiring]) -> None:
    made = job("10 s")
    for second in range(100):
        made.batch({1: [("set", 1)]}, 2 * second * SECOND)
        made.batch({1: [("clear", 0)]}, (2 * second + 1) * SECOND)
    assert len(made.blocks()) <= 2 * 10


def test_event_time_begins_with_the_first_watermark(job: Callable[..., Expiring]) -> None:
    made = job(sf.ttl("10 s", time="event"))
    made.batch(everything(range(3)), 5, None)
    found = made.batch({1: [("read", 0)]}, 10**15, None)
    assert (1, "total", 1) in found, "without a watermark nothing expires"
    made.batch({}, 6, 100 * SECOND)
    assert (1, "total", 1) in made.batch({1: [("read", 0)]}, 7, 109 * SECOND)
    made.batch({}, 8, 110 * SECOND)
    assert made.contents() == {}


def test_a_drained_job_keeps_what_it_has(job: Callable[..., Expiring]) -> None:
    made = job(sf.ttl("10 s", time="event"))
    made.batch(everything(range(3)), 5, SECOND)
    before = made.entries()
    assert (1, "total", 1) in made.batch({1: [("read", 0)]}, 5, END_OF_TIME)
    assert made.entries() == before


def test_a_ttl_that_is_new_leaves_older_entries_alone_until_they_are_written(
    job: Callable[..., Expiring],
) -> None:
    made = job(None)
    made.batch(everything(range(6)), 0)
    made.declare("10 s")
    made.batch({1: [("set", 2)]}, SECOND)
    made.check(SECOND)
    made.batch({}, 60 * SECOND)
    assert not any(_of_key(made, 1, state) for state in ("value", "words"))
    assert _of_key(made, 1, "total")
    assert (1, "value", None) in made.batch({1: [("read", 0)]}, 60 * SECOND)
    assert (2, "value", 1) in made.batch({2: [("read", 0)]}, 60 * SECOND)


def _of_key(job: Expiring, key: int, state: str) -> list[bytes]:
    begin = full_key(key)
    begin = begin[:2] + job.schemas[state].id.to_bytes(2, "big") + begin[4:]
    return [full for full in job.entries() if full.startswith(begin)]


def test_a_ttl_from_now_on_takes_every_older_entry_along(job: Callable[..., Expiring]) -> None:
    made = job(None)
    made.batch(everything(range(6)), 0)
    made.declare(sf.ttl("10 s", existing="from now"))
    made.batch({}, SECOND)
    made.check(SECOND)
    assert (3, "total", 1) in made.batch({3: [("read", 0)]}, 10 * SECOND)
    made.batch({}, 11 * SECOND)
    assert made.entries() == {}


def test_entries_whose_blocks_went_without_the_ttl_are_swept(
    job: Callable[..., Expiring], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = job("10 s")
    made.batch(everything(range(50)), 0)
    made.declare(None)
    made.batch({}, 60 * SECOND)
    assert len(made.entries()) > 200, "nothing lets them go"
    assert made.blocks() == []
    made.declare("10 s")
    monkeypatch.setattr("stateflow.state.expiry.index.BLOCK_KEYS", 16)
    monkeypatch.setattr("stateflow.operators.expiry.AT_LEAST", 16)
    lengths = []
    for second in range(60, 90):
        made.batch({}, second * SECOND)
        lengths.append(len(made.entries()))
    assert lengths[0] > 100, "a batch takes its share only"
    assert lengths[-1] == 0
    swept = made.contents()
    made.batch({}, 90 * SECOND)
    assert made.contents() == swept, "it ends"


def test_without_its_ttl_a_state_lives_on_and_its_blocks_go(job: Callable[..., Expiring]) -> None:
    made = job("10 s")
    made.batch(everything(range(6)), 0)
    before = made.entries()
    made.declare(None)
    made.batch({}, 60 * SECOND)
    assert made.entries() == before
    assert made.blocks() == []
    assert (3, "total", 1) in made.batch({3: [("read", 0)]}, 61 * SECOND)
    made.declare("10 s")
    made.batch({}, 62 * SECOND)
    made.check(62 * SECOND)


def test_of_a_large_shard_a_batch_visits_some_key_groups_and_all_of_one_without_rows(
    job: Callable[..., Expiring], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateflow.operators.expiry.LARGE", 1)
    made = job("10 s")
    made.batch({key: [("set", 1)] for key in range(300)}, 0)
    lengths, visited = [], []
    for second in range(TURNS):
        before = set(made.entries())
        made.batch({1: [("read", 0)]}, (60 + second) * SECOND)
        visited.append({split(key).group for key in before - set(made.entries())})
        lengths.append(len(made.entries()))
        assert made.shards[0].next_processing_expiry is not None, "the next batch is to go on"
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] == 0
    assert [len(groups) for groups in visited] == [1] * GROUPS, "each in its turn"
    made.batch({1: [("read", 0)]}, 90 * SECOND)
    assert made.shards[0].next_processing_expiry is None, "it is over"
    made.batch({key: [("set", 1)] for key in range(300)}, 100 * SECOND)
    made.batch({}, 160 * SECOND, without_rows=True)
    assert made.entries() == {}


def test_a_batch_takes_its_share_of_a_backlog(
    job: Callable[..., Expiring], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateflow.operators.expiry.AT_LEAST", 20)
    monkeypatch.setattr("stateflow.state.expiry.index.BLOCK_KEYS", 5)
    made = job("10 s")
    made.batch({key: [("set", 1)] for key in range(300)}, 0)
    lengths = []
    for second in range(20):
        made.batch({}, (60 + second) * SECOND)
        lengths.append(len(made.entries()))
    assert lengths[0] > 300
    assert lengths[-1] == 0
    assert made.expired == 600
