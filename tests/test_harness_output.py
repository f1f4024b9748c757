"""Rows that a process puts out in the harness: those that a run would refuse are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

import stateflow as sf
from stateflow.testing import KeyedHarness
from tests.refusals.refusal import refused
from tests.test_harness import LARGE, START, Fragile, Order, Total, at


def test_a_side_output_is_no_text() -> None:
    class Emitting(sf.KeyedProcess[int, Order, Total]):
        def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> None:
            ctx.emit("large", next(rows))  # type: ignore[arg-type]

    with refused(sf.UsageError, "ctx.emit", "takes an output and a row", "not 'large'"):
        KeyedHarness(Emitting, outputs=[LARGE]).rows(Order(1, "a", 1.0))


def test_a_side_output_that_is_not_listed_is_refused() -> None:
    with refused(sf.UsageError, "side output 'large'", "list it in outputs"):
        KeyedHarness(Fragile).rows(Order(1, "a", 1.0))


class Putting(sf.KeyedProcess[int, Order, Any]):
    """Puts out what it is told to."""

    rows: Any = None

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Any:
        ctx.emit(LARGE, next(rows))
        return Putting.rows


def put_out(rows: Any, **options: Any) -> list[Any]:
    Putting.rows = rows
    return KeyedHarness(Putting, outputs=[LARGE], **options).rows(Order(1, "a", 1.0))


@pytest.mark.parametrize("on_error", ["fail", "dead_letter"])
@pytest.mark.parametrize("row", ["abc", b"abc", {"user": 1}, Total(1, 2.0), 2.5])
def test_one_row_returned_in_the_place_of_many_is_refused(row: Any, on_error: str) -> None:
    harness = KeyedHarness(Putting, outputs=[LARGE], on_error=on_error)
    Putting.rows = row
    if on_error == "fail":
        with refused(sf.UsageError, "operator 'Putting' returned", "yield each row, or return a list"):
            harness.rows(Order(1, "a", 1.0))
    else:
        assert harness.rows(Order(1, "a", 1.0)) == []
        assert "yield each row, or return a list" in harness.dead_letters[0][2]


@pytest.mark.parametrize(
    ("rows", "output"), [([(1, 2), (1, None)], "k long, n long not null"), ([None], "n long NOT NULL")]
)
def test_none_in_a_column_that_is_declared_as_not_null_is_refused(rows: Any, output: str) -> None:
    with refused(sf.UsageError, "operator 'Putting' put out None", "column 'n'", "declares as not null"):
        put_out(rows, output=output)
    diverting = KeyedHarness(Putting, outputs=[LARGE], output=output, on_error="dead_letter")
    assert diverting.rows(Order(1, "a", 1.0)) == []
    assert "column 'n', which its output declares as not null" in diverting.dead_letters[0][2]
    assert put_out(rows, output=output.lower().replace(" not null", "")) == rows


def test_none_in_such_a_column_to_the_side_is_refused() -> None:
    side: sf.Output[Any] = sf.output("side", "n long not null")

    class Emitting(sf.KeyedProcess[int, Order, Total]):
        def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> None:
            ctx.emit(side, (None,))

    with refused(sf.UsageError, "side output 'side'", "put out None in column 'n'", "not null"):
        KeyedHarness(Emitting, outputs=[side]).rows(Order(1, "a", 1.0))


def test_a_single_column_takes_bare_values() -> None:
    assert put_out([2.5, 3.0], output="price double") == [2.5, 3.0]
    assert put_out(["abc"], output="name string") == ["abc"]
    assert put_out([(2.5,)], output="price double") == [(2.5,)]


@pytest.mark.parametrize(
    ("rows", "output", "named"),
    [
        (
            ["abc"],
            "price double",
            ("put out 'abc'", "column 'price'", "a double", "convert the value in the code"),
        ),
        ([2.5], "user long, price double", ("put out 2.5", "not 2 values (user, price)")),
        ([(1, 2.5)], "price double", ("put out (1, 2.5)", "not one value (price)")),
        ([Order(1, "a", 1.0)], Total, ("no Total", "yield Total")),
    ],
)
def test_rows_that_a_run_would_refuse_are_refused(rows: Any, output: Any, named: tuple[str, ...]) -> None:
    with refused(sf.UsageError, "operator 'Putting'", *named):
        put_out(rows, output=output)


class Misfits(sf.KeyedProcess[int, Order, int]):
    """Puts out what does not fit, from rows, timers and to the side, for the users that it is told of."""

    seen = sf.ValueState(int, default=0)
    later = sf.Timer("event")

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[int]:
        self.seen.value += 1
        for row in rows:
            if row.sku == "later":
                self.later.set(at(60))
            elif row.sku == "side":
                ctx.emit(LARGE, Order(1 << 70, "too much", 1.0))
            yield 1 << 70 if row.sku == "much" else key

    @later.fires
    def too_much(self, key: int, when: datetime, ctx: sf.Context) -> Iterator[int]:
        self.seen.value += 1
        yield 1 << 70


def test_rows_that_do_not_fit_make_their_key_a_dead_letter_and_no_other() -> None:
    harness = KeyedHarness(Misfits, output="n long", outputs=[LARGE], on_error="dead_letter")
    out = harness.rows(
        Order(1, "fits", 1.0), Order(2, "much", 1.0), Order(3, "side", 1.0), Order(4, "later", 1.0, at(1))
    )
    assert out == [1, 4]
    assert harness.side(LARGE) == []
    assert harness.advance(at(60)) == []
    assert [harness.snapshot(user).get("seen") for user in (1, 2, 3, 4)] == [1, None, None, 1]
    assert [(letter[1], letter[2].split(":")[1]) for letter in harness.dead_letters] == [
        ("2", " operator 'Misfits' put out 1180591620717411303424 in column 'n', which is a int64"),
        ("3", " operator 'Misfits', side output 'large' put out 1180591620717411303424 in column 'user', which is a int64"),
        ("4", " operator 'Misfits' put out 1180591620717411303424 in column 'n', which is a int64"),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "declared",
    ["long", "int", "string", "double", "boolean", "timestamp", "date", "decimal(4,2)", "array<long>"],
)
@pytest.mark.parametrize(
    "value",
    [None, True, 1, -(1 << 31), 1 << 31, -(1 << 63), 1 << 63, 2.0, 2.5, 1 << 70, "a", "\xe4", "\ud800", b"a", b"\xff", at(1),
     datetime(2026, 1, 1), START.date(), Decimal("1.5"), Decimal("100"), [1], ["a"], [1 << 63]],
    ids=ascii,
)  # fmt: skip
def test_what_is_a_dead_letter_is_what_fails_a_batch_otherwise(declared: str, value: Any) -> None:
    fits: list[Any] = []
    with suppress(sf.UsageError):
        fits = put_out([value], output=f"c {declared}")
    assert put_out([value], output=f"c {declared}", on_error="dead_letter") == fits


def test_a_batch_whose_rows_do_not_fit_changes_nothing() -> None:
    harness = KeyedHarness(Fragile, output="sku long", outputs=[LARGE])
    with refused(sf.UsageError, "'a' in column 'sku'"):
        harness.rows(Order(1, "a", 1.0))
    assert (harness.snapshot(1), harness.output, harness.sides) == ({}, [], {})


def test_a_side_output_takes_rows_of_its_type_only() -> None:
    class Emitting(sf.KeyedProcess[int, Order, Total]):
        def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> None:
            ctx.emit(LARGE, Total(1, 1.0))

    with refused(sf.UsageError, "side output 'large'", "Total", "no Order"):
        KeyedHarness(Emitting, outputs=[LARGE]).rows(Order(1, "a", 1.0))
    with refused(sf.UsageError, "two side outputs have one name"):
        KeyedHarness(Emitting, outputs=[LARGE, LARGE])


# ---- what user code takes for a value, and for a list ----
