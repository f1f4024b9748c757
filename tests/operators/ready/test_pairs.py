"""The different values of each group, and the conditions that they meet, are those that a look at each row gives."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stateflow.operators.ready.grouping.pairs import MOST_CONDITIONS, pairs_of

COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "near": (pa.int64(), list(range(-3, 30))),
    "spread": (pa.int64(), [n * 10**6 for n in range(40)]),
    "far": (pa.int64(), [-(1 << 63), (1 << 63) - 1, 0, -1, 1 << 40]),
    "instants": (
        pa.timestamp("us", "UTC"),
        [datetime(1, 1, 1, tzinfo=UTC) + n * timedelta(days=99_999) for n in range(9)],
    ),
    "texts": (pa.string(), ["", "\0", "a", "é" * 20]),
    "truths": (pa.bool_(), [True, False]),
}


@pytest.mark.slow
@pytest.mark.parametrize("nulls", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("conditions", [0, 1, 3, 9, MOST_CONDITIONS])
@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("groups", [1, 50, 700])
def test_pairs_are_those_of_the_rows(groups: int, name: str, conditions: int, nulls: float) -> None:
    chance, (kind, pool) = random.Random(f"{groups} {name} {conditions} {nulls}"), COLUMNS[name]
    rows = chance.randrange(1500)
    ids = [chance.randrange(groups) for _ in range(rows)]
    values = [None if chance.random() < nulls else chance.choice(pool) for _ in range(rows)]
    masks: list[Any] = [np.array([chance.random() < 0.1 for _ in ids], dtype=bool) for _ in range(conditions)]
    if not conditions or chance.random() < 0.5:
        masks[-1:] = [None]
    expected: dict[tuple[int, Any], set[int]] = defaultdict(set)
    for row, (group, value) in enumerate(zip(ids, values, strict=True)):
        meets = {n for n, mask in enumerate(masks) if mask is None or mask[row]}
        if value is not None and meets:
            expected[group, value] |= meets
    found = pairs_of(np.array(ids, dtype=np.int64), groups, pa.array(values, kind), masks)
    among = [found.among(n) for n in range(len(masks))]
    pairs = list(zip(found.owners.tolist(), found.values.to_pylist(), strict=True))
    assert len(pairs) == len(set(pairs))
    met = {
        pair: {n for n, chosen in enumerate(among) if chosen is None or chosen[at]}
        for at, pair in enumerate(pairs)
    }
    assert met == expected
