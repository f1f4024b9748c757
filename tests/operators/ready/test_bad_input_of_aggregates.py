"""What an aggregate cannot take fails with operator and key, or is a dead letter, and the other keys go on."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

import pyarrow as pa
import pytest

import stateflow as sf
from stateflow.errors import StateflowError, UsageError, UserCodeError
from stateflow.pipelines.ready import windows
from stateflow.pipelines.ready.aggregates import aggregate, count, count_distinct, mean, quantile, top_values
from stateflow.pipelines.ready.aggregates import sum as summed
from stateflow.pipelines.ready.operators import KeyedRows, ReadyOperator, running_aggregate, window_aggregate
from stateflow.pipelines.rows.row_type import row_type
from stateflow.state.columns import state
from stateflow.testing import ColumnarHarness
from tests.operators.ready.driving import END, Driven
from tests.refusals.refusal import refused

SECOND = 1_000_000
ROWS = "user long, id long, n long, ts timestamp"
SCHEMA = pa.schema(
    [("user", pa.int64()), ("id", pa.int64()), ("n", pa.int64()), ("ts", pa.timestamp("us", "UTC"))]
)
BAD = 13
MARK = 1000
"""Added to a sum that does not merge."""


def table(*rows: tuple[int, int, int]) -> pa.Table:
    """Rows of (user, n, second), numbered."""
    return pa.Table.from_pylist(
        [{"user": u, "id": i, "n": n, "ts": at * SECOND} for i, (u, n, at) in enumerate(rows)], SCHEMA
    )


def add(total: int, n: int) -> int:
    if n == BAD:
        raise ValueError("thirteen")
    return total + n


def add_marked(total: int, n: int) -> int:
    return total + (MARK if n == BAD else n)


def plus(left: int, right: int) -> int:
    return left + right


def plus_unmarked(left: int, right: int) -> int:
    if left >= MARK // 2 or right >= MARK // 2:
        raise ValueError("marked")
    return left + right


def unmarked(total: int) -> int:
    if total >= MARK // 2:
        raise ValueError("marked")
    return total


def failing_start() -> int:
    raise ValueError("no beginning")


CODE: dict[str, dict[str, Any]] = {
    "create": {"create": failing_start, "add": plus, "merge": plus},
    "add": {"create": int, "add": add, "merge": plus},
    "merge": {"create": int, "add": add_marked, "merge": plus_unmarked},
    "result": {"create": int, "add": add_marked, "merge": plus, "result": unmarked},
}
KINDS: dict[str, dict[str, Any]] = {
    "running": {},
    "tumbling": {"window": windows.tumbling("10 seconds")},
    "changes": {"window": windows.tumbling("10 seconds"), "emit": "changes"},
    "on_time": {"window": windows.tumbling("10 seconds"), "emit": "on_time", "lateness": 8 * SECOND},
    "hopping": {"window": windows.hopping("10 seconds", "5 seconds")},
    "overlapping changes": {"window": windows.hopping("10 seconds", "5 seconds"), "emit": "changes"},
    "cumulative": {"window": windows.cumulative("20 seconds", "5 seconds")},
    "session": {"window": windows.session("3 seconds")},
    "count": {"window": windows.count_window(3)},
}


CLOSES = {"tumbling", "hopping", "cumulative", "session"}
"""Kinds whose results are asked for when a window closes."""


def declared(kind: str, function: str, on_error: str, *, distinct: bool = False) -> ReadyOperator:
    rows = KeyedRows("op", row_type(ROWS), ("user",), ())
    own = aggregate("n", state=int, **CODE[function])
    aggregates: dict[str, Any] = {"own": own, "n": count(), "total": summed("id")}
    output = "user long, own long, n long, total long"
    if distinct:
        aggregates["different"] = count_distinct("n")
        output += ", different long"
    options = dict(KINDS[kind])
    if not options:
        return running_aggregate(rows, output, aggregates, on_error=on_error)
    emit, lateness = options.get("emit", "final"), options.get("lateness", 0)
    return window_aggregate(
        rows, f"{output}, window_end timestamp", aggregates,
        window=options["window"], time="ts", lateness=lateness, emit=emit, on_error=on_error,
    )  # fmt: skip


def batches(seed: int) -> list[tuple[pa.Table, int | None]]:
    """Rows that are roughly in order, each batch with its watermark, so that none is late."""
    chance, out, number, watermark = random.Random(seed), [], 0, None
    for _ in range(7):
        rows = []
        for _ in range(chance.randrange(1, 25)):
            at = number // 3 + chance.randrange(0, 6)
            n = BAD if chance.random() < 0.08 else chance.randrange(5)
            rows.append({"user": chance.randrange(4), "id": number, "n": n, "ts": at * SECOND})
            number += 1
        out.append((pa.Table.from_pylist(rows, SCHEMA), watermark))
        watermark = (number // 3 - 1) * SECOND
    return out


def letter_rows(driven: Driven) -> list[dict[str, Any]]:
    return [row for letter in driven.sides.get("dead_letters", []) for row in json.loads(letter["rows"])]


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


AT_ARRIVAL = [
    ("running", "add"), ("running", "merge"), ("running", "result"), ("tumbling", "add"), ("tumbling", "merge"),
    ("changes", "add"), ("changes", "merge"), ("changes", "result"), ("on_time", "add"), ("hopping", "add"),
    ("cumulative", "add"), ("session", "add"), ("session", "merge"), ("count", "add"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "function"), AT_ARRIVAL)
def test_what_is_diverted_is_as_if_it_had_never_come(kind: str, function: str) -> None:
    distinct = kind not in ("session", "count", "hopping", "cumulative")
    diverted = 0
    for seed in range(4):
        driven = Driven(declared(kind, function, "dead_letter", distinct=distinct), 2)
        for rows, watermark in batches(seed):
            driven.batch(rows, watermark, 1)
        driven.batch(None, END)
        gone = {row["id"] for row in letter_rows(driven)}
        diverted += len(gone)
        clean = Driven(declared(kind, function, "fail", distinct=distinct), 2)
        for rows, watermark in batches(seed):
            clean.batch(rows.filter(pa.array([id_ not in gone for id_ in rows["id"].to_pylist()])), watermark)
        clean.batch(None, END)
        assert list(map(in_order, driven.output)) == list(map(in_order, clean.output))
        assert driven.entries() == clean.entries()
    assert diverted > 10, "nothing was tested"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", CODE)
def test_every_kind_of_window_goes_on_behind_code_that_raises(kind: str, function: str) -> None:
    """Of two users the second one's rows are fine; of the first one nothing may fail the batch."""
    bad, good = [(1, BAD, 1), (1, 2, 2)], [(2, 3, 1), (2, 4, 2), (2, 5, 3)]
    if function == "create":
        good = []
    driven = Driven(declared(kind, function, "dead_letter"))
    driven.batch(table(*bad, *good), 0)
    if kind == "count":
        driven.batch(None, 2 * SECOND)
    driven.batch(table((1, 1, 3), *good), 0)
    driven.batch(table((1, BAD, 2)), 0)
    driven.batch(None, 12 * SECOND)
    driven.batch(None, END)
    letters = driven.sides["dead_letters"]
    assert letters
    assert {letter["error"].split(" for ")[0].split(":")[0] for letter in letters} == {
        f"{function}() of 'own'"
    }
    assert {letter["key"] for letter in letters} == {"1"}
    mine = [row for row in driven.rows if row["user"] == 2]
    assert bool(mine) == bool(good)
    if good and kind not in ("count", "session"):
        assert max(row["own"] for row in mine) == 24, "both batches of the other key count"
    assert driven.entries() == 0 or kind == "running"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", CODE)
