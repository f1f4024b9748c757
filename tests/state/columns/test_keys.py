"""Full keys made in bulk are those made one at a time, and come sorted: backends read and write sorted keys faster."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateflow.format.encoding import encode_timestamp, prefix
from stateflow.format.keygroups import key_group
from stateflow.format.scalars import BY_NAME, KEY_TYPES
from stateflow.state.columns.keys import EntryKeys
from stateflow.state.columns.layout import ColumnLayout
from stateflow.state.columns.order import inverse
from stateflow.state.keys.arrow_types import ARROW
from stateflow.state.keys.codec import KeyCodec
from tests.state.columns.test_model import POOLS, TIMES, names

types = st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=3)


@settings(max_examples=150)
@given(types, types | st.just([]), st.booleans(), st.sampled_from([1, 4]), st.data())
def test_keys_in_bulk_are_sorted_and_the_same(
    key: list[str], by: list[str], timed: bool, groups: int, data: st.DataObject
) -> None:
    layout = ColumnLayout({"n": int}, {name: BY_NAME[kind].type for name, kind in names("b", by)}, timed)
    keys = EntryKeys(names("k", key), msgspec.structs.replace(layout.schema(), id=7), groups, "x")
    pools = [st.sampled_from(POOLS[kind]) for kind in (*key, *by)]
    rows = data.draw(st.lists(st.tuples(st.sampled_from(TIMES), *pools), min_size=1, max_size=60))
    parts = keys.parts(
        _table([row[1 : 1 + len(key)] for row in rows], key),
        _table([row[1 + len(key) :] for row in rows], by) if by else None,
        pa.array([row[0] for row in rows], pa.int64()) if timed else None,
    )
    made = [_by_hand(row, key, by, timed, groups) for row in rows]
    full, order, _ = keys.sorted(parts)
    assert full == sorted(made)
    assert full == (made if order is None else [made[i] for i in order.tolist()])
    assert order is None or [full[i] for i in inverse(order).tolist()] == made
    if not by:
        prefixes = keys.prefixes(
            _table([row[1:] for row in rows], key), np.array([r[0] for r in rows]) if timed else None
        )
        assert prefixes == made


@settings(max_examples=150)
@given(types, types, st.booleans(), st.sampled_from([1, 4]), st.data())
def test_keys_that_states_share_are_those_of_each_state(
    key: list[str], by: list[str], timed: bool, groups: int, data: st.DataObject
) -> None:
    layout = ColumnLayout({"n": int}, {name: BY_NAME[kind].type for name, kind in names("b", by)}, timed)
    keys = EntryKeys(names("k", key), msgspec.structs.replace(layout.schema(), id=3), groups, "x")
    pools = [[st.sampled_from(POOLS[kind]) for kind in kinds] for kinds in (key, by)]
    owned = st.tuples(st.sampled_from(TIMES) if timed else st.just(TIMES[0]), *pools[0])
    owners = data.draw(st.lists(owned, min_size=1, max_size=20, unique=True))
    index = st.integers(0, len(owners) - 1)
    rows = data.draw(st.lists(st.tuples(index, *pools[1]), max_size=60))
    shared = keys.shared(
        _table([row[1:] for row in owners], key),
        np.array([row[0] for row in rows], dtype=np.int64),
        _table([row[1:] for row in rows], by),
        pa.array([row[0] for row in owners], pa.int64()) if timed else None,
    )
    made = [_by_hand((*owners[row[0]], *row[1:]), key, by, timed, groups) for row in rows]
    assert shared.of(7, None) == sorted(made)
    assert shared.of(7, None) == (made if shared.order is None else [made[i] for i in shared.order.tolist()])
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), dtype=bool)
    assert shared.of(7, chosen) == [full for full, takes in zip(sorted(made), chosen, strict=True) if takes]
    assert shared.of(3, None) == [full[:2] + b"\0\3" + full[4:] for full in sorted(made)]


def _table(rows: list[tuple[Any, ...]], kinds: list[str]) -> pa.Table:
    arrays = [pa.array([row[i] for row in rows], ARROW[kind]) for i, kind in enumerate(kinds)]
    return pa.table(arrays, names=[f"c{i}" for i in range(len(kinds))])


def _by_hand(row: tuple[Any, ...], key: list[str], by: list[str], timed: bool, groups: int) -> bytes:
    at, own, rest = row[0], row[1 : 1 + len(key)], row[1 + len(key) :]
    value = own if len(own) > 1 else own[0]
    full = prefix(key_group(value, groups), 7) + (encode_timestamp(at) if timed else b"")
    full += KeyCodec(key).encode(value) + b"\0"
    return full + (KeyCodec(by).encode(rest if len(by) > 1 else rest[0]) if by else b"")


@pytest.mark.parametrize("kind", ["int", "str", "decimal"])
def test_sorted_keys_are_found_to_be_sorted(kind: str) -> None:
    """What a kernel has sorted already is not sorted again."""
    schema = msgspec.structs.replace(ColumnLayout({"n": int}).schema(), id=7)
    keys = EntryKeys([("k", kind)], schema, 1, "x")
    column = pa.array(POOLS[kind], ARROW[kind])
    _, order, _ = keys.sorted(keys.parts(column, None, None))
    assert order is not None
    _, again, _ = keys.sorted(keys.parts(column.take(pa.array(order)), None, None))
    assert again is None
