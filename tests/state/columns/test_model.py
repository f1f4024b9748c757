"""Columnar state does what a dict would: any key, any entries per key, any order of operations, batches and rescales."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateflow.format.instants import micros_since_epoch
from stateflow.format.keygroups import key_group
from stateflow.format.records import Shard
from stateflow.format.scalars import BY_NAME, KEY_TYPES
from stateflow.state.backends.base import Backend
from stateflow.state.columns.layout import ColumnLayout
from stateflow.state.columns.state import ColumnState
from stateflow.state.keys.arrow_types import ARROW, INSTANT
from stateflow.state.tabular import tables_of
from tests.in_memory import IN_MEMORY
from tests.jobs.operators import operator_of
from tests.state.conftest import BACKENDS, Shelf

GROUPS = 16
START = datetime(2026, 1, 1, tzinfo=UTC)
POOLS: dict[str, list[Any]] = {
    "bool": [False, True],
    "int": [-(1 << 63), -2, -1, 0, 1, 7, (1 << 63) - 1, *range(100, 140)],
    "str": [
        "",
        "\0",
        "\0a",
        "a",
        "a\0",
        "ab",
        "é",
        "a" * 30,
        "a" * 40,
        "a" * 40 + "b",
        "a" * 31 + "b",
        "a" * 31 + "c",
        *map(str, range(30)),
    ],
    "bytes": [
        b"",
        b"\0",
        b"\0\xff",
        b"\0\1",
        b"\xff" * 30,
        b"\xff" * 29 + b"\0",
        *(bytes([n]) for n in range(20)),
    ],
    "date": [date(1, 1, 1), date(1969, 12, 31), date(2026, 1, 1), date(9999, 12, 31)],
    "datetime": [datetime(1, 1, 1, tzinfo=UTC), *(START + timedelta(seconds=n) for n in range(20))],
    "decimal": [Decimal("-1.5"), Decimal(0), Decimal("1e-18"), Decimal(10) ** 19, Decimal(7)],
}
TIMES = [-1, 0, *(micros_since_epoch(START) + n for n in range(8))]
VALUES = {
    "fixed": {"n": int, "x": float, "on": bool, "t": datetime},
    "varying": {"n": int, "s": str, "raw": bytes},
    "nothing": {},
}
SAMPLES: dict[type, list[Any]] = {
    int: [None, 0, -1, 1 << 40], float: [None, 0.5], bool: [None, True, False], datetime: [None, START],
    str: [None, "", "é\0", "long" * 20], bytes: [None, b"", b"\0"],
}  # fmt: skip


def names(prefix: str, types: Sequence[str]) -> list[tuple[str, str]]:
    return [(f"{prefix}{i}", kind) for i, kind in enumerate(types)]


class Case:
    """A state under test and its model: entries by `(time, key, by)`."""

    def __init__(self, key: Sequence[str], by: Sequence[str], timed: bool, values: dict[str, type]) -> None:
        self.key, self.by, self.timed, self.values = names("k", key), names("b", by), timed, values
        layout = ColumnLayout(values, {name: BY_NAME[kind].type for name, kind in self.by}, timed)
        self.schema = msgspec.structs.replace(layout.schema(), id=3)
        self.state = ColumnState(self.key, self.schema, GROUPS, "operator 'x'")
        self.model: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def columns(self, of: list[tuple[str, str]], rows: Sequence[tuple[Any, ...]]) -> pa.Table:
        arrays = [pa.array([row[i] for row in rows], ARROW[kind]) for i, (_, kind) in enumerate(of)]
        return pa.table(arrays, names=[name for name, _ in of])

    def arguments(self, entries: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
        where: dict[str, Any] = {}
        if self.by:
            where["by"] = self.columns(self.by, [by for _, _, by in entries])
        if self.timed:
            where["at"] = pa.array([at for at, _, _ in entries], pa.int64())
        return where

    def keys(self, entries: Sequence[tuple[Any, ...]]) -> pa.Table:
        return self.columns(self.key, [key for _, key, _ in entries])

    def row(self, entry: tuple[Any, ...]) -> dict[str, Any]:
        at, key, by = entry
        row = dict(zip([n for n, _ in self.key], key, strict=True))
        if self.timed:
            row["at"] = at
        row |= dict(zip([n for n, _ in self.by], by, strict=True))
        return row | dict(zip(self.values, self.model[entry], strict=True))

    def rows(self, table: pa.Table) -> list[dict[str, Any]]:
        assert table.schema == self.state.entry_schema
        if self.timed:
            at = table.schema.get_field_index("at")
            table = table.set_column(at, "at", table.column("at").cast(pa.int64()))
        return table.to_pylist()

    def group(self, entry: tuple[Any, ...]) -> int:
        key = entry[1]
        return key_group(key if len(key) > 1 else key[0], GROUPS)

    def ordered(self, entries: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return sorted(entries, key=lambda e: (self.group(e), e[0], *e[1], *e[2]))


entry_types = st.sampled_from(KEY_TYPES)
cases = st.builds(
    Case,
    st.lists(entry_types, min_size=1, max_size=3),
    st.lists(entry_types, max_size=2),
    st.booleans(),
    st.sampled_from(list(VALUES.values())),
).filter(lambda case: case.values or case.by or case.timed)


@contextmanager
def shelf(kind: str) -> Iterator[Shelf]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        yield Shelf(Path(folder), kind, BACKENDS[kind]())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
@settings(max_examples=80)
@given(cases, st.data())
def test_any_order_of_operations_gives_what_a_dict_would(kind: str, case: Case, data: st.DataObject) -> None:
    with shelf(kind) as files:
        _Run(case, data, files).all()


class _Run:
    def __init__(self, case: Case, data: st.DataObject, shelf: Shelf) -> None:
        self.case, self.data, self.shelf = case, data, shelf
        self.shard = Shard(0, GROUPS - 1, shelf.kind)
        self.earliest: int | None = None
        self.backend: Backend = self.open()

    def open(self) -> Backend:
        backend = self.shelf.open(self.shard)
        extra = () if self.earliest is None else (self.earliest,)
        groups = range(self.shard.first, self.shard.last + 1)
        self.case.state.attach(backend, groups, *extra, empty=not self.shard.files)
        return backend

    def all(self) -> None:
        steps = [self.put, self.get, self.delete, self.entries, self.next_batch, self.rescale]
        if self.case.timed:
            steps += [self.due, self.delete_due]
        for step in [self.put, *self.data.draw(st.lists(st.sampled_from(steps), min_size=3, max_size=14))]:
            step()
        self.entries()
        self.table()
        self.backend.close()

    def some(self, *, distinct: bool = True) -> list[tuple[Any, ...]]:
        case = self.case
        entry = st.tuples(
            st.sampled_from(TIMES) if case.timed else st.just(0),
            st.tuples(*(st.sampled_from(POOLS[kind]) for _, kind in case.key)),
            st.tuples(*(st.sampled_from(POOLS[kind]) for _, kind in case.by)),
        )
        entries = self.data.draw(st.lists(entry, max_size=30, unique=distinct))
        return [e for e in entries if self.shard.first <= case.group(e) <= self.shard.last]

    def put(self) -> None:
        case, entries = self.case, self.some()
        value = st.tuples(*(st.sampled_from(SAMPLES[hint]) for hint in case.values.values()))
        values = self.data.draw(st.lists(value, min_size=len(entries), max_size=len(entries)))
        table = pa.table(
            [pa.array([v[i] for v in values], kind) for i, kind in enumerate(case.state.schema.types)],
            schema=case.state.schema,
        )
        case.state.put(case.keys(entries), table if case.values else None, **case.arguments(entries))
        case.model.update(zip(entries, values, strict=True))

    def get(self) -> None:
        case, entries = self.case, self.some(distinct=False)
        found = case.state.get(case.keys(entries), **case.arguments(entries))
        has = case.state.has(case.keys(entries), **case.arguments(entries))
        assert has.to_pylist() == [e in case.model for e in entries]
        assert found.schema == case.state.schema
        nothing = (None,) * len(case.values)
        wanted = [dict(zip(case.values, case.model.get(e, nothing), strict=True)) for e in entries]
        assert found.to_pylist() == (wanted if case.values else [])

    def delete(self) -> None:
        case, entries = self.case, self.some()
        if case.by and self.data.draw(st.booleans()):
            where = {"at": case.arguments(entries)["at"]} if case.timed else {}
            case.state.delete(case.keys(entries), **where)
            gone = {(at, key) for at, key, _ in entries}
            case.model = {e: value for e, value in case.model.items() if e[:2] not in gone}
            return
        case.state.delete(case.keys(entries), **case.arguments(entries))
        for entry in entries:
            case.model.pop(entry, None)

    def entries(self) -> None:
        case, entries = self.case, self.some(distinct=False)
        where = {"at": case.arguments(entries)["at"]} if case.timed else {}
        found = case.state.entries(case.keys(entries), row="row", **where)
        wanted = [
            (case.row(entry), number)
            for number, (at, key, _) in enumerate(entries)
            for entry in case.ordered([e for e in case.model if e[:2] == (at, key)])
        ]
        assert found["row"].to_pylist() == [number for _, number in wanted]
        assert case.rows(found.drop_columns(["row"])) == [row for row, _ in wanted]

    def limit(self) -> int:
        """Often the very time of the first entry."""
        first = min((at for at, _, _ in self.case.model), default=0)
        return self.data.draw(st.just(first) | st.sampled_from(TIMES))

    def due(self) -> None:
        case, limit = self.case, self.limit()
        found = [row for block in case.state.due(limit) for row in case.rows(block)]
        assert found == [case.row(e) for e in case.ordered([e for e in case.model if e[0] <= limit])]
        assert case.state.next_due() == min((at for at, _, _ in case.model), default=None)

    def delete_due(self) -> None:
        case, limit = self.case, self.limit()
        case.state.delete_due(limit)
        case.model = {e: value for e, value in case.model.items() if e[0] > limit}
        assert case.state.next_due() == min((at for at, _, _ in case.model), default=None)

    def next_batch(self) -> None:
        if self.case.timed:
            self.earliest = self.case.state.next_due()
            assert self.earliest == min((at for at, _, _ in self.case.model), default=None)
        self.shard = self.shelf.seal(self.backend, self.shard.first, self.shard.last)
        self.backend = self.open()

    def rescale(self) -> None:
        """The shard goes on with a part of its key groups."""
        self.next_batch()
        self.backend.close()
        first, last = self.shard.first, self.shard.last
        low = self.data.draw(st.integers(first, last))
        high = self.data.draw(st.integers(low, last))
        self.shard = msgspec.structs.replace(
            self.shard, first=low, last=high, physical_first=first, physical_last=last
        )
        case = self.case
        case.model = {e: value for e, value in case.model.items() if low <= case.group(e) <= high}
        self.backend = self.open()
        self.shard = msgspec.structs.replace(self.shard, physical_first=None, physical_last=None)

    def table(self) -> None:
        """What exports, savepoints of tables and imports make of the entries."""
        case = self.case
        operator = operator_of([self.shard], key=case.key, groups=GROUPS, states={"s": case.schema})
        table = tables_of(operator)["s"]
        stored = [
            entry for begin, end in table.ranges(0, GROUPS - 1) for entry in self.backend.scan(begin, end)
        ]
        keys, values = ([entry[i] for entry in stored] for i in (0, 1))
        batch = table.decode(keys, values)
        wanted = case.ordered(list(case.model))
        rows = batch.to_pylist()
        assert [tuple(row[name] for name, _ in case.key) for row in rows] == [key for _, key, _ in wanted]
        if case.by:
            assert [tuple(row["by"].values()) for row in rows] == [by for _, _, by in wanted]
        if case.timed:
            assert batch["at"].cast(pa.int64()).to_pylist() == [at for at, _, _ in wanted]
        if case.values:
            assert [tuple(row["value"].values()) for row in rows] == [case.model[e] for e in wanted]
        assert table.encode(batch) == (keys, values)


def test_instants_are_given_as_datetimes_or_microseconds(tmp_path: Path) -> None:
    schema = msgspec.structs.replace(ColumnLayout({"n": int}, timed=True).schema(), id=1)
    state = ColumnState([("k", "int")], schema, GROUPS, "x")
    shelf = Shelf(tmp_path, "memory", BACKENDS["memory"]())
    state.attach(shelf.open(), range(128), empty=True)
    micros = micros_since_epoch(START)
    state.put(pa.array([1]), pa.table({"n": [1]}), at=START)
    state.put(pa.array([2]), pa.table({"n": [2]}), at=micros)
    state.put(pa.array([3]), pa.table({"n": [3]}), at=pa.array([START], INSTANT))
    state.put(pa.array([4]), pa.table({"n": [4]}), at=pa.array([micros]).to_numpy())
    assert [n for block in state.due(START) for n in sorted(block["n"].to_pylist())] == [1, 2, 3, 4]
    assert not list(state.due(micros - 1))
    assert state.next_due() == micros


@pytest.mark.parametrize("made", [np.asarray, pa.array], ids=["numpy", "arrow"])
@pytest.mark.parametrize("changed", ["keys", "by", "at"])
def test_an_array_that_user_code_adds_to_names_other_entries(tmp_path: Path, made: Any, changed: str) -> None:
    """An Arrow array that is made of a numpy array has its memory, and so changes with it."""
    schema = msgspec.structs.replace(ColumnLayout({"n": int}, by={"place": int}, timed=True).schema(), id=1)
    state = ColumnState([("k", "int")], schema, GROUPS, "x")
    state.attach(Shelf(tmp_path, "memory", BACKENDS["memory"]()).open(), range(GROUPS), empty=True)
    given = {name: np.array([5, 7], dtype=np.int64) for name in ("keys", "by", "at")}
    for n in range(3):
        state.put(made(given["keys"]), pa.table({"n": [n, n]}), by=made(given["by"]), at=made(given["at"]))
        given[changed] += 10
    found = [row for block in state.due(100) for row in block.to_pylist()]
    assert sorted(row["n"] for row in found) == [0, 0, 1, 1, 2, 2]
    named = state.get(made(given["keys"]), by=made(given["by"]), at=made(given["at"]))
    assert named["n"].to_pylist() == [None, None]
