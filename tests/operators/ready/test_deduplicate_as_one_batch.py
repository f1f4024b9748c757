"""Deduplication gives what a computation over the whole input gives, however the input is cut into batches."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from stateflow.pipelines.ready.operators import UNTIL, Deduplicate, KeyedRows, deduplicate
from stateflow.pipelines.rows.row_type import row_type
from stateflow.state.columns import state
from tests.operators.ready.driving import END, Driven

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = 1_000_000


@dataclass
class Event:
    id: str
    region: int
    amount: float
    day: date
    at: datetime
    note: str


SCHEMA = pa.schema(
    [
        ("id", pa.string()), ("region", pa.int64()), ("amount", pa.float64()), ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")), ("note", pa.string()),
    ]
)  # fmt: skip


def declared(keep: str, within: int | None, time: str = "at") -> Deduplicate:
    return deduplicate(
        KeyedRows("once", row_type(Event), ("id", "region"), ()), time=time, within=within, keep=keep
    )


def events(chance: random.Random, count: int = 200) -> list[dict[str, Any]]:
    return [
        {
            "id": chance.choice("abcde"),
            "region": chance.randrange(2),
            "amount": chance.choice((None, 0.5, 1.5)),
            "day": chance.choice((None, date(2026, 1, 1), date(2026, 1, 2))),
            "at": max(0, number // 2 + chance.randrange(-10, 10)) * SECOND,
            "note": chance.choice((None, "", "x")),
        }
        for number in range(count)
    ]


def content(row: dict[str, Any]) -> list[tuple[bool, Any]]:
    return [(row[name] is not None, row[name]) for name in ("amount", "day", "note")]


def once(rows: list[dict[str, Any]], keep: str, within: int | None) -> list[dict[str, Any]]:
    by_key: dict[Any, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda r: (r["at"], content(r))):
        by_key.setdefault((row["id"], row["region"]), []).append(row)
    out = []
    for mine in by_key.values():
        groups: list[list[dict[str, Any]]] = []
        for row in mine:
            if groups and (within is None or row["at"] <= groups[-1][0]["at"] + within):
                groups[-1].append(row)
            else:
                groups.append([row])
        out += [group[0 if keep == "first" else -1] for group in groups]
    return out


def plain(rows: list[dict[str, Any]]) -> list[Any]:
    def value(each: Any) -> Any:
        return (each - EPOCH) // timedelta(microseconds=1) if isinstance(each, datetime) else each

    return sorted(repr([value(row[name]) for name in SCHEMA.names]) for row in rows)


def over(driven: Driven, rows: list[dict[str, Any]], chance: random.Random, delay: int) -> list[int | None]:
    """Runs the rows in batches, and marks each with the watermark that its batch had."""
    newest: int | None = None
    marks = []
    places = sorted(chance.randrange(len(rows)) for _ in range(chance.randrange(10)))
    for begin, end in zip([0, *places], [*places, len(rows)], strict=True):
        part = rows[begin:end]
        mark = None if newest is None else newest - delay
        for row in part:
            row["mark"] = mark
        marks.append(mark)
        table = pa.Table.from_pylist(part, SCHEMA) if part else None
        driven.batch(table, mark, chance.randrange(1, 3))
        newest = max([row["at"] for row in part] + ([newest] if newest is not None else []), default=None)
        if chance.random() < 0.3:
            driven.rescale(chance.randrange(1, 5))
    driven.batch(None, END)
    return marks


@pytest.mark.parametrize("keep", ["first", "last"])
@pytest.mark.parametrize("seed", range(12))
def test_one_row_of_each_key_comes_out_for_each_span_of_time(
    seed: int, keep: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(f"{seed}{keep}")
    # What is due comes in tables that may end amid the rows of a key.
    monkeypatch.setattr(state, "BLOCK", chance.choice((1, 2, 3, 7, 100_000)))
    rows, within = events(chance), chance.choice((0, 1, 3, 10, 200)) * SECOND
    driven = Driven(declared(keep, within), chance.randrange(1, 4))
    over(driven, rows, chance, chance.choice((0, 4, 30)) * SECOND)
    on_time = [row for row in rows if row["mark"] is None or row["at"] > row["mark"]]
    assert plain(driven.rows) == plain(once(on_time, keep, within))
    late = [row for row in rows if row["mark"] is not None and row["at"] <= row["mark"]]
    assert plain(driven.sides.get("late", [])) == plain(late)
    assert driven.counters.get("late_rows", 0) == len(late)
    assert driven.entries() == 0, "a key is forgotten when its span is over"


@pytest.mark.parametrize(("block", "written"), [(100_000, 1), (4, 2), (5, 1)])
def test_a_span_that_is_over_when_its_rows_come_out_is_not_written(
    block: int, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the next table may have rows of its key."""
    monkeypatch.setattr(state, "BLOCK", block)
    put, spans = state.ColumnState.put, []

    def noted(self: Any, keys: Any, values: Any = None, **more: Any) -> None:
        if values is not None and UNTIL in values.column_names:
            spans.extend(keys.to_pylist())
        put(self, keys, values, **more)

    monkeypatch.setattr(state.ColumnState, "put", noted)
    row = {"region": 1, "amount": None, "day": None, "note": None}
    rows = [{**row, "id": "a", "at": at * SECOND} for at in (0, 1, 20, 40, 99)]
    driven = Driven(declared("first", 10 * SECOND))
    driven.batch(pa.Table.from_pylist(rows, SCHEMA), None)
    driven.batch(SCHEMA.empty_table(), 100 * SECOND)
    assert len(driven.rows) == 4
    assert len(spans) == written


