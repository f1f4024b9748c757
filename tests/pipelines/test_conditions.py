"""What a condition may say, and how it is read. Whether it then means what it means in Spark, `tests/spark/test_conditions_against_spark.py` asks."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from math import inf, nan
from typing import Any

import pytest

import stateflow as sf
from stateflow.errors import UsageError, UserCodeError
from stateflow.format.records import StateSchema
from stateflow.pipelines.conditions.expression import Expression, condition_of
from stateflow.pipelines.rows.row_type import row_type
from stateflow.reading.predicates import Predicate, condition
from stateflow.testing import ColumnarHarness
from tests.refusals.refusal import refused

ROWS = row_type(
    "a int, b int, c int, p boolean, q boolean, r boolean, s string, date date, show int, case boolean, symmetric int"
)


def said(text: str) -> str:
    """The condition with every operation in brackets."""
    return shown(condition_of("a test", text, ROWS))


def shown(one: Expression) -> str:
    if one.operation in ("column", "literal"):
        return str(one.value)
    sides = [shown(argument) for argument in one.arguments]
    if one.operation == "LIKE":
        sides.append(one.value)
    return f"({f' {one.operation} '.join(sides)})" if len(sides) > 1 else f"({one.operation} {sides[0]})"


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("p OR q AND r", "(p OR (q AND r))"),
        ("NOT p AND q", "((NOT p) AND q)"),
        ("NOT a = b", "(NOT (a = b))"),
        ("not p or not not q", "((NOT p) OR (NOT (NOT q)))"),
        ("a - b - c == 1", "(((a - b) - c) = 1)"),
        ("a - b * c % 2 / 3 < 1", "((a - (((b * c) % 2) / 3)) < 1)"),
        ("a % b * 2 <> c", "(((a % b) * 2) <> c)"),
        ("-a * -2 != -(b)", "(((0 - a) * (0 - 2)) <> (0 - b))"),
        ("a+1>2-b", "((a + 1) > (2 - b))"),
        ("a BETWEEN 1 AND b + 1 AND p", "(((a >= 1) AND (a <= (b + 1))) AND p)"),
        ("a NOT BETWEEN 1 AND 2", "(NOT ((a >= 1) AND (a <= 2)))"),
        ("a IN (1, b, (c)) OR q", "(((a = 1) OR ((a = b) OR (a = c))) OR q)"),
        ("a NOT IN (1)", "(NOT (a = 1))"),
        ("s NOT LIKE 'x%' AND s LIKE ('it''s')", "((NOT (s LIKE x%)) AND (s LIKE it's))"),
        ("(a = b) IS NOT NULL", "(NOT (IS NULL (a = b)))"),
        ("p = (a IS NULL)", "(p = (IS NULL a))"),
        ("a > .5 OR a < 1.e2 OR a = 1e3-2", "((a > 0.5) OR ((a < 100.0) OR (a = (1000.0 - 2))))"),
        ("show > 1", "(show > 1)"),
        ("date = '2024-02-29' AND case", "((date = 2024-02-29) AND case)"),
        ("a BETWEEN symmetric AND 3", "((a >= symmetric) AND (a <= 3))"),
        ("`a` = 1 - -1", "(a = (1 - (0 - 1)))"),
        ("s = '-- /* no comment */'", "(s = -- /* no comment */)"),
        ("a\u00a0>\n\t1 ", "(a > 1)"),
    ],
)
def test_a_condition_is_read_as_sql(text: str, means: str) -> None:
    assert said(text) == means


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("", "its end"), ("a >", "its end"), ("p AND", "its end"), ("*", "its end"), ("a = 1 -", "its end"),
        ("p AND AND q", "AND q"), ("AND (p", "AND (p"), ("(p", "p"), ("p)", ")"), ("p) OR (q", ") OR (q"), ("()", "()"),
        ("a b", "b"), ("p as q", "as q"), ("a, b", ", b"), ("(a, b) = (1, 2)", "a, b) = (1, 2)"), ("p; q", "; q"),
        # Spark and sqlglot read these differently.
        ("a = b IS NULL", ""), ("a < b < c", "a < b < c"), ("a = b = p", "a = b = p"), ("p = NOT q", "q"),
        ("a IS NULL IS NULL", "a IS NULL IS NULL"), ("a BETWEEN 1 AND 2 = p", "a BETWEEN 1 AND 2 = p"),
        # Both take these, but a condition has no such thing.
        ("a <=> b", "<=> b"), ("p IS TRUE", "p IS TRUE"), ("p IS NOT FALSE", "p IS NOT FALSE"), ("a IS (NULL)", "a IS (NULL)"),
        ("a IS NOT DISTINCT FROM b", "FROM b"), ("s LIKE 'a' ESCAPE '!'", "ESCAPE '!'"), ("s || s = 'a'", "|| s = 'a'"),
        ("s RLIKE 'a'", "RLIKE 'a'"), ("a = +1", "+1"), ("date = DATE '2024-02-29'", "'2024-02-29'"), ("a = 1L", "L"),
        ("s = 'a' 'b'", "'b'"), ('s = "a"', '"a"'), ("s = r'a'", "'a'"), ("s = X'41'", "'41'"), ("CASE WHEN p THEN q END", "WHEN p THEN q END"),
        ("a::int = 1", "::int = 1"), ("s[0] = 1", "[0] = 1"), ("t.a = 1", ".a = 1"), ("a = :x", ":x"), ("a = ?", "?"),
        ("a IN (SELECT b)", "b)"), ("p ! = q", "! = q"),
        # sqlglot takes these, and Spark does not.
        ("a ISNULL", "ISNULL"), ("a NOT", "NOT"), ("a NOT NULL", "NOT NULL"), ("a NOT IS NULL", "NOT IS NULL"), ("a IN b", "a IN b"),
        ("a IN ()", "a IN ()"), ("a IN (1,)", "a IN (1,)"), ("a BETWEEN 1 - AND (2)", ""),
        ("a BETWEEN SYMMETRIC 1 AND 2", "a BETWEEN SYMMETRIC 1 AND 2"),
        # To Spark these are comments.
        ("a = 1 --1", "--1"), ("a /* b */ = 1", "/* b */ = 1"), ("{{ a }} = 1", "{{ a }} = 1"),
    ],
)  # fmt: skip
def test_everything_else_is_refused_where_it_begins(text: str, at: str) -> None:
    with pytest.raises(UsageError) as caught:
        said(text)
    begins = f"a test: the condition {text!r} cannot be read at {repr(at) if at else ''}"
    assert str(caught.value).startswith(begins)
    assert str(caught.value).endswith(
        ": it takes comparisons, AND, OR, NOT, IS NULL, IN, BETWEEN, LIKE and arithmetic; for anything else, "
        "compute a boolean column with transform()"
    )


def test_thousands_of_values_are_taken() -> None:
    values = ", ".join(map(str, range(3000)))
    assert said(f"a IN ({values})").count("=") == 3000
    assert said(" OR ".join(["p"] * 3000)).count("OR") == 2999


def test_only_a_condition_imports_sqlglot() -> None:
    code = (
        "import sys, stateflow as sf\n"
        "from stateflow.pipelines.ready import aggregates\n"
        "from stateflow.pipelines.rows.row_type import row_type\n"
        "rows = row_type('a int, p boolean')\n"
        "aggregates.condition_of_rows('op', 'n', 'p', rows)\n"
        "print('sqlglot' in sys.modules)\n"
        "aggregates.condition_of_rows('op', 'n', 'a > 1', rows)\n"
        "print('sqlglot' in sys.modules)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.split() == ["False", "True"]


def counted(where: str) -> ColumnarHarness:
    flow = sf.Flow("numbers")
    rows = flow.source("numbers", lambda spark: None, "user long, v long")
    totals = rows.key_by("user").aggregate("totals", "user long, n long", n=sf.count(where=where))
    totals.for_each_batch("out", lambda frame, delivery: None)
    return ColumnarHarness.of(flow, "totals")


@pytest.mark.parametrize("where", ["v / 3 > 1", "v > 2.5e0", "v % 10 = 3"])
def test_a_whole_number_that_no_double_is_fails_no_batch(where: str) -> None:
    (found,) = counted(where).rows({"user": 1, "v": 9007199254740993}, {"user": 1, "v": 0})
    assert found["n"] == 1


def test_a_sum_that_overflows_says_what_to_write_and_that_does() -> None:
    with refused(
        UserCodeError,
        "operator 'totals'",
        "OverflowError",
        "v * 4",
        "int64",
        "1e0 *",
        "nothing of the batch was stored",
    ):
        counted("v * 4 > 1").rows({"user": 1, "v": 2**62})
    (found,) = counted("1e0 * v * 4 > 1").rows({"user": 1, "v": 2**62})
    assert found["n"] == 1


def of_state(text: str, kind: str) -> Predicate:
    return condition(text, StateSchema(id=1, kind="value", value=kind))


@pytest.mark.parametrize(
    ("text", "kind", "value", "holds"),
    [
        ("value % 10 = 9", "int", 1000000000000000019, True),
        ("value > 1.0", "float", nan, True),
        ("value = value", "float", nan, True),
        ("value % 2.0 = 1", "float", inf, False),
        ("value > previous", "int", 3, False),
        ("value * 2 = 3", "decimal", Decimal("1.5"), True),
        ("value = 46980911.48e0", "decimal", Decimal("46980911.48"), True),
        ("value LIKE 'a%'", "optional<str>", None, False),
    ],
)
def test_a_search_in_state_has_the_answers_of_an_aggregate(
    text: str, kind: str, value: Any, holds: bool
) -> None:
    assert of_state(text, kind).holds(value, None) is holds


def test_of_many_values_those_in_front_of_one_that_overflows_are_told() -> None:
    answers = iter(of_state("value * 4 > 4", "int").of_each([(1, None), (2, None), (2**62, None)]))
    assert [next(answers), next(answers)] == [False, True]
    with refused(UserCodeError, "--first", "value * 4", "does not fit"):
        next(answers)
    assert of_state("1e0 * value * 4 > 4", "int").holds(2**62, None)
