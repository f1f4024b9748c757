"""Of all rows so far those that a deduplication, a last row or a list keeps, however the rows come.

Every span, either end of it, event time or none, each order, lists with and without alike rows, and releases that add, remove, rename
and reorder the columns of rows that are kept.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Annotated, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stateflow as sf
from stateflow.pipelines.graph import KeyedNode
from stateflow.pipelines.streams import Stream
from stateflow.state.columns import state
from tests.operators.plays import Play, Row, Rows, Said, Turn, model, place, played, plays, rows_of, times
from tests.operators.ready.driving import END, SECOND, Driven

KEY = ("id", "region")
RENAMED = {"title": "name"}
DEFAULTS: Row = {"channel": "web", "cents": 7}
"""Stand for a null. A type that allows None has no default for a null, as `title` shows."""
FIELDS: dict[str, tuple[Any, Any]] = {
    "id": (str, ""), "region": (int, 0), "amount": (float | None, None), "n": (int | None, None),
    "price": (Annotated[Decimal | None, "decimal(10,2)"], None), "day": (date | None, None),
    "name": (str | None, None), "title": (Annotated[str | None, sf.field(aliases=["name"])], "none yet"),
    "sent": (datetime | None, None), "paid": (bool | None, None), "ts": (datetime | None, None), "channel": (str, "web"),
    "cents": (int, 7),
}  # fmt: skip
MOMENT = pa.timestamp("us", "UTC")
TYPES = {
    "id": pa.string(), "region": pa.int64(), "amount": pa.float64(), "n": pa.int64(), "price": pa.decimal128(10, 2),
    "day": pa.date32(), "name": pa.string(), "title": pa.string(), "sent": MOMENT, "paid": pa.bool_(), "ts": MOMENT,
    "channel": pa.string(), "cents": pa.int64(),
}  # fmt: skip
VALUES: dict[str, tuple[Any, ...]] = {
    "id": ("a", "a", "a", "b", ""), "region": (1, 1, 1, -2), "amount": (None, 0.0, -0.0, 0.5, -7.5, math.nan, math.inf),
    "n": (None, 0, 1, 1 << 40, -(1 << 55) - 1), "price": (None, Decimal("-0.01"), Decimal("99999999.99")),
    "day": (None, date(1969, 12, 31), date(2026, 1, 2)), "name": (None, "", "é", "b" * 40), "title": (None, "x", "é"),
    "sent": (None, datetime(1969, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)), "paid": (None, True, False),
    "channel": ("shop", "web"), "cents": (6, 7, 8),
}  # fmt: skip
ROW = rows_of(
    {name: st.sampled_from(values) for name, values in VALUES.items()}
    | {"ts": st.one_of(times, times, times, times, st.none())}
)
KINDS = ["first", "last", "first for ever", "last for ever", "to come", "latest", "top"]


@dataclass(frozen=True)
class Case:
    kind: str
    releases: list[list[str]]
    """Per release the columns."""
    within: list[int]
    """Per release."""
    by: list[str]
    """What a list is ordered by."""
    order: list[str]
    """Which row of a key, or of a list's alike rows, is the last."""
    per: list[str]
    n: int
    waited: bool
    held_back: int
    block: int


@st.composite
def cases(draw: Any, *kinds: str) -> Case:
    kind = draw(st.sampled_from(kinds))
    pool = [name for name in TYPES if name not in (*KEY, "ts", "title")]

    def some(least: int, most: int) -> list[str]:
        names = draw(st.lists(st.sampled_from(["ts", *pool]), min_size=least, max_size=most, unique=True))
        return [draw(st.sampled_from(["", "-"])) + name for name in names]

    by = some(1, 2) if kind == "top" else []
    order = some(0, 2) if kind in ("top", "latest") else []
    per = [name.removeprefix("-") for name in some(0, 2)] if kind == "top" else []
    stay = {name.removeprefix("-") for name in (*by, *order, *per)}
    releases: list[list[str]] = []
    for _ in range(draw(st.integers(1, 3))):
        names = {*stay, *draw(st.sets(st.sampled_from(pool), max_size=4))}
        if releases and "title" in releases[-1]:
            names -= {"name"}
        if "name" in names - stay and draw(st.booleans()):
            names = names - {"name"} | {"title"}
        releases.append(draw(st.permutations(sorted({*KEY, "ts", *names}))))
    spans = st.sampled_from([0, 1, SECOND, 3 * SECOND, 10 * SECOND, 200 * SECOND])
    behind = kind != "top" and draw(st.integers(0, 4)) == 0
    return Case(
        kind, releases, [draw(spans) for _ in releases], by, order, per if kind == "top" else [],
        draw(st.integers(1, 4)), behind, draw(st.sampled_from([0, 3])) * SECOND if behind else 0,
        draw(st.sampled_from([100_000, 1, 2, 3, 7])),
    )  # fmt: skip