@pytest.mark.parametrize("keep", ["first", "last"])
def test_within_nothing_only_rows_of_one_instant_are_copies(keep: str) -> None:
    at = [0, 0, 1, 1, 2 * SECOND]
    rows = [{"id": "a", "region": 1, "amount": None, "day": None, "at": time, "note": "same"} for time in at]
    driven = Driven(declared(keep, 0))
    driven.batch(pa.Table.from_pylist(rows, SCHEMA), None)
    driven.batch(SCHEMA.empty_table(), END)
    came = [(row["at"] - EPOCH) // timedelta(microseconds=1) for row in driven.rows]
    assert sorted(came) == [0, 1, 2 * SECOND]


@pytest.mark.parametrize("seed", range(6))
def test_without_an_end_a_key_comes_out_once_for_ever(seed: int) -> None:
    chance = random.Random(seed)
    rows = events(chance)
    driven = Driven(declared("first", None))
    over(driven, rows, chance, 30 * SECOND)
    assert plain(driven.rows) == plain(once(rows, "first", None))


@pytest.mark.parametrize("seed", range(6))
def test_the_last_row_without_an_end_replaces_the_one_before(seed: int) -> None:
    chance = random.Random(seed)
    rows = events(chance)
    one = declared("last", None)
    assert one.changes == ("id", "region")
    driven = Driven(one)
    over(driven, rows, chance, 0)
    newest = {(row["id"], row["region"]): row for row in driven.rows}
    assert plain(list(newest.values())) == plain(once(rows, "last", None))
    for batch in driven.output:
        assert len({(row["id"], row["region"]) for row in batch}) == len(batch)


@pytest.mark.parametrize("seed", range(6))
def test_without_event_time_the_first_row_to_come_counts(seed: int) -> None:
    chance = random.Random(seed)
    rows = events(chance)
    driven = Driven(declared("first", None, time=""))
    first: dict[Any, Any] = {}
    for begin in range(0, len(rows), 40):
        part = rows[begin : begin + 40]
        driven.batch(pa.Table.from_pylist(part, SCHEMA), None)
        # Of one batch, what is smallest; its time is a value like others.
        for row in sorted(part, key=lambda r: (*content(r)[:2], r["at"], content(r)[2])):
            first.setdefault((row["id"], row["region"]), row)
    assert plain(driven.rows) == plain(list(first.values()))