def test_without_dead_letters_the_batch_fails_with_operator_and_key(kind: str, function: str) -> None:
    driven = Driven(declared(kind, function, "fail"))

    def run() -> None:
        driven.batch(table((7, BAD, 1), (7, 2, 2)), 0)
        driven.batch(None, 2 * SECOND)
        driven.batch(table((7, BAD, 3), (7, 2, 4)), 2 * SECOND)
        driven.batch(None, END)

    with pytest.raises(StateflowError) as failed:
        run()
    text = str(failed.value)
    told = rf"operator 'op': {function}\(\) of 'own' failed for user=7(?P<window> and the window from \S+ to \S+)?: ValueError: "
    found = re.match(told, text)
    assert found, text
    if function == "result" and kind in CLOSES:
        assert found["window"], text
    assert text.endswith("repeats it, or divert such rows with on_error='dead_letter'")
    assert "\n" not in text


def test_a_window_that_cannot_come_out_is_named_in_its_letter() -> None:
    driven = Driven(declared("hopping", "merge", "dead_letter"))
    driven.batch(table((1, BAD, 1), (1, 2, 6), (2, 3, 1)), 0)
    driven.batch(None, END)
    # The panes of [0, 5) and [5, 10) do not merge; each is alone in another window.
    (letter,) = driven.sides["dead_letters"]
    assert letter["error"] == (
        "merge() of 'own' for the window from 1970-01-01T00:00:00+00:00 to 1970-01-01T00:00:10+00:00: ValueError: marked"
    )
    assert (letter["rows"], letter["row_count"], letter["key"]) == ("[]", 0, "1")
    mine = sorted((row["window_end"].second, row["own"]) for row in driven.rows if row["user"] == 1)
    assert mine == [(5, MARK), (15, 2)]