def node_of(case: Case, release: int) -> KeyedNode:
    names = case.releases[release]
    event = make_dataclass(
        "Event", [(name, FIELDS[name][0], field(default=FIELDS[name][1])) for name in names], kw_only=True
    )

    @sf.pipeline("made")
    def made(flow: sf.Flow) -> None:
        time: Any = {} if case.kind == "to come" else {"event_time": "ts", "watermark": "0 seconds"}
        rows = flow.source("in", sf.delta("/in"), event, **time)
        if case.kind == "latest":
            rows.key_by(*KEY, order_by=case.order).latest("op")
        elif case.kind == "top":
            rows.key_by(*KEY, order_by=case.order).top("op", case.n, by=case.by, per=case.per)
        else:
            _deduplicated(rows, case, release)

    return made.build().operators[0]


def _deduplicated(rows: Stream, case: Case, release: int) -> None:
    within = timedelta(microseconds=case.within[release]) if case.kind in ("first", "last") else None
    rows.deduplicate("op", by=KEY, within=within, keep="last" if "last" in case.kind else "first")


def in_order(rows: Rows, by: Sequence[str]) -> Rows:
    """Rows that are alike in all columns stay as they are."""
    for each in reversed(by):
        rows = sorted(rows, key=lambda row: place(row[each.removeprefix("-")]), reverse=each.startswith("-"))
    return rows


def last_by(rows: Rows, by: Sequence[str]) -> Row:
    return in_order(rows, [each.removeprefix("-") if each.startswith("-") else f"-{each}" for each in by])[0]


@dataclass
class Group:
    """The rows of a key that are alike for a while."""

    until: int
    row: Row


