"""The events of Nexmark after its published model: of fifty, one is a person, three are auctions, the rest are bids.

Half of the bids go to one hot auction at a time, three of four come from one hot bidder; sellers are hot alike. Ids grow with
the events, so that what a bid names was there before. Made from a seed, a block of events at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

CYCLE, PERSONS, AUCTIONS = 50, 1, 3
FIRST_ID, FIRST_CATEGORY, CATEGORIES = 1000, 10, 5
ACTIVE_PEOPLE, IN_FLIGHT = 1000, 100
HOT_STEP = 100
"""Of so many ids that follow each other one is hot."""
LEAD = 10
"""Some ids are of what is yet to come."""
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
STATES = ("az", "ca", "id", "or", "wa", "wy")
CITIES = ("phoenix", "los angeles", "boise", "portland", "seattle", "cheyenne")
NAMES = ("peter", "paul", "luke", "john", "saul", "vicky", "kate", "julie", "sarah", "deiter", "walter")
START = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000

TABLES: Mapping[str, str] = {
    "person": "id long, name string, city string, state string, ts timestamp",
    "auction": "id long, initial_bid long, reserve long, seller long, category long, ts timestamp, expires timestamp",
    "bid": "auction long, bidder long, price long, channel string, ts timestamp",
}
"""The columns of each kind of event that the questions use; `ts` is the event time."""
_INSTANT = pa.timestamp("us", "UTC")
PIECES = 4
"""Of each file, so that all cores can read it."""


def events(first: int, count: int, *, seed: int = 1, per_second: int = 1000) -> dict[str, pa.Table]:
    """The events of the numbers from `first` on, by kind. They are a second for every `per_second` of them."""
    chance = np.random.default_rng((seed, first))
    numbers = np.arange(first, first + count)
    place, cycle = numbers % CYCLE, numbers // CYCLE
    times = START + numbers * 1_000_000 // per_second
    is_person, is_auction = place < PERSONS, (place >= PERSONS) & (place < PERSONS + AUCTIONS)
    is_bid = ~is_person & ~is_auction
    last_person = FIRST_ID + cycle * PERSONS
    last_auction = FIRST_ID + cycle * AUCTIONS + np.clip(place - PERSONS, 0, AUCTIONS - 1)
    return {
        "person": _persons(last_person[is_person], times[is_person], chance),
        "auction": _auctions(last_auction[is_auction], last_person[is_auction], times[is_auction], chance),
        "bid": _bids(last_auction[is_bid], last_person[is_bid], times[is_bid], chance),
    }


def _persons(ids: Any, times: Any, chance: Any) -> pa.Table:
    count = len(ids)
    states = chance.integers(0, len(STATES), count)
    return pa.table(
        {
            "id": ids,
            "name": np.array(NAMES)[chance.integers(0, len(NAMES), count)],
            "city": np.array(CITIES)[states],
            "state": np.array(STATES)[states],
            "ts": _instants(times),
        }
    )


def _auctions(ids: Any, last_person: Any, times: Any, chance: Any) -> pa.Table:
    initial = _prices(len(ids), chance)
    return pa.table(
        {
            "id": ids,
            "initial_bid": initial,
            "reserve": initial + _prices(len(ids), chance),
            "seller": _people(last_person, chance, hot=0),
            "category": FIRST_CATEGORY + chance.integers(0, CATEGORIES, len(ids)),
            "ts": _instants(times),
            "expires": _instants(times + chance.integers(1, 20, len(ids)) * 1_000_000),
        }
    )


def _bids(last_auction: Any, last_person: Any, times: Any, chance: Any) -> pa.Table:
    count = len(times)
    recent = np.maximum(last_auction - IN_FLIGHT, FIRST_ID)
    auctions = recent + (chance.random(count) * (last_auction + LEAD - recent + 1)).astype(np.int64)
    hot = chance.random(count) < 1 / 2
    channels = np.array(HOT_CHANNELS)[chance.integers(0, len(HOT_CHANNELS), count)].astype(object)
    cold = chance.random(count) < 1 / 2
    channels[cold] = [f"channel-{number}" for number in chance.integers(0, 10_000, int(cold.sum()))]
    return pa.table(
        {
            "auction": np.where(hot, last_auction // HOT_STEP * HOT_STEP, auctions),
            "bidder": _people(last_person, chance, hot=1),
            "price": _prices(count, chance),
            "channel": pa.array(channels, pa.string()),
            "ts": _instants(times),
        }
    )


def _people(last_person: Any, chance: Any, *, hot: int) -> Any:
    count = len(last_person)
    active = np.minimum(last_person - FIRST_ID + 1, ACTIVE_PEOPLE)
    ids = last_person - active + 1 + (chance.random(count) * (active + LEAD)).astype(np.int64)
    return np.where(chance.random(count) < 3 / 4, last_person // HOT_STEP * HOT_STEP + hot, ids)


def _prices(count: int, chance: Any) -> Any:
    return np.rint(10 ** (chance.random(count) * 6) * 100).astype(np.int64)


def _instants(micros: Any) -> pa.Array:
    return pa.array(micros, pa.int64()).view(_INSTANT)


def write(folder: Path, sizes: Sequence[int], *, seed: int = 1, per_second: int = 1000) -> None:
    """Events as Parquet files, of each kind a folder, in the order of time: of `sizes` each makes a file in every folder."""
    first = 0
    for number, size in enumerate(sizes):
        for kind, table in events(first, size, seed=seed, per_second=per_second).items():
            (folder / kind).mkdir(parents=True, exist_ok=True)
            rows = -(-len(table) // PIECES)
            pq.write_table(table, folder / kind / f"{number:05d}.parquet", row_group_size=max(1, rows))
        first += size