def test_what_is_diverted_counts_in_no_distinct_count() -> None:
    driven = Driven(declared("running", "add", "dead_letter", distinct=True))
    driven.batch(table((1, BAD, 1), (1, 4, 1)), None)
    assert driven.rows == []
    (row,) = driven.batch(table((1, 4, 1)), None)
    assert row["different"] == 1, "the diverted 4 was none of the values before"


@pytest.mark.parametrize("kind", ["running", "tumbling", "hopping", "session", "count"])
def test_a_sum_that_overflows_fails_or_is_a_letter(kind: str) -> None:
    rows = KeyedRows("op", row_type(ROWS), ("user",), ())

    def made(on_error: str) -> ReadyOperator:
        aggregates = {"total": summed("n")}
        if kind == "running":
            return running_aggregate(rows, "user long, total long", aggregates, on_error=on_error)
        return window_aggregate(
            rows, "user long, total long", aggregates,
            window=KINDS[kind]["window"], time="ts", lateness=0, emit="final", on_error=on_error,
        )  # fmt: skip

    most = (1 << 63) - 1
    batch = table((1, most, 1), (1, most, 2), (2, 5, 1), (2, 5, 2), (3, most, 1), (3, 1, 1))

    def over(driven: Driven) -> Driven:
        driven.batch(batch, 0)
        driven.batch(None, END)
        return driven

    with refused(StateflowError, "operator 'op'", "'total'", "the sum of 'n'", "64 bits", "user="):
        over(Driven(made("fail")))
    driven = over(Driven(made("dead_letter")))
    letters = driven.sides["dead_letters"]
    assert {letter["key"] for letter in letters} == {"1", "3"}
    assert {letter["error"] for letter in letters} == {
        "'total', the sum of 'n': OverflowError: the sum is beyond 64 bits"
    }
    assert {row["user"]: row["total"] for row in driven.rows} == {2: 10}


@pytest.mark.parametrize("kind", ["running", "tumbling", "hopping", "session"])
def test_a_sum_that_overflows_with_what_is_kept_fails(kind: str) -> None:
    """Neither batch does so alone."""
    rows = KeyedRows("op", row_type(ROWS), ("user",), ())
    if kind == "running":
        made: ReadyOperator = running_aggregate(rows, "user long, total long", {"total": summed("n")})
    else:
        made = window_aggregate(
            rows, "user long, total long", {"total": summed("n")},
            window=KINDS[kind]["window"], time="ts", lateness=0, emit="final", on_error="fail",
        )  # fmt: skip
    driven = Driven(made)
    driven.batch(table((1, (1 << 63) - 1, 1)), 0)
    with refused(StateflowError, "is beyond 64 bits for user=1"):
        driven.batch(table((1, 1, 1)), 0)
    least = Driven(made)
    least.batch(table((1, -(1 << 63), 1)), 0)
    with refused(StateflowError, "is beyond 64 bits for user=1"):
        least.batch(table((1, -1, 1)), 0)


def mean_of_decimals(*, on_error: str, window: Any = None) -> ColumnarHarness:
    @sf.pipeline("means")
    def means(flow: sf.Flow) -> None:
        rows = flow.source(
            "in",
            sf.delta("/in"),
            "user long, d decimal(38,0), ts timestamp",
            event_time="ts",
            watermark="0 seconds",
        )
        keyed = rows.key_by("user")
        of = keyed if window is None else keyed.window(window)
        of.aggregate("op", "user long, m decimal(38,4)", on_error=on_error, m=sf.mean("d"))  # type: ignore[union-attr]

    return ColumnarHarness.of(means.build(), "op")