@dataclass
class KeptRows:
    case: Case
    code: int = 0
    waiting: dict[Any, Row] = field(default_factory=dict)
    """By key and time: the rows that the watermark has not reached."""
    groups: dict[Any, Group] = field(default_factory=dict)
    """By key the one that is open."""
    held: dict[Any, Rows] = field(default_factory=lambda: defaultdict(list))
    """By key: the last row, or those of a list."""
    shown: dict[Any, Rows] = field(default_factory=lambda: defaultdict(list))
    """By key: the list as it was put out."""
    before: int | None = None
    said: Said = field(default_factory=Said)
    changes: dict[Any, Row] = field(default_factory=dict)
    """What this batch puts out, by what it replaces."""

    def __post_init__(self) -> None:
        self.node = node_of(self.case, 0)
        self.schemas = [self._schema()]

    def _schema(self) -> pa.Schema:
        return pa.schema([(name, TYPES[name]) for name in self.columns])

    @property
    def columns(self) -> list[str]:
        return self.case.releases[self.code]

    @property
    def content(self) -> list[str]:
        """What decides between rows of one place."""
        timed = self.case.kind not in ("to come", "latest", "top")
        return [name for name in self.columns if name not in KEY and not (timed and name == "ts")]

    def release(self) -> KeyedNode | None:
        if self.code + 1 == len(self.case.releases):
            return None
        self.code += 1
        kept = [*self.waiting.values(), *(group.row for group in self.groups.values())]
        for row in [*kept, *(row for rows in self.held.values() for row in rows)]:
            old = dict(row)
            row.clear()
            row.update({name: old.get(name, old.get(RENAMED.get(name, ""))) for name in self.columns})
        self.schemas[0] = self._schema()
        self.node = node_of(self.case, self.code)
        return self.node

    def batch(self, pieces: list[list[Rows]], mark: int | None) -> Said:
        case, self.said, self.changes = self.case, Said(), {}
        of_rows = behind(self.before if case.waited else mark, case)
        self.before = mark
        mark = behind(mark, case)
        for [piece] in pieces:
            match case.kind:
                case "to come":
                    for row in in_order(piece, self.content):
                        if not self.held[key_of(row)]:
                            self.held[key_of(row)].append(row)
                            self._put_out(row)
                case "latest" | "last for ever":
                    self._replace(piece)
                case "top":
                    self._list(piece)
                case _:
                    self._wait(piece, of_rows)
        if mark is not None:
            self._reach(mark)
        self.said.rows += self.changes.values()
        self.said.kept = self._kept(mark)
        return self.said

    def _put_out(self, row: Row) -> None:
        self.said.rows.append(self._filled(row))

    def _filled(self, row: Row) -> Row:
        return {name: DEFAULTS.get(name) if row[name] is None else row[name] for name in self.columns}

    def _wait(self, rows: Rows, mark: int | None) -> None:
        for row in rows:
            at = row["ts"]
            if at is None or (mark is not None and at <= mark):
                self.said.late.setdefault("late", []).append(row)
                continue
            alike = [*([self.waiting[key_of(row), at]] if (key_of(row), at) in self.waiting else []), row]
            first = in_order(alike, self.content)[0]
            self.waiting[key_of(row), at] = (
                first if "first" in self.case.kind else last_by(alike, self.content)
            )

    def _reach(self, mark: int) -> None:
        """In the order of time, a row opens a group or belongs to that of its key."""
        is_last = self.case.kind == "last"
        for key, at in sorted(each for each in self.waiting if each[1] <= mark):
            row, group = self.waiting.pop((key, at)), self.groups.get(key)
            if group is not None and at <= group.until:
                group.row = row
                continue
            if group is not None and is_last:
                self._put_out(group.row)
            until = END if self.case.kind == "first for ever" else at + self.case.within[self.code]
            self.groups[key] = Group(until, row)
            if not is_last:
                self._put_out(row)
        if self.case.kind in ("first", "last"):
            for key in [key for key, group in self.groups.items() if group.until <= mark]:
                if is_last:
                    self._put_out(self.groups[key].row)
                del self.groups[key]

    def _replace(self, rows: Rows) -> None:
        """The last row of each key, if it is another one than before."""
        by = ["ts"] if self.case.kind == "last for ever" else self.case.order or ["ts"]
        for key, mine in by_key(rows).items():
            row = last_by([*self.held[key], *mine], [*by, *self.content])
            if not any(row is each for each in self.held[key]):
                self.held[key] = [row]
                self.changes[key] = self._filled(row)

    def _list(self, rows: Rows) -> None:
        case = self.case
        order = [*case.by, *case.per, *self.content]
        for key, mine in by_key(rows).items():
            before, old = self.held[key], self.shown[key]
            alike = defaultdict[Any, Rows](list)
            for number, row in enumerate([*before, *mine]):
                alike[self._kind(row) if case.per else number].append(row)
            last = [*case.order, *self.content]
            chosen = [
                last_by(rows, last) if case.order else in_order(rows, order)[0] for rows in alike.values()
            ]
            new = in_order(chosen, order)[: case.n]
            self.held[key] = chosen if case.per and case.order else new
            self.shown[key] = new
            for rank, row in enumerate(old):
                if case.per and self._kind(row) not in map(self._kind, new):
                    self._change(key, row, rank, "delete")
            for rank, row in enumerate(new):
                if rank >= len(old) or old[rank] is not row:
                    self._change(key, row, rank, "upsert")

    def _kind(self, row: Row) -> Any:
        return tuple(place(row[name]) for name in self.case.per)

    def _change(self, key: Any, row: Row, rank: int, operation: str) -> None:
        replaced = self._kind(row) if self.case.per else rank
        self.changes[key, replaced] = {**self._filled(row), "rank": rank + 1, "_op": operation}

    def _kept(self, mark: int | None) -> int | None:
        """A key is forgotten when its span is over."""
        if self.case.kind in ("first", "last"):
            return 0 if mark == END else None
        if mark == END or self.waiting:
            return None
        return sum(map(len, self.held.values())) + len(self.groups)


def key_of(row: Row) -> Any:
    return tuple(row[name] for name in KEY)


def by_key(rows: Rows) -> dict[Any, Rows]:
    found = defaultdict[Any, Rows](list)
    for row in rows:
        found[key_of(row)].append(row)
    return found


