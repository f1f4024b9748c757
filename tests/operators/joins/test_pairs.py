"""The partners of rows are those that a look at every two of them finds, however far their times are apart and however many there are."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from stateflow.operators.joins import pairs as module
from stateflow.operators.joins.pairs import Sorted, Times, pairs, pieces

FAR = 1 << 60
"""Times so far apart that a key and a time do not fit into one number: they are ranked."""


def times(chance: Random, count: int, instants: list[int]) -> Times:
    owners = np.array([chance.randrange(4) for _ in range(count)], dtype=np.int64)
    return Times(owners, np.array([chance.choice(instants) for _ in range(count)], dtype=np.int64))


def wanted(left: Times, right: Times, least: int, most: int) -> list[tuple[int, int]]:
    return [
        (one, other)
        for one, (owner, at) in enumerate(zip(left.owners.tolist(), left.at.tolist(), strict=True))
        for other, (partner, then) in enumerate(zip(right.owners.tolist(), right.at.tolist(), strict=True))
        if owner == partner and least <= then - at <= most
    ]


def found(left: Times, right: Times, least: int, most: int) -> list[tuple[int, int]]:
    made: list[tuple[int, int]] = []
    for ones, others in pairs(left, right, least, most):
        assert len(ones) <= module.MOST or len(set(ones.tolist())) == 1
        made += zip(ones.tolist(), others.tolist(), strict=True)
    return sorted(made)


@pytest.mark.parametrize("most", [1, 2, 7, 500_000])
@pytest.mark.parametrize("instants", [[0, 1, 2, 3, 5, 8], [-5, 0, 5], [-FAR, -3, 0, 2, 3, FAR]], ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_partners_are_those_within_the_bounds(
    seed: int, instants: list[int], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", most)
    chance = Random(seed)
    left, right = times(chance, 30, instants), times(chance, chance.choice((0, 1, 30)), instants)
    for least, apart in ((-5, 0), (-3, 3), (0, 0), (0, 2), (1, 4), (-FAR, 2 * FAR)):
        assert found(left, right, least, least + apart) == wanted(left, right, least, least + apart)


@pytest.mark.parametrize("far", [1, FAR])
def test_rows_before_and_up_to_a_time_are_those_of_the_key_and_of_smaller_keys(far: int) -> None:
    rows = Times(np.array([1, 0, 1, 1, 2]), np.array([2 * far, 0, -far, 2 * far, far]))
    ordered = Sorted(rows)
    for owner in range(4):
        for at in (-2 * far, -far, 0, far, 2 * far, 3 * far):
            codes = list(zip(rows.owners.tolist(), rows.at.tolist(), strict=True))
            asked: Any = np.array([owner]), np.array([at])
            assert ordered.before(*asked)[0] == sum(code < (owner, at) for code in codes)
            assert ordered.up_to(*asked)[0] == sum(code <= (owner, at) for code in codes)


def test_pieces_have_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 10)
    cut = [piece.tolist() for piece in pieces(np.arange(7), np.array([4, 6, 1, 30, 2, 8, 1]))]
    assert cut == [[0, 1], [2], [3], [4, 5], [6]]