@pytest.mark.parametrize("window", [None, sf.tumbling("1 minute")], ids=["running", "tumbling"])
def test_a_mean_that_its_decimal_cannot_hold_fails_or_is_a_letter(window: Any) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [{"user": 1, "d": Decimal("9" * 38), "ts": at}, {"user": 2, "d": Decimal(1), "ts": at}]
    diverting = mean_of_decimals(on_error="dead_letter", window=window)
    out = [*diverting.rows(*rows), *diverting.advance(at + timedelta(hours=1))]
    assert [(row["user"], row["m"]) for row in out] == [(2, Decimal(1))]
    [letter] = diverting.side("dead_letters")
    assert "'m', the mean of 'd'" in letter["error"]
    failing = mean_of_decimals(on_error="fail", window=window)
    with refused(
        StateflowError,
        "the mean of 'd'",
        "decimal(38,4)",
        "user=1",
        "average the column as a double",
    ):
        failing.rows(*rows)
        failing.advance(at + timedelta(hours=1))


def test_a_decimal_with_more_digits_than_a_key_has_is_told_with_its_column() -> None:
    @sf.pipeline("digits")
    def digits(flow: sf.Flow) -> None:
        rows = flow.source("in", sf.delta("/in"), "k decimal(38,0), n long")
        rows.key_by("k").aggregate("op", "k decimal(38,0), n long", n=sf.count()).upsert("o", sf.delta("/o"))

    run = ColumnarHarness.of(digits.build(), "op")
    most = Decimal("9" * 20)
    assert run.rows({"k": most, "n": 1}) == [{"k": most, "n": 1}]
    with refused(UsageError, f"the key column 'k' holds {most + 1}", "20 digits", "transform()"):
        run.rows({"k": most, "n": 1}, {"k": most + 1, "n": 1})


def test_aggregates_of_nothing_are_null_empty_or_zero() -> None:
    made = running_aggregate(
        KeyedRows("op", row_type("user long, n long"), ("user",), ()),
        "user long, q double, m double, s long, often array<bigint>, c long, d long",
        {
            "q": quantile("n", 0.5), "m": mean("n"), "s": summed("n"), "often": top_values("n", 2), "c": count("n"),
            "d": count_distinct("n"),
        },
    )  # fmt: skip
    driven = Driven(made)
    driven.batch(pa.table({"user": pa.array([1], pa.int64()), "n": pa.array([None], pa.int64())}), None)
    assert driven.rows == [{"user": 1, "q": None, "m": None, "s": None, "often": [], "c": 0, "d": 0}]


WRONG: list[tuple[Callable[[int], Any], Any, str]] = [
    (lambda total: "many", int, "result() of 'own' failed for user=1: TypeError: 'many' is no int64: "),
    (lambda total: total + 0.5, int, "result() of 'own' failed for user=1: TypeError: 2.5 is no int64: it has a fraction"),
    (lambda total: datetime(2026, 1, 1), datetime, "is no timestamp[us, tz=UTC]: it has no time zone"),
]  # fmt: skip


@pytest.mark.parametrize(("result", "output", "message"), WRONG)
def test_a_result_of_another_type_is_told_with_its_key(result: Any, output: Any, message: str) -> None:
    own = aggregate("n", create=int, add=plus, merge=plus, result=result, state=int, output=output)
    kind = "timestamp" if output is datetime else "long"
    made = running_aggregate(
        KeyedRows("op", row_type(ROWS), ("user",), ()), f"user long, own {kind}", {"own": own}
    )
    with pytest.raises(StateflowError) as failed:
        Driven(made).batch(table((1, 2, 0)), None)
    assert message in str(failed.value)


def test_an_accumulator_of_another_type_is_told_with_its_key() -> None:
    own = aggregate("n", create=int, add=lambda total, n: str(n), merge=plus, state=int)
    made = running_aggregate(
        KeyedRows("op", row_type(ROWS), ("user",), ()), "user long, own long", {"own": own}
    )
    with refused(UserCodeError, "operator 'op'", "add() of 'own'", "user=1", "'2'"):
        Driven(made).batch(table((1, 2, 0)), None)


