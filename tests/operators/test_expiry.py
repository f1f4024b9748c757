"""What has expired is never returned, and leaves the store: against a plain model, with restarts and rescaling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stateflow as sf
from stateflow.format.encoding import split
from stateflow.operators.expiry import TURNS
from stateflow.state.expiry.index import in_order
from stateflow.testing import KeyedHarness
from tests.operators.expiring import GROUPS, SECOND, Expiring, Rows

TTL = 10 * SECOND


@given(st.lists(st.binary(max_size=3)))
def test_keys_that_come_nearly_in_order_are_each_named_once(keys: list[bytes]) -> None:
    assert in_order(keys) == in_order(sorted(keys)) == sorted(set(keys))


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


def test_entries_of_before_a_ttl_are_swept(
    job: Callable[..., Expiring], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = job(None)
    made.batch(everything(range(50)), 0)
    assert len(made.entries()) > 200
    assert made.blocks() == []
    made.declare(sf.ttl("10 s", existing="from now"))
    monkeypatch.setattr("stateflow.state.expiry.index.BLOCK_KEYS", 16)
    monkeypatch.setattr("stateflow.operators.expiry.AT_LEAST", 16)
    lengths = []
    for second in range(60, 90):
        made.batch({}, second * SECOND)
        lengths.append(len(made.entries()))
    assert any(0 < length < lengths[0] for length in lengths), "a batch takes its share only"
    assert lengths[-1] == 0
    swept = made.contents()
    made.batch({}, 90 * SECOND)
    assert made.contents() == swept, "it ends"


def counting_with(ttl: Any) -> type[sf.KeyedProcess[int, Any, Any]]:
    class CountingFor(sf.KeyedProcess[int, Any, Any]):
        count = sf.ValueState(int, default=0, ttl=ttl)

        def process(self, key: int, rows: Iterator[Any], ctx: sf.Context) -> None:
            self.count.value += len(list(rows))

    return CountingFor


@pytest.mark.parametrize(("later", "left"), [(None, 1), ("9 days", 0)])
def test_what_has_expired_and_is_still_stored_comes_back_without_a_ttl_and_not_with_a_longer_one(
    later: Any, left: int
) -> None:
    made = KeyedHarness(counting_with("10 s"), key=int)
    made.rows(1)
    after = KeyedHarness(counting_with(later), key=int, after=made)
    after.advance(now=timedelta(seconds=30))
    assert after.state(1).count.value == left


def test_nothing_comes_back_without_a_ttl_once_a_batch_has_deleted_it(
    job: Callable[..., Expiring],
) -> None:
    """As the warning of `check` advises."""
    made = job("10 s")
    made.batch(everything(range(5)), 0)
    made.batch({9: [("set", 1)]}, 60 * SECOND)
    left = made.entries().keys()
    assert 0 < len(left) < 5
    made.declare(None)
    made.batch({9: [("set", 2)]}, 90 * SECOND)
    assert made.entries().keys() == left


class LongKept(sf.KeyedProcess[int, Any, Any]):
    long = sf.ValueState(int, ttl="9999 days")

    def process(self, key: int, rows: Iterator[Any], ctx: sf.Context) -> None:
        self.long.value = len(list(rows))


class BrieflyKept(LongKept):
    short = sf.ValueState(int, ttl="10 s")

    def process(self, key: int, rows: Iterator[Any], ctx: sf.Context) -> None:
        super().process(key, rows, ctx)
        self.short.value = 1


def test_a_state_that_was_left_out_and_comes_back_leaves_the_store(job: Callable[..., Expiring]) -> None:
    """Beside another one with a ttl, which alone the release in between has reckoned with."""
    made = job("10 s")
    made.release(BrieflyKept)
    made.batch({key: [("set", 1)] for key in range(50)}, 0)
    made.release(LongKept)
    made.batch({1: [("set", 1)]}, 60 * SECOND)
    short = made.schemas["short"].id
    assert sum(split(key).state_id == short for key in made.contents()) == 50, "nobody lets them go"
    made.release(BrieflyKept)
    made.batch({}, 61 * SECOND)
    assert not [key for key in made.entries() if split(key).state_id == short]
    made.check(61 * SECOND)


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
