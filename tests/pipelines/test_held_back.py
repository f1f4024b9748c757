"""What comes out of operators behind operators is what one computation over all rows gives, however the rows are cut."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import stateflow as sf
from stateflow.compatibility.states import check_options, fixed_options
from stateflow.errors import IncompatibleError
from stateflow.pipelines.graph import KeyedNode
from stateflow.pipelines.held_back import behind, comes_when_reached
from stateflow.pipelines.streams import KeyedStream, Stream
from tests.jobs.operators import operator_of
from tests.operators.ready.driving import END
from tests.pipelines.chained import SECOND, Chained, run
from tests.refusals.refusal import refused

ROWS = "k bigint, a bigint, ts timestamp"
WINDOW = "k bigint, window_start timestamp, window_end timestamp, n bigint, total bigint"
PAIR = "k bigint, left_a bigint, left_ts timestamp, right_a bigint, right_ts timestamp"
LONE = "k bigint, a bigint, ts timestamp"


class Seconds:
    """A step that Spark would run, for tables."""

    def __init__(self, **columns: Callable[[pa.Table], Any]) -> None:
        self._columns = columns

    def __call__(self, rows: Any) -> Any:
        raise NotImplementedError("not without Spark")

    def of_arrow(self, table: pa.Table) -> pa.Table:
        made = {name: make(table) for name, make in self._columns.items()}
        return pa.table(made)


def rows_of(*names: str, **computed: Callable[[pa.Table], Any]) -> Seconds:
    return Seconds(**{name: (lambda table, name=name: table[name]) for name in names}, **computed)


def source(flow: sf.Flow, uid: str) -> Stream:
    return flow.source(uid, sf.delta(f"/{uid}"), ROWS, event_time="ts", watermark="1 second")


COUNTS = {"n": sf.count(), "total": sf.sum("a")}


def of_windows(window: Any, **options: Any) -> Callable[[sf.Flow], Stream]:
    lateness = options.pop("lateness", "0 seconds")

    def declare(flow: sf.Flow) -> Stream:
        return (
            source(flow, "one")
            .key_by("k")
            .window(window, lateness=lateness)
            .aggregate("first", WINDOW, **COUNTS)
        )

    return declare


def of_join(how: str, least: str, most: str) -> Callable[[sf.Flow], Stream]:
    output = LONE if how in ("semi", "anti") else PAIR

    def declare(flow: sf.Flow) -> Stream:
        left, right = source(flow, "one").key_by("k"), source(flow, "two").key_by("k")
        return left.join("first", right, output, within=(least, most), how=how)

    return declare


def of_asof(how: str = "inner", keep: str | None = "10 seconds") -> Callable[[sf.Flow], Stream]:
    def declare(flow: sf.Flow) -> Stream:
        left, right = source(flow, "one").key_by("k"), source(flow, "two").key_by("k")
        return left.join_asof("first", right, PAIR, keep=keep, how=how)

    return declare


def of_newest(flow: sf.Flow) -> Stream:
    left, right = source(flow, "one").key_by("k"), source(flow, "two").key_by("k")
    return left.join_latest("first", right, PAIR)


def of_newest_once(flow: sf.Flow) -> Stream:
    return of_newest(flow).deduplicate("once", by=["k", "left_a"], within="1 hour", time="left_ts")


def of_newest_and_more(flow: sf.Flow) -> Stream:
    left, right = of_newest(flow).key_by("k"), source(flow, "three").key_by("k")
    output = "k bigint, left_ts timestamp, right_ts timestamp, ts timestamp"
    return left.join("more", right, output, within=("0 seconds", "0 seconds"), time="left_ts")


def of_window_join(window: Any, how: str = "inner") -> Callable[[sf.Flow], Stream]:
    def declare(flow: sf.Flow) -> Stream:
        left, right = source(flow, "one").key_by("k"), source(flow, "two").key_by("k")
        output = f"{PAIR}, window_start timestamp, window_end timestamp"
        return left.window(window, lateness="2 seconds").join("first", right, output, how=how)

    return declare


def of_dedup(keep: str) -> Callable[[sf.Flow], Stream]:
    return lambda flow: source(flow, "one").deduplicate("first", by=["k", "a"], within="6 seconds", keep=keep)


def of_code(flow: sf.Flow) -> Stream:
    cut = source(flow, "one").key_by("k").window(sf.session("3 seconds"))
    return cut.process("first", Lengths, output=WINDOW)


class Lengths(sf.WindowProcess[Any, Any, Any]):
    def process(self, key: Any, window: sf.WindowBounds, rows: list[Any], ctx: sf.ColumnarContext) -> Any:
        yield {
            "k": key, "window_start": window.start, "window_end": window.end, "n": len(rows),
            "total": sum(row.a for row in rows),
        }  # fmt: skip


def coalesced(flow: sf.Flow) -> Stream:
    both = rows_of(
        "k", a=lambda table: pc.coalesce(table["left_a"], table["right_a"]),
        ts=lambda table: pc.coalesce(table["left_ts"], table["right_ts"]),
    )  # fmt: skip
    return of_join("full", "-3 seconds", "7 seconds")(flow).transform(both, ROWS)


def mixed(flow: sf.Flow) -> Stream:
    """Windows beside the rows of a source."""
    as_rows = rows_of("k", a=lambda table: table["n"], ts=lambda table: table["window_end"])
    windows = of_windows(sf.tumbling("5 seconds"), lateness="3 seconds")(flow)
    return windows.transform(as_rows, ROWS).union(source(flow, "two"))


FIRST: dict[str, tuple[Callable[[sf.Flow], Stream], str, str]] = {
    "tumbling, start": (of_windows(sf.tumbling("5 seconds"), lateness="2 seconds"), "window_start", "n"),
    "tumbling, end": (of_windows(sf.tumbling("5 seconds")), "window_end", "n"),
    "hopping, start": (of_windows(sf.hopping("9 seconds", "4 seconds")), "window_start", "n"),
    "cumulative, start": (
        of_windows(sf.cumulative("10 seconds", "5 seconds"), lateness="1 second"),
        "window_start",
        "n",
    ),
    "cumulative, end": (of_windows(sf.cumulative("10 seconds", "5 seconds")), "window_end", "n"),
    "session, end": (of_windows(sf.session("3 seconds"), lateness="1 second"), "window_end", "n"),
    "code per session": (of_code, "window_end", "n"),
    "join, left": (of_join("inner", "-3 seconds", "7 seconds"), "left_ts", "left_a"),
    "join, right": (of_join("inner", "-3 seconds", "7 seconds"), "right_ts", "right_a"),
    "join, before": (of_join("inner", "-7 seconds", "-2 seconds"), "left_ts", "left_a"),
    "join, after": (of_join("inner", "2 seconds", "5 seconds"), "right_ts", "right_a"),
    "left join": (of_join("left", "-3 seconds", "7 seconds"), "left_ts", "left_a"),
    "left join, before": (of_join("left", "-7 seconds", "-2 seconds"), "left_ts", "left_a"),
    "right join": (of_join("right", "-3 seconds", "7 seconds"), "right_ts", "right_a"),
    "semi join": (of_join("semi", "-3 seconds", "7 seconds"), "ts", "a"),
    "anti join": (of_join("anti", "-3 seconds", "7 seconds"), "ts", "a"),
    "full join": (coalesced, "ts", "a"),
    "as-of, left": (of_asof("left", None), "left_ts", "left_a"),
    "as-of, right": (of_asof(), "right_ts", "right_a"),
    "window join, left": (of_window_join(sf.tumbling("5 seconds")), "left_ts", "left_a"),
    "window join, end": (
        of_window_join(sf.hopping("8 seconds", "4 seconds"), "full"),
        "window_end",
        "left_a",
    ),
    "session join": (of_window_join(sf.session("3 seconds"), "left"), "window_end", "left_a"),
    "first": (of_dedup("first"), "ts", "a"),
    "last": (of_dedup("last"), "ts", "a"),
    "mixed": (mixed, "ts", "a"),
}
"""What comes first: with a column of event time and one of values."""


def then_window(window: Any, lateness: str = "0 seconds") -> Any:
    def declare(flow: sf.Flow, stream: Stream, time: str, value: str) -> Stream:
        cut = stream.key_by("k").window(window, lateness=lateness, time=time)
        return cut.aggregate("second", WINDOW, n=sf.count(), total=sf.sum(value))

    return declare


def others(flow: sf.Flow, uid: str) -> KeyedStream:
    """Rows of a source under names that nothing else has."""
    renamed = rows_of("k", b=lambda table: table["a"], at=lambda table: table["ts"])
    return source(flow, uid).transform(renamed, "k bigint, b bigint, at timestamp").key_by("k", order_by="b")


def then_join(how: str) -> Any:
    def declare(flow: sf.Flow, stream: Stream, time: str, value: str) -> Stream:
        output = f"k bigint, {value} bigint" if how == "anti" else f"k bigint, {value} bigint, b bigint"
        right = others(flow, "three").stream.key_by("k")
        return stream.key_by("k").join(
            "second", right, output, within=("-4 seconds", "2 seconds"), how=how, time=time, right_time="at"
        )

    return declare


def then_asof(flow: sf.Flow, stream: Stream, time: str, value: str) -> Stream:
    right, left = stream.key_by("k", order_by=value), others(flow, "four").stream.key_by("k")
    output = f"k bigint, b bigint, {value} bigint"
    return left.join_asof("second", right, output, keep="9 seconds", time="at", right_time=time)


def then_asof_left(flow: sf.Flow, stream: Stream, time: str, value: str) -> Stream:
    output = f"k bigint, b bigint, {value} bigint"
    return stream.key_by("k").join_asof("second", others(flow, "three"), output, time=time, right_time="at")


def then_window_join(window: Any) -> Any:
    def declare(flow: sf.Flow, stream: Stream, time: str, value: str) -> Stream:
        right = others(flow, "three").stream.key_by("k")
        output = f"k bigint, b bigint, {value} bigint"
        return (
            stream.key_by("k")
            .window(window, time=time)
            .join("second", right, output, how="full", right_time="at")
        )

    return declare


def then_dedup(keep: str) -> Any:
    def declare(flow: sf.Flow, stream: Stream, time: str, value: str) -> Stream:
        return stream.deduplicate("second", by="k", within="4 seconds", keep=keep, time=time)

    return declare


SECOND_STEP: dict[str, Any] = {
    "tumbling": then_window(sf.tumbling("7 seconds"), "2 seconds"),
    "hopping": then_window(sf.hopping("12 seconds", "4 seconds")),
    "session": then_window(sf.session("4 seconds")),
    "count": then_window(sf.count_window(3)),
    "inner join": then_join("inner"),
    "full join": then_join("full"),
    "anti join": then_join("anti"),
    "as-of": then_asof,
    "as-of, left": then_asof_left,
    "window join": then_window_join(sf.tumbling("6 seconds")),
    "session join": then_window_join(sf.session("3 seconds")),
    "first": then_dedup("first"),
    "last": then_dedup("last"),
}


def built(first: str, second: str) -> sf.Flow:
    declare, time, value = FIRST[first]

    @sf.pipeline("chain")
    def chain(flow: sf.Flow) -> None:
        SECOND_STEP[second](flow, declare(flow), time, value).collect("out", sf.memory("out"))

    return chain.build()


def generated(chance: random.Random, count: int) -> list[dict[str, Any]]:
    """Roughly in the order of time."""
    return [
        {
            "k": chance.randrange(3),
            "a": chance.randrange(4),
            "ts": max(0, (number * 2 + chance.randrange(-6, 6)) * SECOND // 2 + chance.choice((0, 0, 1, -1))),
        }
        for number in range(count)
    ]


EVERY = [(first, second) for first in FIRST for second in SECOND_STEP]
PAIRS = EVERY if os.environ.get("STATEFLOW_LONG") else EVERY[:: len(SECOND_STEP) // 2]


def plain(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_no_row_is_late_for_what_follows_and_the_result_is_that_of_all_rows(first: str, second: str) -> None:
    flow = built(first, second)
    chance = random.Random(f"{first} {second}")
    sources = {node.uid: generated(chance, chance.randrange(5, 40)) for node in flow.sources}
    chained, ahead = run(flow, sources, chance, chance.choice((0, 2, 8)) * SECOND)
    assert chained.late == {}
    at_once = Chained(flow, random.Random(1))
    at_once.batch(ahead, None)
    at_once.batch({}, END)
    assert plain(chained.rows["first"]) == plain(at_once.rows["first"])
    assert plain(chained.rows["second"]) == plain(at_once.rows["second"])


MINUTE = 60 * SECOND
BOUNDS: list[tuple[Callable[[sf.Flow], Stream], dict[str, int | None]]] = [
    (lambda f: source(f, "one"), {"ts": 0}),
    (of_windows(sf.tumbling("5 minutes"), lateness="2 minutes"), {"window_start": 7, "window_end": 2, "made": 7}),
    (of_windows(sf.hopping("6 minutes", "4 minutes")), {"window_start": 6, "window_end": 0, "made": 6}),
    (of_windows(sf.cumulative("6 minutes", "2 minutes")), {"window_start": 6, "window_end": 0, "made": 6}),
    (of_windows(sf.session("6 minutes"), lateness="1 minute"), {"window_start": None, "window_end": 1, "made": None}),
    (of_windows(sf.count_window(3)), {"window_start": None, "window_end": None, "made": None}),
    (of_join("inner", "-3 minutes", "7 minutes"), {"left_ts": 7, "right_ts": 3, "made": 7}),
    (of_join("inner", "-7 minutes", "-3 minutes"), {"left_ts": 0, "right_ts": 7, "made": 7}),
    (of_join("inner", "3 minutes", "7 minutes"), {"left_ts": 7, "right_ts": 0, "made": 7}),
    (of_join("left", "-3 minutes", "7 minutes"), {"left_ts": 7, "right_ts": None, "made": 7}),
    (of_join("right", "-3 minutes", "7 minutes"), {"left_ts": None, "right_ts": 3, "made": 7}),
    (of_join("full", "-3 minutes", "7 minutes"), {"left_ts": None, "right_ts": None, "made": 7}),
    (of_join("anti", "-3 minutes", "7 minutes"), {"ts": 7, "made": 7}),
    (of_asof("inner", "10 minutes"), {"left_ts": 0, "right_ts": 10, "made": 10}),
    (of_asof("left", "10 minutes"), {"left_ts": 0, "right_ts": None, "made": 10}),
    (of_asof("inner", None), {"left_ts": 0, "right_ts": None, "made": None}),
    (lambda f: of_dedup("first")(f), {"ts": 0, "made": 0}),
    (lambda f: of_dedup("last")(f), {"ts": 0.1, "made": None}),
    (
        # An operator that is held back holds what follows back by that, too.
        lambda f: then_window(sf.tumbling("1 hour"), "1 minute")(
            f, of_windows(sf.tumbling("5 minutes"), lateness="2 minutes")(f), "window_start", "n"
        ),
        {"window_start": 68, "window_end": 8},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("declare", "lengths"), BOUNDS)
def test_how_far_rows_are_behind(
    declare: Callable[[sf.Flow], Stream], lengths: dict[str, float | None]
) -> None:
    found = behind(declare(sf.Flow("flow")))
    for column, minutes in lengths.items():
        length = found.of(column)
        assert (None if isinstance(length, str) else length) == (
            None if minutes is None else minutes * MINUTE
        )


REFUSED = [
    (of_windows(sf.session("6 minutes")), "window_start", ("operator 'first'", "say time='window_end'")),
    (of_windows(sf.count_window(3)), "window_end", ("windows of a count", "operator 'first'", "in another pipeline")),
    (of_asof("inner", None), "right_ts", ("operator 'first'", "join_asof(..., keep='30 days')")),
    *(
        (declare, "right_ts", ("operator 'first'", "any age", "the left rows", "join_asof(..., keep='30 days')"))
        for declare in (of_newest, of_newest_once, of_newest_and_more)
    ),
    (of_join("full", "-3 seconds", "7 seconds"), "left_ts", ("is null", "operator 'first'", "coalesce(left_ts, right_ts)")),
    (lambda f: of_windows(sf.tumbling("5 minutes"))(f).deduplicate("once", by="k", within="1 hour", time="window_end"), "window_start",
     ("operator 'once'", "by their 'window_end'", "go by 'window_end'")),
    (of_windows(sf.tumbling("5 minutes")), "",
     ("no column 'ts'", "it has k, window_start, window_end, n, total", "time='window_start' or time='window_end'")),
]  # fmt: skip


@pytest.mark.parametrize(("declare", "time", "named"), REFUSED)
def test_a_time_that_cannot_be_gone_by_is_refused_with_the_reason(
    declare: Callable[[sf.Flow], Stream], time: str, named: tuple[str, ...]
) -> None:
    keyed = declare(sf.Flow("flow")).key_by("k")
    column = [f"column '{time}'"] if time else []
    with refused(sf.UsageError, "operator 'second'", *column, *named):
        keyed.window(sf.tumbling("1 hour"), time=time).aggregate(
            "second", WINDOW, n=sf.count(), total=sf.count()
        )


@pytest.mark.parametrize("declare", [of_newest, of_newest_once, of_newest_and_more])
def test_the_time_of_the_left_rows_of_a_latest_version_join_is_taken(
    declare: Callable[[sf.Flow], Stream],
) -> None:
    """So is what a transform makes of it."""
    flow = sf.Flow("flow")
    rows = declare(flow)
    rows.key_by("k").window(sf.tumbling("1 hour"), time="left_ts").aggregate("second", WINDOW, **NUMBERS)
    own = rows.transform(lambda frame: frame, type="k bigint, at timestamp").key_by("k")
    own.window(sf.tumbling("1 hour"), time="at").aggregate("third", WINDOW, **NUMBERS)
    assert {node.held_back for node in flow.operators} == {0}


NUMBERS = {"n": sf.count(), "total": sf.count()}


def test_what_the_refusals_say_to_write_is_taken() -> None:
    for declare, time in (
        (of_windows(sf.session("6 minutes")), "window_end"),
        (of_asof("inner", "30 days"), "right_ts"),
        (coalesced, "ts"),
        (
            lambda f: of_windows(sf.tumbling("5 minutes"))(f).deduplicate(
                "once", by="k", within="1 hour", time="window_end"
            ),
            "window_end",
        ),
    ):
        flow = sf.Flow("flow")
        cut = declare(flow).key_by("k").window(sf.tumbling("1 hour"), time=time)
        cut.aggregate("second", WINDOW, n=sf.count(), total=sf.count())


def test_user_code_passes_times_on_by_their_column() -> None:
    flow = sf.Flow("flow")
    windows = of_windows(sf.tumbling("5 minutes"), lateness="2 minutes")(flow)
    passed = windows.key_by("k").map_with_state(
        "passes", lambda key, row, state: (row, None), state=int, output=WINDOW
    )
    for uid, time in (("ends", "window_end"), ("starts", "window_start")):
        cut = passed.key_by("k").window(sf.tumbling("1 hour"), time=time)
        cut.aggregate(uid, WINDOW, n=sf.count(), total=sf.count())
    assert [(node.uid, node.held_back) for node in flow.operators] == [
        ("first", 0), ("passes", 7 * MINUTE), ("ends", 2 * MINUTE), ("starts", 7 * MINUTE),
    ]  # fmt: skip


class Reminds(sf.KeyedProcess[int, Any, Any]):
    due = sf.Timer("event")

    def process(self, key: int, rows: Any, ctx: sf.Context) -> None: ...

    @due.fires
    def fire(self, key: int, at: datetime, ctx: sf.Context) -> None: ...


class Asks(sf.KeyedProcess[int, Any, Any]):
    def process(self, key: int, rows: Any, ctx: sf.Context) -> None: ...


class AsksBoth(sf.ConnectedProcess[int, Any, Any, Any]):
    def process_left(self, key: int, rows: Any, ctx: sf.Context) -> None: ...
    def process_right(self, key: int, rows: Any, ctx: sf.Context) -> None: ...


ENDS = "k bigint, window_end timestamp, n bigint"
FIVE = of_windows(sf.tumbling("5 minutes"), lateness="2 minutes")
OWN_CODE: dict[str, tuple[Callable[[sf.Flow], Stream], int]] = {
    "a source": (lambda f: source(f, "one"), 0),
    "windows": (FIVE, 7 * MINUTE),
    "windows without their start": (lambda f: FIVE(f).transform(rows_of("k", "window_end", "n"), ENDS), 2 * MINUTE),
    "windows without a column of times": (lambda f: FIVE(f).transform(rows_of("k", "n"), "k bigint, n bigint"), 7 * MINUTE),
    "windows of unknown columns": (lambda f: FIVE(f).transform(rows_of("k")), 7 * MINUTE),
    "windows and a source": (lambda f: FIVE(f).transform(rows_of("k"), "k bigint").union(source(f, "two").transform(rows_of("k"), "k bigint")), 7 * MINUTE),
    "sessions": (of_windows(sf.session("3 minutes"), lateness="1 minute"), MINUTE),
    "an outer join": (of_join("full", "-3 minutes", "7 minutes"), 7 * MINUTE),
    "an as-of join": (of_asof(keep="10 minutes"), 10 * MINUTE),
    "an as-of join without an end": (of_asof(keep=None), 0),
    "last rows": (of_dedup("last"), 6 * SECOND),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN_CODE)
def test_code_with_timers_is_held_back_by_the_longest_length_that_is_known(name: str) -> None:
    declare, length = OWN_CODE[name]
    flow = sf.Flow("flow")
    keyed = declare(flow).key_by("k")
    keyed.process("timers", Reminds, output=ROWS)
    keyed.process("asks", Asks, output=ROWS)
    keyed.connect(source(flow, "beside").key_by("k")).process("both", AsksBoth, output=ROWS)
    state = sf.columns({"n": int}, timed=True)
    keyed.process_arrow("arrow", lambda *_: None, state=state, output=ROWS, on_due=lambda *_: None)
    mine = {node.uid: node.held_back for node in flow.operators}
    assert {uid: mine[uid] for uid in ("timers", "asks", "both", "arrow")} == dict.fromkeys(
        ("timers", "asks", "both", "arrow"), length
    )


def test_what_timers_put_out_is_behind_by_what_they_are_held_back_by() -> None:
    flow = sf.Flow("flow")
    for uid, process in (("timers", Reminds), ("asks", Asks)):
        windows = (
            FIVE(flow)
            if not flow.operators
            else Stream(flow, flow.operators[0], "", flow.operators[0].output)
        )
        passed = windows.key_by("k").process(uid, process, output=ENDS)
        cut = passed.key_by("k").window(sf.tumbling("1 hour"), time="window_end")
        cut.aggregate(f"{uid}-windows", "k bigint, window_end timestamp, n bigint", n=sf.count())
    mine = {node.uid: node.held_back for node in flow.operators}
    assert (mine["timers-windows"], mine["asks-windows"]) == (7 * MINUTE, 2 * MINUTE)


def test_timers_behind_rows_of_any_age_are_refused() -> None:
    flow = sf.Flow("flow")
    counted = source(flow, "one").key_by("k").window(sf.count_window(3))
    rows = counted.aggregate("threes", "k bigint, n bigint", n=sf.count()).key_by("k")
    rows.process("asks", Asks, output=ROWS)
    with pytest.raises(sf.UsageError) as caught:
        rows.process("timers", Reminds, output=ROWS)
    assert str(caught.value).startswith(
        "operator 'timers' has event timers, and how far the times of its rows are behind the watermark does not show: windows of a count"
    )


def test_rows_that_an_as_of_join_does_not_keep_waiting_come_at_once() -> None:
    flow = sf.Flow("flow")
    left, right = source(flow, "one").key_by("k"), source(flow, "two").key_by("k")
    joined = left.join_asof("first", right, PAIR, wait=False)
    joined.key_by("k").window(sf.tumbling("1 hour"), time="left_ts").aggregate(
        "second", WINDOW, n=sf.count(), total=sf.count()
    )
    assert [(node.held_back, comes_when_reached(node)) for node in flow.operators] == [(0, False), (0, False)]


@pytest.mark.parametrize(("before", "after"), [("2 minutes", "1 minute"), ("0 seconds", "1 minute")])
def test_a_release_that_holds_an_operator_back_by_another_length_is_refused(before: str, after: str) -> None:
    def node(lateness: str) -> KeyedNode:
        flow = sf.Flow("flow")
        windows = of_windows(sf.tumbling("5 minutes"), lateness=lateness)(flow)
        cut = windows.key_by("k").window(sf.tumbling("1 hour"), time="window_end")
        cut.aggregate("second", WINDOW, n=sf.count(), total=sf.count())
        return flow.operators[1]

    stored = operator_of(key=(("k", "bigint"),), options=fixed_options(node(before)))
    check_options(node(before), stored)
    with refused(IncompatibleError, "held it back by", "1 minute now"):
        check_options(node(after), stored)
