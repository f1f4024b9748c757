"""Full keys cut out of one array are those that are put together one by one."""

from __future__ import annotations

import random

import pytest

from stateflow.format.encoding import prefix, timer_range
from stateflow.state.keys.siblings import queued, siblings

STATE, QUEUE = (0x0A00).to_bytes(2, "big"), (0x0B00).to_bytes(2, "big")
TIMES = [0, 1, -1, 1_700_000_000_000_000, -(1 << 63), (1 << 63) - 1]


def keys(widths: list[int], count: int) -> list[bytes]:
    rng = random.Random(len(widths))
    # Of zeros at the end: an array of texts would lose them.
    return [prefix(n % 7, 0) + rng.randbytes(rng.choice(widths)) + b"\0\0" for n in range(count)]


@pytest.mark.parametrize("widths", [[8], [3, 8, 40]])
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_keys_come_under_another_state_id(widths: list[int], count: int) -> None:
    given = keys(widths, count)
    assert siblings(given, STATE) == [key[:2] + STATE + key[4:] for key in given]


@pytest.mark.parametrize("widths", [[8], [3, 8, 40]])
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_keys_come_as_entries_of_a_queue(widths: list[int], count: int) -> None:
    given = keys(widths, count)
    times = [TIMES[n % len(TIMES)] for n in range(count)]
    entries = queued(given, QUEUE, times)
    assert [entry[:4] + entry[12:] for entry in entries] == [key[:2] + QUEUE + key[4:] for key in given]
    for key, at, entry in zip(given, times, entries, strict=True):
        begin, end = timer_range(int.from_bytes(key[:2], "big"), 0x0B00, at)
        assert begin <= entry < end
        assert at == TIMES[4] or entry >= timer_range(int.from_bytes(key[:2], "big"), 0x0B00, at - 1)[1]