def test_code_of_ones_own_gets_values_as_the_rows_have_them() -> None:
    rows = KeyedRows("op", row_type("user long, day date, price decimal(10,2)"), ("user",), ())
    made = running_aggregate(
        rows, "user long, days array<date>, total decimal(20,2), newest date",
        {
            "days": aggregate("day", create=list, add=lambda days, day: [*days, day], merge=plus, state=list[date]),
            "total": aggregate("price", create=Decimal, add=plus, merge=plus, state=Decimal, output=Annotated[Decimal, "decimal(20,2)"]),
            "newest": sf.max("day"),
        },
    )  # fmt: skip
    day = date(2026, 1, 2)
    batch = pa.table({
        "user": pa.array([1], pa.int64()), "day": pa.array([day]), "price": pa.array([Decimal("1.50")], pa.decimal128(10, 2)),
    })  # fmt: skip
    assert Driven(made).batch(batch, None) == [
        {"user": 1, "days": [day], "total": Decimal("1.50"), "newest": day}
    ]


def test_the_harness_of_a_pipeline_has_the_letters_with_all_columns() -> None:
    @sf.pipeline("p")
    def pipeline(flow: sf.Flow) -> None:
        keyed = flow.source("in", sf.delta("/in"), "user long, n long, note string").key_by("user")
        own = sf.aggregate("n", create=int, add=add, merge=plus, state=int)
        out = keyed.aggregate("op", "user long, own long", on_error="dead_letter", own=own)
        out.upsert("out", sf.delta("/out"))
        out.dead_letters.append("dead", sf.delta("/dead"))

    run = ColumnarHarness.of(pipeline.build(), "op")
    rows = [{"user": 1, "n": BAD, "note": "why"}, {"user": 2, "n": 1, "note": "-"}]
    assert run.rows(*rows) == [{"user": 2, "own": 1}]
    (letter,) = run.dead_letters
    assert letter["error"] == "add() of 'own': ValueError: thirteen"
    assert json.loads(letter["rows"]) == [{"user": 1, "n": BAD, "note": "why"}]
    assert "raise ValueError" in letter["traceback"]


def test_on_error_is_fail_or_dead_letter() -> None:
    rows = KeyedRows("op", row_type(ROWS), ("user",), ())
    with refused(UsageError, "operator 'op'", "on_error", "is 'fail'", "or 'dead_letter'", "not 'ignore'"):
        running_aggregate(rows, "user long, n long", {"n": count()}, on_error="ignore")


@pytest.mark.parametrize("kind", ["tumbling", "changes", "on_time", "session"])
def test_only_the_key_that_fails_is_diverted_whatever_stands_before_it(kind: str) -> None:
    """Of a batch some windows have state and some have none, some have ended and some have not."""
    driven = Driven(declared(kind, "merge", "dead_letter"))
    driven.batch(table((3, BAD, 1), (4, 1, 1)), 0)
    driven.batch(table((1, 1, 15), (2, 1, 1), (3, 2, 2), (4, 1, 2)), 1 * SECOND if kind == "session" else 0)
    assert [letter["key"] for letter in driven.sides["dead_letters"]] == ["3"]
    if kind == "on_time":
        driven.batch(table((1, 1, 16), (2, 1, 2), (3, 2, 2), (4, 1, 2)), 12 * SECOND)
        assert [letter["key"] for letter in driven.sides["dead_letters"]] == ["3", "3"]
    driven.batch(None, END)
    assert {row["user"] for row in driven.rows} == {1, 2, 3, 4}


def test_a_window_that_is_lost_in_one_block_of_state_does_not_come_out_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "BLOCK", 2)
    driven = Driven(declared("cumulative", "merge", "dead_letter"))
    driven.batch(table((1, BAD, 1), (1, 2, 6), (1, 3, 11), (2, 1, 1), (2, 1, 11)), 0)
    driven.batch(None, END)
    ends = [(row["user"], row["window_end"].second, row["own"]) for row in driven.rows]
    assert sorted(ends) == [(1, 5, MARK), (2, 5, 1), (2, 10, 1), (2, 15, 2), (2, 20, 2)]
    assert [letter["key"] for letter in driven.sides["dead_letters"]] == ["1", "1", "1"]