def behind(mark: int | None, case: Case) -> int | None:
    return mark if mark is None or mark == END else mark - case.held_back


def check(case: Case, play: Play) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # What is due comes in tables that may end amid the rows of a key.
        patch.setattr(state, "BLOCK", case.block)
        kept = KeptRows(case)
        driven = Driven.of(
            kept.node, play.shards, waited=case.waited, held_back=case.held_back, backend=play.backend
        )
        played(play, driven, kept, kept.schemas)


@pytest.mark.parametrize("within", [0, 3 * SECOND])
@pytest.mark.parametrize("kind", ["first", "last", "last for ever", "latest"])
def test_spans_with_many_rows_of_one_instant(kind: str, within: int) -> None:
    """Drawn plays seldom have two rows of a key at the last instant of a span."""
    chance, turns = Random(f"{kind}{within}"), []
    for number in range(4):
        rows: Rows = [{name: chance.choice(values) for name, values in VALUES.items()} for _ in range(25)]
        for row in rows:
            row["ts"] = (20 + 4 * number + chance.randrange(-4, 4)) * SECOND
        turns.append(Turn([rows], chance.randrange(1, 3), chance.choice(["", "restart", "rescale"]), 2))
    case = Case(
        kind, [["id", "region", "ts", "n", "amount", "day"]], [within], [], [], [], 1, False, 0, 100_000
    )
    check(case, Play(turns, 3 * SECOND, "memory", 2))


@pytest.mark.parametrize("block", [3, 100_000])
@pytest.mark.parametrize("order", [[], ["n"], ["-ts"]])
def test_zero_is_one_kind_with_either_sign(order: list[str], block: int) -> None:
    """Drawn plays seldom have both signs behind each other in the tables of one batch."""
    chance, turns = Random(f"{order}{block}"), []
    for number in range(6):
        rows: Rows = [{name: chance.choice(values) for name, values in VALUES.items()} for _ in range(12)]
        for row in rows:
            row["ts"] = (20 + 4 * number + chance.randrange(-4, 4)) * SECOND
        turns.append(Turn([rows], 3, chance.choice(["", "restart", "rescale"]), 3))
    case = Case(
        "top", [["ts", "region", "n", "day", "amount", "id"]], [0], ["day", "-amount"], order, ["amount"], 3, False, 0, block
    )  # fmt: skip
    check(case, Play(turns, 0, "memory", 2))


@pytest.mark.parametrize(
    ("per", "order"), [([], []), (["n", "name"], []), (["n", "name"], ["ts"]), (["name", "n"], ["-ts"])]
)
def test_a_list_stays_as_it_was_put_out_when_a_release_orders_columns_anew(
    per: list[str], order: list[str]
) -> None:
    """Rows that are alike in what orders the list are told apart by `per`, then by their columns, from the first one on."""
    chance, turns = Random(f"{per}"), []
    for number in range(6):
        rows: Rows = [{name: chance.choice(values) for name, values in VALUES.items()} for _ in range(4)]
        for row in rows:
            row |= {"id": "a", "region": 1, "ts": (20 + number) * SECOND}
        turns.append(Turn([rows], 1, "release" if number == 2 else "", 1))
    releases = [["id", "region", "paid", "n", "name", "ts"], ["id", "region", "ts", "name", "n", "paid"]]
    case = Case("top", releases, [0, 0], ["paid"], order, per, 3, False, 0, 100_000)
    check(case, Play(turns, 0, "memory", 1))


@pytest.mark.slow
@model(35, 2000)
@given(case=cases("first", "last"), play=plays(ROW, releases=True))
def test_one_row_of_each_key_comes_out_for_each_span_of_time(case: Case, play: Play) -> None:
    check(case, play)


@model(25, 1000)
@given(case=cases("first for ever", "last for ever", "to come", "latest"), play=plays(ROW, releases=True))
def test_one_row_of_each_key_stays_for_ever(case: Case, play: Play) -> None:
    check(case, play)


@pytest.mark.slow
@model(35, 2000)
@given(case=cases("top"), play=plays(ROW, releases=True))
def test_the_changes_of_a_list_are_those_of_the_list_of_all_rows(case: Case, play: Play) -> None:
    check(case, play)
