"""Entries under keys that several states share are those that each state reads and writes by itself."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from stateflow.format.records import Shard
from stateflow.state.backends.memory import memory_backend
from stateflow.state.columns.layout import ColumnLayout
from stateflow.state.columns.state import ColumnState

KEYS = pa.table({"user": ["b", "a"]})
OWNERS = pa.array([0, 1, 1, 0]).to_numpy()
BY = pa.table({"value": [7, 5, 6, 5]})


def states(tmp_path: Path, *, timed: bool) -> list[ColumnState]:
    """Two that differ in nothing but their ids, over one shard."""
    backend = memory_backend()(
        Shard(first=0, last=15, backend="memory"), tmp_path, lambda ref: Path(ref.path)
    )
    schema = ColumnLayout({"seen": bool}, {"value": int}, timed).schema()
    made = [ColumnState([("user", "str")], msgspec.structs.replace(schema, id=n), 16, "x") for n in (3, 300)]
    for state in made:
        state.attach(backend, range(16), empty=True)
    return made


@pytest.mark.parametrize("timed", [False, True])
def test_what_is_put_under_shared_keys_is_found_under_its_own(tmp_path: Path, timed: bool) -> None:
    one, other = states(tmp_path, timed=timed)
    at = pa.array([20, 10]) if timed else None
    shared = one.shared(KEYS, OWNERS, by=BY, at=at)
    assert one.lacks(one.of_shared(shared, None), "seen").all()
    order = shared.order
    places = range(4) if order is None else order.tolist()
    chosen = pa.array([BY["value"][place].as_py() == 5 for place in places]).to_numpy(zero_copy_only=False)
    other.put_shared(other.of_shared(shared, chosen), pa.table({"seen": [True]}))
    assert (other.changed, one.changed) == (True, False)
    assert not timed or other.next_due() == 10
    own = KEYS.take(pa.array(OWNERS)), BY, None if at is None else at.take(pa.array(OWNERS))
    assert other.get(own[0], by=own[1], at=own[2])["seen"].to_pylist() == [None, True, None, True]
    assert one.get(own[0], by=own[1], at=own[2])["seen"].to_pylist() == [None] * 4
    assert other.lacks(other.of_shared(shared, None), "seen").tolist() == [not each for each in chosen]


def test_an_entry_with_a_null_lacks_the_value(tmp_path: Path) -> None:
    one, _ = states(tmp_path, timed=False)
    one.put(KEYS, pa.table({"seen": pa.array([True, None], pa.bool_())}), by=pa.table({"value": [5, 5]}))
    shared = one.shared(KEYS, OWNERS, by=BY)
    lacks = one.lacks(one.of_shared(shared, None), "seen").tolist()
    rows = range(4) if shared.order is None else shared.order.tolist()
    assert dict(zip(rows, lacks, strict=True)) == {0: True, 1: True, 2: True, 3: False}
