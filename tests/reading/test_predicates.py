"""Conditions over a state's values: which names they have, and what each stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import stateflow as sf
from stateflow.errors import UsageError
from stateflow.format.records import StateSchema
from stateflow.reading.predicates import condition, function
from tests.jobs.queried import Row, states_of
from tests.refusals.refusal import refused


class Totals(msgspec.Struct):
    total: float
    previous_total: float
    previous_day: str
    value: int = 0


class Kept(sf.KeyedProcess[int, Row, Row]):
    totals = sf.ValueState(Totals)
    alone = sf.ValueState(float)

    def process(self, key: int, rows: Any, ctx: Any) -> None:
        """Nothing runs here."""


TOTALS, ALONE = (states_of(Kept)[name] for name in ("totals", "alone"))


def of(total: float, previous_total: float = 0.0, day: str = "Monday", value: int = 0) -> dict[str, Any]:
    return {"total": total, "previous_total": previous_total, "previous_day": day, "value": value}


@pytest.mark.parametrize("text", ["previous_total > 5", "total > 5 AND previous_total < total"])
def test_a_field_that_is_called_like_the_former_value_of_another_is_refused(text: str) -> None:
    with refused(UsageError, "--first", "'previous_total'", "'total'", "a Python function"):
        condition(text, TOTALS)
    with refused(UsageError, "--expect", "'previous_total'", "--expect-value"):
        condition(text, TOTALS, "--expect")


@pytest.mark.parametrize(
    ("schema", "text", "now", "before", "holds", "uses_previous"),
    [
        (TOTALS, "total > 5", of(6.0), of(1.0, 9.0), True, False),
        (TOTALS, "previous_day = 'Monday'", of(6.0), None, True, False),
        (TOTALS, "previous_value = 3", of(6.0), of(6.0, value=3), True, True),
        (TOTALS, "previous_previous_total = 9", of(6.0, 1.0), of(1.0, 9.0), True, True),
        (TOTALS, "value = 0 AND total IS NULL", None, of(1.0), False, False),
        (ALONE, "value > previous", 2.0, 1.0, True, True),
        (ALONE, "value IS NULL AND previous = 1", None, 1.0, True, True),
    ],
)
def test_a_condition_sees_the_value_and_the_one_before(
    schema: StateSchema, text: str, now: Any, before: Any, holds: bool, uses_previous: bool
) -> None:
    found = condition(text, schema)
    assert (found.holds(now, before), found.uses_previous) == (holds, uses_previous)


@pytest.mark.parametrize(
    ("call", "uses_previous"),
    [
        (lambda value: value > 20, False),
        (lambda value=0: value > 20, False),
        (lambda value, *, limit=20: value > limit, False),
        (lambda value, **options: value > options.get("limit", 20), False),
        (lambda value, previous: value > 20 > previous, True),
        (lambda value, previous, limit=20: value > limit > previous, True),
    ],
)
def test_a_function_gets_the_value_and_the_one_before_and_keeps_its_defaults(
    call: Callable[..., bool], uses_previous: bool
) -> None:
    found = function("checks.py:wrong", call)
    assert found.uses_previous is uses_previous
    assert [found.holds(*pair) for pair in ((30, 10), (15, 10))] == [True, False]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda value, limit=1000: True, ("'limit'", "leave the default out", "`*, limit=...`")),
        (lambda value, limit=1000, *rest: True, ("*rest", "name its arguments")),
        (lambda *values: True, ("*values", "the value, or the value and the previous one")),
        (lambda: True, ("the value, or the value and the previous one",)),
        (lambda value, previous, limit: True, ("further argument", "a default")),
        (lambda value, *, limit: True, ("further argument", "a default")),
    ],
)
def test_a_function_whose_arguments_are_not_clear_is_refused(
    call: Callable[..., bool], named: tuple[str, ...]
) -> None:
    with refused(UsageError, "checks.py:wrong", *named):
        function("checks.py:wrong", call)
