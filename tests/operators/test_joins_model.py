"""Joins put out what a look at every two rows that have come so far gives, however these come.

Joins of times within bounds, of windows and of sessions, as-of and of the latest version; each `how`, further conditions, lateness,
strictness, and releases that keep fewer, more and other columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from itertools import product
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stateflow as sf
from stateflow.operators.joins import pairs
from stateflow.pipelines.graph import KeyedNode
from stateflow.pipelines.ready.joins import HOWS, JoinOperator
from tests.operators.plays import Play, Row, Rows, Said, Turn, model, played, plays, rows_of, times
from tests.operators.ready.driving import END, SECOND, Driven
from tests.operators.test_windows_model import windows_of

INSTANT = pa.timestamp("us", "UTC")
# fmt: off
COLUMNS: list[dict[str, tuple[str, Any]]] = [
    {
        "k": ("string", pa.string()), "site": ("int", pa.int32()), "n": ("long", pa.int64()), "b": ("long", pa.int64()),
        "t": ("string", pa.string()), "price": ("decimal(9,2)", pa.decimal128(9, 2)), "ts": ("timestamp", INSTANT),
    },
    {
        "k": ("string", pa.string()), "place": ("int", pa.int32()), "m": ("long", pa.int64()), "b": ("double", pa.float64()),
        "d": ("decimal(9,2)", pa.decimal128(9, 2)), "new": ("boolean", pa.bool_()), "day": ("date", pa.date32()),
        "score": ("float", pa.float32()), "page": ("string", pa.string()), "raw": ("binary", pa.binary()),
        "ts": ("timestamp", INSTANT),
    },
]
KEYS = (("k", "site"), ("k", "place"))
VALUES: list[dict[str, tuple[Any, ...]]] = [
    {
        "k": ("x", "x", "x", "y", "", None), "site": (1, 1, 1, 1, 2, None), "n": (None, 1, 2, 3), "b": (None, 0, 1, 2, 3),
        "t": (None, "", "a", "ab", "long" * 9), "price": (None, Decimal("1.50"), Decimal("-20.25")),
    },
    {
        "k": ("x", "x", "x", "y", "", None), "place": (1, 1, 1, 1, 2, None), "m": (None, 1, 2, 3, 4), "b": (None, 0.0, 1.0, 2.0, 2.5),
        "d": (None, Decimal(0), Decimal(1), Decimal(2)), "new": (None, True, False), "day": (None, date(1969, 7, 20), date(2026, 1, 2)),
        "score": (None, 0.5, -3.25), "page": (None, "", "äö"), "raw": (None, b"", b"\x00\xff"),
    },
]
# fmt: on
ROWS = [", ".join(f"{name} {kind}" for name, (kind, _) in each.items()) for each in COLUMNS]
SCHEMAS = [pa.schema([(name, kind) for name, (_, kind) in each.items()]) for each in COLUMNS]
OPTIONAL = ["t", "price", "d", "new", "day", "score", "page", "raw"]
"""What comes out beside what tells the rows apart."""
WINDOWS = {
    "tumbling": sf.tumbling("10 seconds"),
    "hopping": sf.hopping("9 seconds", "3 seconds"),
    "short": sf.tumbling("1 second"),
    "session": sf.session("3 seconds"),
}


def row_of(values: dict[str, tuple[Any, ...]]) -> Any:
    columns = {name: st.sampled_from(some) for name, some in values.items()}
    return rows_of(columns | {"ts": st.one_of(*[times] * 9, st.none())})


LEFT, RIGHT = map(row_of, VALUES)


def known(*values: Any) -> bool:
    return None not in values


Condition = Callable[[Row, Row], bool]
CONDITIONS: dict[str, Condition] = {
    "": lambda left, right: True,
    "left_b < right_b": lambda left, right: known(left["b"], right["b"]) and left["b"] < right["b"],
    "left_b <> right_b OR t IS NULL": lambda left, right: (
        left["t"] is None or (known(left["b"], right["b"]) and left["b"] != right["b"])
    ),
    "NOT (left_b = right_b)": lambda left, right: known(left["b"], right["b"]) and left["b"] != right["b"],
    "left_k = 'x' OR left_b >= right_b": lambda left, right: (
        left["k"] == "x" or (known(left["b"], right["b"]) and left["b"] >= right["b"])
    ),
    "left_ts < right_ts AND d > 0.5": lambda left, right: (
        known(left["ts"], right["ts"], right["d"]) and left["ts"] < right["ts"] and right["d"] > 0.5
    ),
    "t LIKE 'a%'": lambda left, right: known(left["t"]) and left["t"].startswith("a"),
    "right_b IN (1, 2, 3)": lambda left, right: right["b"] in (1, 2, 3),
    "right_b IS NULL": lambda left, right: right["b"] is None,
    "left_b + d > 2 AND left_k = right_k": lambda left, right: (
        known(left["b"], right["d"]) and left["b"] + right["d"] > 2
    ),
    "1 = 2": lambda left, right: False,
}


@dataclass(frozen=True)
class Case:
    kind: str
    """interval, asof, latest, or one of the windows."""
    how: str = "inner"
    where: str = ""
    releases: list[list[str]] = field(default_factory=lambda: [OPTIONAL])
    """Per release, what of OPTIONAL comes out."""
    within: tuple[int, int] = (0, 0)
    """In seconds."""
    keep: int | None = None
    wait: bool = True
    order_by: tuple[str, ...] = ()
    timed: bool = True
    """Of a latest join: the right rows have an event time."""
    lateness: int = 0
    late: str = "lenient"
    most: int = 500_000
    """How many pairs are looked at in one go."""

    @property
    def is_of_left_alone(self) -> bool:
        return self.how in ("semi", "anti")


@st.composite
def cases(draw: Any, *kinds: str) -> Case:
    kind = draw(st.sampled_from(kinds))
    how = draw(st.sampled_from(("left", "inner") if kind in ("asof", "latest") else HOWS))
    releases, rest = list[list[str]](), draw(st.permutations(OPTIONAL))
    for _ in range(draw(st.integers(1, 3))):
        # What was taken out is not taken in again: blocks that nobody has touched since still have it.
        kept = [name for name in releases[-1] if draw(st.booleans())] if releases else []
        more, rest = rest[: (count := draw(st.integers(0, 4)))], rest[count:]
        releases.append(draw(st.permutations(kept + list(more))))
    least = draw(st.sampled_from([-600, -8, -3, 0, 2]))
    by = st.sampled_from([(), (), ("b",), ("-b",), ("new", "-m")])
    return Case(
        kind, how, draw(st.sampled_from(["", *CONDITIONS])), releases,
        (least, least + draw(st.sampled_from([0, 1, 3, 9, 700]))), draw(st.sampled_from([None, 0, 3, 15])),
        draw(st.sampled_from([True, True, False])), draw(by) if kind in ("asof", "latest") else (), draw(st.booleans()),
        draw(st.sampled_from([0, 0, 3])) * SECOND, draw(st.sampled_from(["lenient", "strict"])),
        draw(st.sampled_from([500_000, 1, 7])),
    )  # fmt: skip


def node_of(case: Case, release: int) -> KeyedNode:
    types = {name: kind for each in COLUMNS for name, (kind, _) in each.items()}
    mine, both = [("k", "k"), ("site", "site"), ("n", "n")], [("right_place", "place"), ("m", "m")]
    extra = [(name, name) for name in case.releases[release]]
    named = [*mine, *([] if case.is_of_left_alone else both)]
    named += [each for each in extra if not case.is_of_left_alone or each[0] in COLUMNS[0]]
    instants = ["left_ts"] if case.is_of_left_alone else ["left_ts", "right_ts"]
    if case.kind == "latest" and not case.timed:
        instants = ["left_ts"]
    instants += ["window_start", "window_end"] if case.kind in WINDOWS else []
    output = ", ".join(
        [f"{name} {types[of]}" for name, of in named] + [f"{name} timestamp" for name in instants]
    )

    @sf.pipeline("made")
    def made(flow: sf.Flow) -> None:
        timed: dict[str, str] = {"event_time": "ts", "watermark": "0 seconds"}
        lefts = flow.source("lefts", sf.delta("/l"), ROWS[0], **timed).key_by(*KEYS[0])
        if case.kind == "latest" and not case.timed:
            rights = flow.source("rights", sf.delta("/r"), ROWS[1]).key_by(*KEYS[1], order_by=case.order_by)
        else:
            rights = flow.source("rights", sf.delta("/r"), ROWS[1], **timed).key_by(
                *KEYS[1], order_by=case.order_by
            )
        options: dict[str, Any] = {"how": case.how, "where": case.where}
        match case.kind:
            case "interval":
                within = timedelta(seconds=case.within[0]), timedelta(seconds=case.within[1])
                lefts.join("op", rights, output, within=within, **options)
            case "asof":
                keep = None if case.keep is None else timedelta(seconds=case.keep)
                lefts.join_asof("op", rights, output, keep=keep, wait=case.wait, **options)
            case "latest":
                lefts.join_latest("op", rights, output, **options)
            case kind:
                lateness = timedelta(microseconds=case.lateness)
                lefts.window(WINDOWS[kind], lateness=lateness, late=case.late).join(
                    "op", rights, output, **options
                )

    return made.build().operators[0]


# ---- the model ----


@dataclass
class Held:
    """A row of one input, and whether it has had a partner."""

    row: Row
    matched: bool = False


@dataclass
class Window:
    sides: tuple[Rows, Rows] = field(default_factory=lambda: ([], []))


def rank(value: Any) -> tuple[Any, ...]:
    """Null is below all values."""
    return value is not None, 0 if value is None else value


def rank_down(value: Any) -> tuple[Any, ...]:
    return value is None, 0 if value is None else -value


@dataclass
class Joins:
    case: Case
    code: int = 0
    columns: tuple[str, ...] = ()
    """Of what comes out."""
    kept: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """Per input, what of a row is kept beside its key and its time."""
    waiting: tuple[list[Held], list[Held]] = field(default_factory=lambda: ([], []))
    windows: dict[Any, Window] = field(default_factory=lambda: defaultdict(Window))
    """By key and bounds."""
    versions: dict[Any, dict[Any, Row]] = field(default_factory=lambda: defaultdict(dict))
    """By key and time."""
    said: Said = field(default_factory=Said)

    def begin(self) -> KeyedNode:
        node = node_of(self.case, self.code)
        assert isinstance(node.columnar, JoinOperator)
        sides = node.columnar.left, node.columnar.right
        left, right = (tuple(each.name for each in side.kept) for side in sides)
        self.kept, self.columns = (left, right), node.columnar.output.names
        return node

    def release(self) -> KeyedNode | None:
        """A row that waits goes on with what both releases keep."""
        self.code += 1
        if self.code >= len(self.case.releases):
            return None
        before, node = self.kept, self.begin()
        for number, held in enumerate(self.waiting):
            for each in held:
                each.row = self._stored(each.row, number, before)
        for window in self.windows.values():
            for number, rows in enumerate(window.sides):
                rows[:] = [self._stored(row, number, before) for row in rows]
        for versions in self.versions.values():
            for at, row in versions.items():
                versions[at] = self._stored(row, 1, before)
        return node

    def _stored(self, row: Row, number: int, before: tuple[tuple[str, ...], tuple[str, ...]]) -> Row:
        names = {*KEYS[number], "ts", *set(before[number]) & set(self.kept[number])}
        return {name: row[name] if name in names else None for name in COLUMNS[number]}

    def batch(self, pieces: list[list[Rows]], mark: int | None) -> Said:
        self.said = Said()
        for lefts, rights in pieces:
            match self.case.kind:
                case "interval":
                    self._interval(self._in_time(lefts, rights, mark))
                case "asof":
                    self._asof(self._in_time(lefts, rights, mark), mark)
                case "latest":
                    self._latest(lefts, rights)
                case "session":
                    self._close(mark)
                    self._into_sessions(lefts, rights, mark)
                case _:
                    self._into_windows(lefts, rights, mark)
        self._leave(mark)
        self._close(mark)
        if mark == END:
            # What is not needed any more is gone. Without `keep` each key's newest version stays.
            stays = self.case.kind == "latest" or (self.case.kind == "asof" and self.case.keep is None)
            self.said.kept = len(self.versions) if stays else 0
        return self.said

    def _late(self, number: int, row: Row) -> None:
        self.said.late.setdefault(("late_left", "late_right")[number], []).append(row)

    def _in_time(self, lefts: Rows, rights: Rows, mark: int | None) -> tuple[Rows, Rows]:
        """The rows that are not late; those without a key come out alone at once."""
        came: tuple[Rows, Rows] = ([], [])
        for number, rows in enumerate((lefts, rights)):
            for row in rows:
                if row["ts"] is None or (mark is not None and row["ts"] <= mark):
                    self._late(number, row)
                elif key_of(row, number) is None:
                    self._alone(number, row)
                else:
                    came[number].append(row)
        return came

    # What comes out

    def _out(self, left: Row | None, right: Row | None, bounds: tuple[int, int] = (0, 0)) -> None:
        values: Row = {} if left is None else {**left, "left_ts": left["ts"]}
        if right is not None:
            values |= {name: value for name, value in right.items() if name != "k" or left is None}
            values |= {"right_ts": right["ts"], "right_place": right["place"]}
        values |= {"window_start": bounds[0], "window_end": bounds[1]}
        self.said.rows.append({name: values.get(name) for name in self.columns})

    def _alone(self, number: int, row: Row, bounds: tuple[int, int] = (0, 0)) -> None:
        if self.case.how in (("left", "full", "anti"), ("right", "full"))[number]:
            self._out(*((row, None) if number == 0 else (None, row)), bounds)

    def _fulfils(self, left: Row, right: Row) -> bool:
        return CONDITIONS[self.case.where](left, right)

    # Within bounds

    def _interval(self, came: tuple[Rows, Rows]) -> None:
        """A pair comes out with its second row."""
        least, most = (bound * SECOND for bound in self.case.within)
        new = [[Held(row) for row in rows] for rows in came]
        fresh = {id(each) for held in new for each in held}
        for number, held in enumerate(new):
            self.waiting[number].extend(held)
        for left, right in product(*self.waiting):
            if id(left) not in fresh and id(right) not in fresh:
                continue
            if key_of(left.row, 0) != key_of(right.row, 1) or not self._fulfils(left.row, right.row):
                continue
            if least <= right.row["ts"] - left.row["ts"] <= most:
                if not self.case.is_of_left_alone or (self.case.how == "semi" and not left.matched):
                    self._out(left.row, None if self.case.is_of_left_alone else right.row)
                left.matched = right.matched = True

    def _leave(self, mark: int | None) -> None:
        """Rows that can have no further partner, or whose version is certain."""
        if mark is None:
            return
        least, most = (bound * SECOND for bound in self.case.within)
        for number, held in enumerate(self.waiting):
            for each in list(held):
                if self.case.kind == "asof":
                    due = each.row["ts"]
                else:
                    due = each.row["ts"] + (most if number == 0 else -least)
                if due > mark:
                    continue
                held.remove(each)
                if self.case.kind == "asof":
                    self._with(each.row, self._valid(each.row))
                elif not each.matched:
                    self._alone(number, each.row)

    # Versions

    def _with(self, left: Row, version: Row | None) -> None:
        if version is not None and self._fulfils(left, version):
            self._out(left, version)
        elif self.case.how == "left":
            self._out(left, None)

    def _order(self, row: Row) -> Any:
        """Of two rows the one with the greater order counts."""
        return [
            rank_down(row[by[1:]]) if by.startswith("-") else rank(row[by]) for by in self.case.order_by
        ], [rank(row[name]) for name in self.kept[1]]

    def _asof(self, came: tuple[Rows, Rows], mark: int | None) -> None:
        for row in came[1]:
            of_key = self.versions[key_of(row, 1)]
            other = of_key.get(row["ts"])
            if other is None or self._order(row) > self._order(other):
                of_key[row["ts"]] = row
        for row in came[0]:
            if self.case.wait:
                self.waiting[0].append(Held(row))
            else:
                self._with(row, self._valid(row))

    def _valid(self, row: Row) -> Row | None:
        of_key = self.versions.get(key_of(row, 0), {})
        at = max((at for at in of_key if at <= row["ts"]), default=None)
        keep = self.case.keep
        return None if at is None or (keep is not None and row["ts"] - at > keep * SECOND) else of_key[at]

    def _latest(self, lefts: Rows, rights: Rows) -> None:
        """What came before a table of rows is older than these, unless an order or a time says otherwise."""
        for number, row in [*((0, row) for row in lefts), *((1, row) for row in rights)]:
            if key_of(row, number) is None:
                self._alone(number, row)
        by_key: dict[Any, Rows] = defaultdict(list)
        for row in rights:
            by_key[key_of(row, 1)].append(row)
        by_key.pop(None, None)
        for key, rows in by_key.items():
            old = list(self.versions[key].values())
            best = max([*((0, row) for row in old), *((1, row) for row in rows)], key=self._newness)
            self.versions[key][0] = best[1]
        for row in lefts:
            if (key := key_of(row, 0)) is not None:
                self._with(row, self.versions[key][0] if key in self.versions else None)

    def _newness(self, each: tuple[int, Row]) -> Any:
        number, row = each
        order, content = self._order(row)
        return order, rank(row["ts"]) if self.case.timed else number, content

    # Windows

    def _closed(self, mark: int | None, end: int) -> bool:
        return mark is not None and end + self.case.lateness <= mark

    def _into_windows(self, lefts: Rows, rights: Rows, mark: int | None) -> None:
        for number, row in [*((0, row) for row in lefts), *((1, row) for row in rights)]:
            spans = [] if row["ts"] is None else windows_of(WINDOWS[self.case.kind], row["ts"])
            opened = [span for span in spans if not self._closed(mark, span[1])]
            if not opened or (self.case.late == "strict" and len(opened) < len(spans)):
                self._late(number, row)
                continue
            self.said.partly_late += len(opened) < len(spans)
            for span in opened:
                if (key := key_of(row, number)) is None:
                    self._alone(number, row, span)
                else:
                    self.windows[key, *span].sides[number].append(row)

    def _into_sessions(self, lefts: Rows, rights: Rows, mark: int | None) -> None:
        """A row is late when the session that it would make, with the others of its table and those that are open, is closed. One
        that is ahead of all open ones, and behind what is closed, may have been in one that is out."""
        gap = WINDOWS["session"].gap  # type: ignore[union-attr]
        by_key: dict[Any, list[tuple[int, Row]]] = defaultdict(list)
        for number, row in [*((0, row) for row in lefts), *((1, row) for row in rights)]:
            key = key_of(row, number)
            if row["ts"] is None or (key is None and self._closed(mark, row["ts"] + gap)):
                self._late(number, row)
            elif key is None:
                self._alone(number, row, (row["ts"], row["ts"] + gap))
            else:
                by_key[key].append((number, row))
        for key, mine in by_key.items():
            old = [each for each in self.windows if each[0] == key]
            first = min((each[1] for each in old), default=END)
            partly = [row for _, row in mine if self._closed(mark, row["ts"]) and row["ts"] < first]
            if self.case.late == "strict":
                for number, row in mine:
                    if any(row is each for each in partly):
                        self._late(number, row)
                mine = [(number, row) for number, row in mine if not any(row is each for each in partly)]
                partly = []
            stored = [self.windows.pop(each) for each in old]
            mine += [(number, row) for window in stored for number in (0, 1) for row in window.sides[number]]
            for session in sessions(mine, gap):
                start, end = session[0][1]["ts"], session[-1][1]["ts"] + gap
                for number, row in session:
                    if self._closed(mark, end):
                        self._late(number, row)
                        continue
                    self.windows[key, start, end].sides[number].append(row)
                    self.said.partly_late += any(row is each for each in partly)

    def _close(self, mark: int | None) -> None:
        for each in [each for each in self.windows if self._closed(mark, each[2])]:
            lefts, rights = self.windows.pop(each).sides
            partners = [(a, b) for a, b in product(range(len(lefts)), range(len(rights))) if self._fulfils(lefts[a], rights[b])]  # fmt: skip
            if not self.case.is_of_left_alone:
                for a, b in partners:
                    self._out(lefts[a], rights[b], each[1:])
            for number, rows in enumerate((lefts, rights)):
                has = {pair[number] for pair in partners}
                for place, row in enumerate(rows):
                    if place not in has:
                        self._alone(number, row, each[1:])
                    elif self.case.how == "semi" and number == 0:
                        self._out(row, None, each[1:])


def key_of(row: Row, number: int) -> Any:
    key = tuple(row[name] for name in KEYS[number])
    return None if None in key else key


def sessions(rows: list[tuple[int, Row]], gap: int) -> Iterator[list[tuple[int, Row]]]:
    session: list[tuple[int, Row]] = []
    for each in sorted(rows, key=lambda each: int(each[1]["ts"])):
        if session and each[1]["ts"] - session[-1][1]["ts"] > gap:
            yield session
            session = []
        session.append(each)
    yield from [session] if session else []


def check(case: Case, play: Play) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "MOST", case.most)
        joins = Joins(case)
        driven = Driven.of(joins.begin(), play.shards, backend=play.backend)
        played(play, driven, joins, SCHEMAS, reads_sides=case.kind != "latest")


def dense(seed: str) -> Play:
    """A play of many rows, many of them late: it meets what short ones seldom meet."""
    chance, turns = Random(seed), []
    for number in range(6):
        inputs: list[Rows] = [
            [{name: chance.choice(some) for name, some in values.items()} for _ in range(15)]
            for values in VALUES
        ]
        for row in [row for rows in inputs for row in rows]:
            row["ts"] = (20 + 7 * number + chance.randrange(-12, 12)) * SECOND
        before = chance.choice(["", "restart", "rescale"])
        turns.append(Turn(inputs, chance.randrange(1, 3), before, chance.randrange(1, 4)))
    return Play(turns, chance.choice([0, 0, 4]) * SECOND, "memory", 2)


@pytest.mark.slow
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("within", [(-5, 0), (2, 5), (-3, 4), (0, 0)])
def test_rows_within_bounds_among_many_late_ones(within: tuple[int, int], how: str) -> None:
    check(Case("interval", how, within=within), dense(f"{within}{how}"))


@pytest.mark.slow
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("late", ["lenient", "strict"])
@pytest.mark.parametrize("window", ["hopping", "session"])
def test_windows_of_two_inputs_over_many_late_rows(window: str, late: str, how: str) -> None:
    check(Case(window, how, lateness=SECOND, late=late), dense(f"{window}{late}{how}"))


@pytest.mark.parametrize("keep", [None, 3])
@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("how", ["left", "inner"])
def test_versions_among_many_late_rows(how: str, wait: bool, keep: int | None) -> None:
    check(Case("asof", how, keep=keep, wait=wait), dense(f"{keep}{wait}{how}"))


@pytest.mark.slow
@model(25, 2000)
@given(case=cases("interval"), play=plays(LEFT, RIGHT, releases=True))
def test_pairs_within_bounds_come_out_with_their_second_row(case: Case, play: Play) -> None:
    check(case, play)


@pytest.mark.slow
@model(20, 2000)
@given(case=cases("tumbling", "hopping", "short", "session"), play=plays(LEFT, RIGHT, releases=True))
def test_pairs_of_a_window_come_out_when_it_closes(case: Case, play: Play) -> None:
    check(case, play)


@pytest.mark.slow
@model(25, 2000)
@given(case=cases("asof", "latest"), play=plays(LEFT, RIGHT, releases=True))
def test_a_row_gets_its_version(case: Case, play: Play) -> None:
    check(case, play)
