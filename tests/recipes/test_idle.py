"""The recipe for idle users finds the silences between all clicks, however the clicks are cut into batches."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from scripts.recipes.story import loaded
from stateflow.testing import KeyedHarness

recipe = loaded("idle")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def cuts(minutes: list[int]) -> Iterator[list[list[int]]]:
    """Every way to cut the clicks into batches."""
    for ends in product((False, True), repeat=len(minutes) - 1):
        batches = [[minutes[0]]]
        for minute, begins in zip(minutes[1:], ends, strict=True):
            if begins:
                batches.append([])
            batches[-1].append(minute)
        yield batches


def told(batches: list[list[int]], delay: int) -> tuple[list[int], list[int]]:
    """The minutes since which the user was idle, and the clicks that were not late. The watermark of a batch is that of the rows
    before it, and late clicks are split off at the source."""
    harness = KeyedHarness(recipe.Watch, key="user", event_time="ts")
    newest, taken, out = None, [], []
    for batch in batches:
        mark = None if newest is None else newest - delay
        clicks = [minute for minute in batch if mark is None or minute > mark]
        harness.watermark = None if mark is None else NOON + timedelta(minutes=mark)
        out += harness.rows(*(recipe.Click("ann", NOON + timedelta(minutes=minute)) for minute in clicks))
        taken += clicks
        newest = max([*batch, *([newest] if newest is not None else [])])
    out += harness.advance(NOON + timedelta(days=1))
    return [int((idle.since - NOON) / timedelta(minutes=1)) for idle in out], taken


def silences(minutes: list[int]) -> list[int]:
    """By a plain computation over all clicks."""
    ordered = sorted(set(minutes))
    return [
        at
        for at, after in zip(ordered, [*ordered[1:], None], strict=True)
        if after is None or after - at > 30
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "minutes",
    [
        [0, 31, 29],
        [0, 30, 61, 60],
        [0, 31, 62, 93],
        [0, 100, 50, 75, 25],
        [0, 0, 45, 40, 45],
        *(random.Random(seed).choices(range(150), k=7) for seed in range(12)),
    ],
    ids=str,
)
@pytest.mark.parametrize("delay", [200, 20, 1])
def test_a_silence_is_told_once_however_the_clicks_are_cut_into_batches(
    minutes: list[int], delay: int
) -> None:
    for batches in cuts(minutes):
        found, taken = told(batches, delay)
        assert found == silences(taken), batches
        assert delay < 200 or taken == minutes
