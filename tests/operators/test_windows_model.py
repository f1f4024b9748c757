"""Windows and running aggregates put out what a plain computation over all rows so far gives, however these come.

Every kind of window, each `emit`, lateness and strictness, each aggregate and code per window, rows that come combined, operators
behind others, and releases that add, remove and reorder aggregates.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stateflow as sf
from stateflow.operators.ready.windows import window_code
from stateflow.pipelines.graph import KeyedNode
from stateflow.pipelines.ready.operators import ReadyOperator
from stateflow.pipelines.ready.windows import Counted, Cumulative, Session, Sliding
from stateflow.state.columns import state
from tests.operators.plays import (
    Play,
    Row,
    Rows,
    Said,
    Turn,
    model,
    place,
    plain,
    played,
    plays,
    rows_of,
    times,
)
from tests.operators.ready.combine_by_hand import combined
from tests.operators.ready.driving import END, SECOND, Driven

COLUMNS = {
    "user": ("long", pa.int64()), "shop": ("string", pa.string()), "amount": ("double", pa.float64()),
    "price": ("decimal(10,2)", pa.decimal128(10, 2)), "n": ("long", pa.int64()), "k": ("int", pa.int32()),
    "name": ("string", pa.string()), "day": ("date", pa.date32()), "sent": ("timestamp", pa.timestamp("us", "UTC")),
    "paid": ("boolean", pa.bool_()), "ts": ("timestamp", pa.timestamp("us", "UTC")),
}  # fmt: skip
ROWS = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
SCHEMA = pa.schema([(name, kind) for name, (_, kind) in COLUMNS.items()])
BOUNDS = "window_start timestamp, window_end timestamp"
ORDER = ("ts", "-k")


# fmt: off
VALUES: dict[str, tuple[Any, ...]] = {
    "user": (1, 1, 1, 1, 2), "shop": ("a", "a", "a", "b"),
    # Sums of quarters are exact.
    "amount": (None, 0.0, -0.0, 0.25, -7.5, 2.0, math.nan, math.inf),
    "price": (None, Decimal("-99999999.99"), Decimal("0.01"), Decimal("99999999.99")),
    # More digits than a float holds, too.
    "n": (None, 0, 1, -1, 5, 1 << 40, -(1 << 55) - 1), "k": (None, -(1 << 31), 0, 5, 5),
    "name": (None, "", "é", "ab", "b", "b" * 40), "day": (None, date(1969, 12, 31), date(2026, 1, 2)),
    "sent": (None, datetime(1969, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)), "paid": (None, True, True, False),
}
# fmt: on
ROW = rows_of(
    {name: st.sampled_from(values) for name, values in VALUES.items()}
    | {"ts": st.one_of(times, times, times, times, st.none())}
)


def dense(seed: str) -> Play:
    """A play of many rows, many of them late: it meets what short ones seldom meet."""
    chance, turns = Random(seed), []
    for number in range(6):
        rows: Rows = [{name: chance.choice(values) for name, values in VALUES.items()} for _ in range(25)]
        for row in rows:
            row["ts"] = (20 + 7 * number + chance.randrange(-12, 12)) * SECOND
        turns.append(
            Turn(
                [rows],
                chance.randrange(1, 3),
                chance.choice(["", "restart", "rescale"]),
                chance.randrange(1, 4),
            )
        )
    return Play(turns, chance.choice([0, 0, 4]) * SECOND, "memory", 2)


# ---- aggregates ----


def in_order(rows: Rows, column: str) -> list[Any]:
    """The values of a column in the order of the rows; null is below all values, and of equal rows the smaller value is first."""
    filled = [row for row in rows if row[column] is not None]
    filled.sort(key=lambda row: (row["ts"], row["k"] is None, -(row["k"] or 0), row[column]))
    return [row[column] for row in filled]


def values(rows: Rows, column: str) -> list[Any]:
    return [row[column] for row in rows if row[column] is not None]


def ranked(rows: Rows, column: str) -> list[Any]:
    """NaN is above all."""
    return sorted(values(rows, column), key=lambda v: (isinstance(v, float) and math.isnan(v), v))


def paid(rows: Rows) -> Rows:
    return [row for row in rows if row["paid"]]


def positive(rows: Rows) -> Rows:
    return [row for row in rows if row["n"] is not None and row["n"] > 0]


def first(found: list[Any]) -> Any:
    return found[0] if found else None


def last(found: list[Any]) -> Any:
    return found[-1] if found else None


def total(found: list[Any]) -> Any:
    return sum(found[1:], found[0]) if found else None


def mean(found: list[Any]) -> Any:
    return total(found) / len(found) if found else None


def variance(found: list[Any]) -> Any:
    return sum((v - mean(found)) ** 2 for v in found) / (len(found) - 1) if len(found) > 1 else None


def part(found: list[Any], share: float) -> Any:
    return float(found[max(math.ceil(Fraction(repr(share)) * len(found)) - 1, 0)]) if found else None


def most_frequent(found: list[Any]) -> list[Any]:
    counts = Counter(found)
    return sorted(counts, key=lambda name: (-counts[name], name))[:2]


def with_letters(letters: set[str], name: str) -> set[str]:
    return letters | set(name)


def sorted_letters(letters: set[str]) -> str:
    return "".join(sorted(letters))


LETTERS = sf.aggregate(
    "name", create=set, add=with_letters, merge=set.union, result=sorted_letters, state=set[str], output=str
)
Each = tuple[str, Any, Callable[[Rows], Any]]
"""The type, the aggregate, and what it is."""
COMBINED: dict[str, Each] = {
    "rows": ("long", sf.count(), len),
    "names": ("long", sf.count("name"), lambda rows: len(values(rows, "name"))),
    "bought": ("long", sf.count(where="paid"), lambda rows: len(paid(rows))),
    "total": ("double", sf.sum("amount"), lambda rows: total(values(rows, "amount"))),
    "whole": ("long", sf.sum("n"), lambda rows: total(values(rows, "n"))),
    "narrow": ("long", sf.sum("k", where="paid"), lambda rows: total(values(paid(rows), "k"))),
    "worth": ("decimal(20,2)", sf.sum("price"), lambda rows: total(values(rows, "price"))),
    "average": ("double", sf.mean("amount"), lambda rows: mean(values(rows, "amount"))),
    "typical": ("double", sf.mean("k"), lambda rows: mean(values(rows, "k"))),
    "low": ("double", sf.min("amount"), lambda rows: first(ranked(rows, "amount"))),
    "high": ("double", sf.max("amount"), lambda rows: last(ranked(rows, "amount"))),
    "cheapest": ("decimal(10,2)", sf.min("price"), lambda rows: first(ranked(rows, "price"))),
    "newest": ("date", sf.max("day"), lambda rows: last(ranked(rows, "day"))),
    "all_paid": ("boolean", sf.min("paid"), lambda rows: first(ranked(rows, "paid"))),
}
SINGLE: dict[str, Each] = {
    "longest": ("string", sf.max("name"), lambda rows: last(ranked(rows, "name"))),
    "spread": ("double", sf.variance("k"), lambda rows: variance(values(rows, "k"))),
    "opened": ("string", sf.first("name", where="n > 0"), lambda rows: first(in_order(positive(rows), "name"))),
    "closed": ("decimal(10,2)", sf.last("price"), lambda rows: last(in_order(rows, "price"))),
    "median": ("double", sf.quantile("n", 0.5, accuracy=0), lambda rows: part(ranked(rows, "n"), 0.5)),
    "dear": ("double", sf.quantile("price", 0.9, accuracy=0), lambda rows: part(ranked(rows, "price"), 0.9)),
    "often": ("array<string>", sf.top_values("name", 2), lambda rows: most_frequent(values(rows, "name"))),
    "listed": ("array<string>", sf.collect("name", 3), lambda rows: in_order(rows, "name")[:3]),
    "moments": (
        "array<timestamp>", sf.collect("sent", 2, where="n > 0"), lambda rows: in_order(positive(rows), "sent")[:2]
    ),
    "letters": ("string", LETTERS, lambda rows: sorted_letters({each for name in values(rows, "name") for each in name})),
}  # fmt: skip
DISTINCT: dict[str, Each] = {
    "all_names": ("long", sf.count_distinct("name"), lambda rows: len(set(values(rows, "name")))),
    "paid_names": ("long", sf.count_distinct("name", where="paid"), lambda rows: len(set(values(paid(rows), "name")))),
    "days": ("long", sf.count_distinct("day"), lambda rows: len(set(values(rows, "day")))),
    "prices": ("long", sf.count_distinct("price", where="n > 0"), lambda rows: len(set(values(positive(rows), "price")))),
}  # fmt: skip
AGGREGATES = COMBINED | SINGLE | DISTINCT


class Listed(sf.WindowProcess[Any, Any, Any]):
    """Code per window: the rows in their order, in one text."""

    def process(self, key: Any, window: sf.WindowBounds, rows: list[Any], ctx: sf.ColumnarContext) -> Iterator[Any]:  # fmt: skip
        said = text_of([{name: getattr(row, name) for name in COLUMNS} for row in rows])
        yield {"user": key[0], "shop": key[1], "window_start": window.start, "window_end": window.end, "said": said}  # fmt: skip


def text_of(rows: Rows) -> str:
    """Rows at the same place have some order."""
    held = sorted(repr([row[name] for name in ("k", "name", "day", "paid", "price")]) for row in rows)
    return repr(
        [[row["ts"] if isinstance(row["ts"], int) else plain(row["ts"]), row["k"]] for row in rows]
    ) + "; ".join(held)


# ---- cases ----

WINDOWS = {
    "running": None,
    "tumbling": sf.tumbling("10 seconds"),
    "shifted": sf.tumbling("10 seconds", offset="3 seconds"),
    "hopping": sf.hopping("20 seconds", "5 seconds"),
    "uneven": sf.hopping("10 seconds", "4 seconds", offset="1 second"),
    "cumulative": sf.cumulative("20 seconds", "5 seconds", offset="7 seconds"),
    "session": sf.session("4 seconds"),
    "count": sf.count_window(3),
    "all": sf.count_window(1000),
}


@dataclass(frozen=True)
class Case:
    window: str
    releases: list[list[str]] = field(default_factory=lambda: [["rows", "total"]])
    """Per release the aggregates; without any, code per window."""
    emit: str = "final"
    lateness: int = 0
    late: str = "lenient"
    combines: bool = False
    waited: bool = False
    held_back: int = 0
    block: int = 100_000


@st.composite
def cases(draw: Any, *kinds: str) -> Case:
    window = draw(st.sampled_from(kinds))
    grows = window in ("session", "count", "all")
    combines = not grows and draw(st.booleans())
    if window != "running" and not combines and draw(st.integers(0, 4)) == 0:
        releases: list[list[str]] = [[]]
        window = "all" if window == "count" else window
    else:
        names = list(COMBINED if combines else COMBINED | SINGLE if grows else AGGREGATES)
        new = st.lists(st.sampled_from(names), min_size=1, max_size=8, unique=True)
        releases, rest = [], draw(new)
        for _ in range(draw(st.integers(1, 3))):
            # What was taken out is not taken in again: its values are gone.
            kept = [name for name in releases[-1] if draw(st.booleans())] if releases else []
            more, rest = rest[: (count := draw(st.integers(1, 5)))], rest[count:]
            releases += [draw(st.permutations(kept + more))] if kept + more else []
    if any(name in DISTINCT for names in releases for name in names) and window in (
        "hopping",
        "uneven",
        "cumulative",
    ):
        releases = releases[:1]  # with emit="final" the first exact count has other states, and is refused
    emits = ["final"] if grows or not releases[0] else ["final", "changes", "on_time"]
    behind = window != "running" and draw(st.integers(0, 4)) == 0
    return Case(
        window, releases, draw(st.sampled_from(emits)), draw(st.sampled_from([0, 0, 3, 7])) * SECOND,
        draw(st.sampled_from(["lenient", "strict"])) if window not in ("count", "all") else "lenient", combines,
        behind, draw(st.sampled_from([0, 3])) * SECOND if behind else 0,
        draw(st.sampled_from([100_000, 1, 2, 3])),
    )  # fmt: skip


def node_of(case: Case, release: int) -> KeyedNode:
    names = case.releases[release]

    @sf.pipeline("made")
    def made(flow: sf.Flow) -> None:
        rows = flow.source("in", sf.delta("/in"), ROWS, event_time="ts", watermark="0 seconds")
        keyed: Any = rows.key_by("user", "shop", order_by=ORDER)
        window, output = WINDOWS[case.window], "user long, shop string"
        output += "".join(f", {name} {AGGREGATES[name][0]}" for name in names)
        aggregates = {name: AGGREGATES[name][1] for name in names}
        if window is None:
            keyed.aggregate("op", output, **aggregates)
            return
        keyed = keyed.window(window, lateness=timedelta(microseconds=case.lateness), late=case.late)
        if names:
            keyed.aggregate("op", f"{output}, {BOUNDS}", emit=case.emit, **aggregates)
        else:
            keyed.process("op", Listed, output=f"{output}, {BOUNDS}, said string")

    return made.build().operators[0]


# ---- the model ----


def windows_of(window: Any, at: int) -> list[tuple[int, int]]:
    """The windows that a time is in, by definition: every window that there can be is looked at."""
    match window:
        case Sliding(size, every, offset):
            begin = (at - size - offset) // every
            spans = [(n * every + offset, n * every + offset + size) for n in range(begin, begin + size // every + 3)]  # fmt: skip
        case Cumulative(size, every, offset):
            start = (at - offset) // size * size + offset
            spans = [(start, start + length) for length in range(every, size + 1, every)]
    return [(start, end) for start, end in spans if start <= at < end]


@dataclass
class Windows:
    """The rows of each window of each key."""

    case: Case
    node: KeyedNode
    number: int = 0
    """Of the batch."""
    since: dict[str, int] = field(default_factory=dict)
    """The batch with which each aggregate of this release began."""
    code: int = 0
    held: dict[Any, Rows] = field(default_factory=lambda: defaultdict(list))
    """By key and bounds: the rows of a window that is not closed."""
    out: set[Any] = field(default_factory=set)
    """The windows among them that have come out."""
    waiting: Rows = field(default_factory=list)
    """Those that no window of a count has yet."""
    before: int | None = None
    said: Said = field(default_factory=Said)

    def release(self) -> KeyedNode | None:
        self.code += 1
        if self.code >= len(self.case.releases):
            return None
        was, now = self.case.releases[self.code - 1 : self.code + 1]
        self.since = {name: self.since.get(name, 0) if name in was else self.number for name in now}
        if self.case.window in ("count", "all"):
            assert isinstance(self.node.columnar, ReadyOperator)
            lost = dict.fromkeys(set(COLUMNS) - set(self.node.columnar.reads))
            self.waiting = [{**row, **lost} for row in self.waiting]
        self.node = node_of(self.case, self.code)
        return self.node

    def batch(self, pieces: list[list[Rows]], mark: int | None) -> Said:
        case, self.said = self.case, Said()
        of_rows = behind(self.before, case) if case.waited else behind(mark, case)
        self.before, window = mark, WINDOWS[case.window]
        mark = behind(mark, case)
        touched: set[Any] = set()
        for [piece] in pieces:
            rows = [{**row, "batch": self.number} for row in piece]
            if window is None:
                for row in rows:
                    self.held[row["user"], row["shop"], None, None].append(row)
                touched |= {(row["user"], row["shop"], None, None) for row in rows}
            elif isinstance(window, Session):
                self._close(of_rows)
                self._into_sessions(rows, of_rows, window.gap)
            elif isinstance(window, Counted):
                self._wait(rows, of_rows)
            else:
                touched |= self._into_windows(rows, of_rows, window)
        if isinstance(window, Counted):
            self._fill(mark, window.n)
        elif window is None or case.emit == "changes":
            self._put_out(touched)
        elif case.emit == "on_time" and mark is not None:
            ended = {each for each in self.held if each[3] <= mark}
            self._put_out(ended - self.out | ended & touched)
            self.out |= ended
        if window is not None and not isinstance(window, Counted):
            self._close(mark)
        self.number += 1
        releases = case.releases[: self.code + 1]
        ended = {name for names in releases for name in names if name in DISTINCT} - set(releases[-1])
        # The values that a count has known stay, where a release leaves it out while its windows are open.
        if mark == END and not self.held and not self.waiting and not ended:
            self.said.kept = 0
        assert isinstance(self.node.columnar, ReadyOperator)
        replaced = self.node.columnar.changes or ()
        # An upsert by these columns keeps one row of those that are alike in them.
        found = Counter(tuple(row[name] for name in replaced) for row in self.said.rows)
        assert not replaced or set(found.values()) <= {1}, f"{replaced} do not tell the rows of a batch apart"
        return self.said

    def _late(self, row: Row) -> None:
        self.said.late.setdefault("late", []).append({name: row[name] for name in COLUMNS})

    def _closed(self, mark: int | None, end: int) -> bool:
        return mark is not None and end + self.case.lateness <= mark

    def _into_windows(self, rows: Rows, mark: int | None, window: Any) -> set[Any]:
        touched = set()
        for row in rows:
            spans = windows_of(window, row["ts"]) if row["ts"] is not None else []
            opened = [span for span in spans if not self._closed(mark, span[1])]
            if not opened or (self.case.late == "strict" and len(opened) < len(spans)):
                self._late(row)
                continue
            self.said.partly_late += len(opened) < len(spans)
            for span in opened:
                self.held[row["user"], row["shop"], *span].append(row)
                touched.add((row["user"], row["shop"], *span))
        return touched

    def _into_sessions(self, rows: Rows, mark: int | None, gap: int) -> None:
        """A row is late when the session that it would make, with the others of its table and those that are open, is closed. One
        that is ahead of all open ones, and behind what is closed, may have been in one that is out."""
        by_key: dict[Any, Rows] = defaultdict(list)
        for row in rows:
            if row["ts"] is None:
                self._late(row)
            else:
                by_key[row["user"], row["shop"]].append(row)
        for key, mine in by_key.items():
            old = [each for each in self.held if each[:2] == key]
            first = min((each[2] for each in old), default=END)
            partly = [row for row in mine if self._closed(mark, row["ts"]) and row["ts"] < first]
            if self.case.late == "strict":
                mine = [row for row in mine if row not in partly]
                for row in partly:
                    self._late(row)
                partly = []
            known = [row for each in old for row in self.held.pop(each)]
            session: Rows = []
            for row in [*sorted(known + mine, key=lambda row: int(row["ts"])), None]:
                if session and (row is None or row["ts"] - session[-1]["ts"] > gap):
                    self._keep(key, session, session[-1]["ts"] + gap, mark, partly)
                    session = []
                if row is not None:
                    session = [*session, row]

    def _keep(self, key: Any, session: Rows, end: int, mark: int | None, partly: Rows) -> None:
        if self._closed(mark, end):
            for row in session:
                self._late(row)
            return
        self.held[*key, session[0]["ts"], end] = session
        self.said.partly_late += sum(any(row is each for each in partly) for row in session)

    def _wait(self, rows: Rows, mark: int | None) -> None:
        for row in rows:
            if row["ts"] is None or self._closed(mark, row["ts"]):
                self._late(row)
            else:
                self.waiting.append(row)

    def _fill(self, mark: int | None, n: int) -> None:
        """Rows that the watermark has reached, into windows of so many. The end of all closes what is not full."""
        due = sorted((row for row in self.waiting if self._closed(mark, row["ts"])), key=self._by_content)
        self.waiting = [row for row in self.waiting if not self._closed(mark, row["ts"])]
        for row in due:
            key = row["user"], row["shop"], None, None
            self.held[key].append({**row, "batch": self.number})
            if len(self.held[key]) == n:
                self._come_out_counted(key)
        for key in [each for each in self.held if mark == END]:
            self._come_out_counted(key)

    def _by_content(self, row: Row) -> Any:
        """Of rows of one instant the order is what the operator keeps of them."""
        assert isinstance(self.node.columnar, ReadyOperator)
        kept = [name for name in self.node.columnar.reads if name != "ts"]
        return row["ts"], *(place(row[name]) for name in kept)

    def _come_out_counted(self, key: Any) -> None:
        rows = self.held.pop(key)
        bounds = min(row["ts"] for row in rows), max(row["ts"] for row in rows)
        self.held[*key[:2], *bounds] = rows
        self._put_out({(*key[:2], *bounds)})
        del self.held[*key[:2], *bounds]

    def _put_out(self, those: set[Any]) -> None:
        for each in those:
            row = {"user": each[0], "shop": each[1]}
            if self.case.window != "running":
                row |= {"window_start": each[2], "window_end": each[3]}
            names = self.case.releases[min(self.code, len(self.case.releases) - 1)]
            rows = self.held[each]
            for name in names:
                row[name] = AGGREGATES[name][2]([r for r in rows if r["batch"] >= self.since.get(name, 0)])
            if not names:
                row["said"] = text_of(
                    sorted(rows, key=lambda row: (row["ts"], row["k"] is None, -(row["k"] or 0)))
                )
            self.said.rows.append(row)

    def _close(self, mark: int | None) -> None:
        closed = {each for each in self.held if self._closed(mark, each[3])}
        if self.case.emit == "final":
            self._put_out(closed)
        self.out -= closed
        for each in closed:
            del self.held[each]


def behind(mark: int | None, case: Case) -> int | None:
    return mark if mark is None or mark == END else mark - case.held_back


def combined_at_times(driven: Driven, rows: Rows) -> pa.Table | None:
    """Every other batch comes combined."""
    return combined(driven.declared, pa.Table.from_pylist(rows, SCHEMA)) if driven.slot % 2 and rows else None  # type: ignore[arg-type]


def check(case: Case, play: Play) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "BLOCK", case.block)
        patch.setattr(window_code, "READ_AT_ONCE", 1 if case.block == 1 else 4 << 20)
        windows = Windows(case, node_of(case, 0))
        driven = Driven.of(
            windows.node, play.shards, sides=not case.combines, waited=case.waited, held_back=case.held_back,
            backend=play.backend,
        )  # fmt: skip
        as_given = combined_at_times if case.combines else lambda driven, rows: None
        if case.window == "running":
            play = replace(play, turns=[replace(turn, inputs=[[{**row, "ts": row["ts"] or 0} for row in turn.inputs[0]]]) for turn in play.turns])  # fmt: skip
        played(play, driven, windows, [SCHEMA], as_given, reads_sides=not case.combines)


@pytest.mark.slow
@model(30, 2000)
@given(case=cases("running"), play=plays(ROW, releases=True))
def test_running_aggregates_are_those_of_all_rows(case: Case, play: Play) -> None:
    check(case, play)


@pytest.mark.slow
@pytest.mark.parametrize("emit", ["final", "changes", "on_time"])
@pytest.mark.parametrize("late", ["lenient", "strict"])
@pytest.mark.parametrize("window", ["tumbling", "shifted", "hopping", "uneven", "cumulative"])
def test_windows_over_many_late_rows(window: str, emit: str, late: str) -> None:
    check(Case(window, [["rows", "total", "closed"]], emit, 3 * SECOND, late), dense(f"{window}{emit}{late}"))


@pytest.mark.parametrize("late", ["lenient", "strict"])
@pytest.mark.parametrize("seed", range(5))
def test_sessions_over_many_late_rows(seed: int, late: str) -> None:
    check(
        Case("session", [["rows", "total", "closed"]], "final", seed % 2 * SECOND, late),
        dense(f"{seed}{late}"),
    )


@pytest.mark.parametrize("block", [2, 100_000])
def test_windows_of_a_count_over_many_late_rows(block: int) -> None:
    """What is due comes in tables that may end amid the rows of an instant."""
    check(Case("count", [["rows", "total", "median"]], block=block), dense(f"count{block}"))


@pytest.mark.slow
@model(35, 2000)
@given(case=cases("tumbling", "shifted", "hopping", "uneven", "cumulative"), play=plays(ROW, releases=True))
def test_windows_hold_the_rows_that_came_before_they_closed(case: Case, play: Play) -> None:
    check(case, play)


@pytest.mark.slow
@model(30, 2000)
@given(case=cases("session"), play=plays(ROW, releases=True))
def test_sessions_are_those_of_all_rows_together(case: Case, play: Play) -> None:
    check(case, play)


@pytest.mark.slow
@model(20, 1000)
@given(case=cases("count", "all"), play=plays(ROW, releases=True))
def test_windows_of_a_count_have_that_many_rows_in_the_order_of_time(case: Case, play: Play) -> None:
    check(case, play)
