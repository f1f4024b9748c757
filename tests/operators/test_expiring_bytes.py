"""How many bytes of a state live and how many have expired: estimated by every batch, held against what is stored."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stateflow as sf
from stateflow.format.encoding import split
from stateflow.format.records import ExpiryShare
from stateflow.operators import expiry as taking
from stateflow.state.expiry import index
from stateflow.state.expiry.shares import RANGES, Shares, joined_shares
from stateflow.state.values.expiries import expiry_of
from tests.operators.expiring import SECOND, Expiring, Rows

TTL = 10 * SECOND
TOLERANCE = 0.1


@pytest.fixture(params=["memory", "rocksdb"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Any], Expiring]:
    return lambda ttl: Expiring(tmp_path, request.param, ttl)


def rows(keys: range, *kinds: str) -> Rows:
    return {key: [(kind, key) for kind in kinds or ("set", "append", "put")] for key in keys}


def stored(made: Expiring, clock: int) -> tuple[int, int]:
    """The bytes of what lives and of what has expired, counted."""
    live = expired = 0
    for key, raw in made.entries().items():
        expiry = expiry_of(raw)
        assert expiry is not None
        if expiry > clock:
            live += len(key) + len(raw)
        else:
            expired += len(key) + len(raw)
    return live, expired


def estimated(made: Expiring, clock: int) -> tuple[int, int]:
    from stateflow.observe.status import _expired_size

    shares = [share for shard in made.shards for share in shard.expiring]
    gone = sum(_expired_size(share, clock) for share in shares)
    return sum(share.size for share in shares) - gone, gone


def close(found: int, exact: int, whole: int) -> bool:
    return abs(found - exact) <= TOLERANCE * whole


def test_live_bytes_follow_what_is_written_and_what_expires(job: Callable[[Any], Expiring]) -> None:
    made = job("10 s")
    for second in range(25):
        made.batch(rows(range(40 * second, 40 * second + 40)), second * SECOND)
        live, expired = stored(made, second * SECOND)
        assert expired == 0
        found = estimated(made, second * SECOND)
        assert close(found[0], live, live)
        assert close(found[1], 0, live)
    made.batch({}, 60 * SECOND)
    assert made.entries() == {}
    assert estimated(made, 60 * SECOND) == (0, 0)
    assert not any(shard.expiring for shard in made.shards)


def test_what_waits_for_the_next_batches_is_expired(
    job: Callable[[Any], Expiring], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "BLOCK_KEYS", 16)
    monkeypatch.setattr(taking, "AT_LEAST", 100)
    monkeypatch.setattr(taking, "SHARE", 100)
    made = job("10 s")
    for second in range(5):
        made.batch(rows(range(200 * second, 200 * second + 200)), second * SECOND)
    made.batch({}, 12 * SECOND)
    live, expired = stored(made, 12 * SECOND)
    assert live
    assert expired
    found = estimated(made, 12 * SECOND)
    assert close(found[0], live, live + expired)
    assert close(found[1], expired, live + expired)


@pytest.mark.slow
@pytest.mark.parametrize("renew", ["write", "read"])
@pytest.mark.parametrize("time", ["processing", "event"])
def test_random_batches_without_clearing_stay_within_the_tolerance(
    job: Callable[[Any], Expiring], renew: Any, time: Any
) -> None:
    dice = random.Random(7)
    made, clock = job(sf.ttl("10 s", renew=renew, time=time)), 100 * SECOND
    for _ in range(30):
        clock += dice.randrange(3 * SECOND)
        keys = dice.sample(range(300), 60)
        kinds = ["set", "add", "append", "put", "read"]
        steps = {key: [(dice.choice(kinds), key) for _ in range(2)] for key in keys}
        made.batch(steps, *((clock, None) if time == "processing" else (1, clock)))
        if dice.random() < 0.2:
            made.rescale(dice.choice([1, 2, 4]))
        live, expired = stored(made, clock)
        found = estimated(made, clock)
        assert close(found[0], live, live + expired)
        assert close(found[1], expired, live + expired)


def test_before_the_first_watermark_nothing_has_expired(job: Callable[[Any], Expiring]) -> None:
    made = job(sf.ttl("10 s", time="event"))
    made.batch(rows(range(50)), 1, None)
    live, _ = stored(made, 100 * SECOND)
    assert estimated(made, 100 * SECOND) == (live, 0)
    made.batch(rows(range(50, 60)), 1, 100 * SECOND)
    live, expired = stored(made, 105 * SECOND)
    found = estimated(made, 105 * SECOND)
    assert expired == 0
    assert found[1] == 0
    assert close(found[0], live, live)


def test_an_entry_that_was_cleared_counts_until_its_time_would_have_come(
    job: Callable[[Any], Expiring],
) -> None:
    made = job("10 s")
    made.batch(rows(range(40), "set"), 0)
    before = estimated(made, 0)
    made.batch(rows(range(40), "clear"), SECOND)
    assert made.entries() == {}
    assert estimated(made, SECOND) == before
    made.batch({}, TTL)
    assert estimated(made, TTL) == (0, 0)


def test_a_batch_looks_up_a_sample_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Expiring(tmp_path, "memory", "10 s")
    looked_up: list[int] = []
    measure = index.Expiry.measure

    class Counting:
        def __init__(self, backend: Any) -> None:
            self.backend = backend

        def get_many(self, keys: Any) -> Any:
            looked_up.append(len(keys))
            return self.backend.get_many(keys)

    monkeypatch.setattr(index.Expiry, "measure", lambda self, backend: measure(self, Counting(backend)))
    made.batch(rows(range(5_000), "set"), 0)
    assert max(looked_up) <= index.SAMPLE
    assert sum(share.entries for shard in made.shards for share in shard.expiring) == 10_000
    looked_up.clear()
    made.batch({}, SECOND)
    assert looked_up == []


def share(first: int, last: int, entries: int) -> ExpiryShare:
    return ExpiryShare(1, first, last, entries, entries * 10)


def test_a_record_keeps_few_ranges_and_loses_no_entry() -> None:
    shares = Shares(1)
    for due in range(100):
        shares.add(due, 5, 50)
    assert len(shares.ranges) == RANGES
    assert sum(s.entries for s in shares.ranges) == 500
    assert all(one.last < other.first for one, other in zip(shares.ranges, shares.ranges[1:], strict=False))
    for due in range(100):
        shares.take(due, 5)
    assert shares.ranges == []


def test_shares_of_joined_shards_overlap_no_more() -> None:
    joined = joined_shares([(share(0, 10, 4), share(20, 30, 1)), (share(5, 12, 2), share(40, 40, 1))])
    assert joined == (share(0, 12, 6), share(20, 30, 1), share(40, 40, 1))


def test_keys_that_a_part_of_a_shard_has_lost_are_not_counted(tmp_path: Path) -> None:
    made = Expiring(tmp_path, "memory", "10 s")
    made.batch(rows(range(400)), 0)
    whole = estimated(made, 0)[0]
    made.rescale(2)
    assert close(estimated(made, 0)[0], whole, whole)
    made.shards = made.shards[:1]
    live, _ = stored(made, 0)
    assert close(estimated(made, 0)[0], live, whole)


def test_state_ids_tell_the_states_apart(tmp_path: Path) -> None:
    made = Expiring(tmp_path, "memory", "10 s")
    made.batch(rows(range(40), "append"), 0)
    items = made.schemas["items"].id
    assert {s.state for shard in made.shards for s in shard.expiring} == {items}
    assert {split(key).state_id for key in made.entries()} == {items}
