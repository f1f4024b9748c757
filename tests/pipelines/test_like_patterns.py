"""LIKE in a condition means what it means in Spark's SQL; a table, whose answers `tests/spark/test_deletes.py` asks Spark for."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest

from stateflow.pipelines.conditions.evaluation import holds
from stateflow.pipelines.conditions.expression import condition_of
from stateflow.pipelines.rows.row_type import row_type

TEXTS = [
    "a", "a%", "%", "_", "a_", "ab", "a_c", "abc", "it's", "", "\\", "a\\", "a\\b", "\\%", "a\nb", "a\tb", "\x00", "\x1a", "é",
    "😀", "A", "tea_1", "teapot", "n", "anb", "a.b", "a+b", "(a)", "[ab]", "a b", "^a$", None,
]  # fmt: skip
PATTERNS = [
    r"s LIKE 'a%'", r"s LIKE '%\%'", r"s LIKE '%\\%'", r"s LIKE '\%'", r"s LIKE '\_'", r"s LIKE 'a\_'", r"s LIKE 'tea\_%'",
    r"s LIKE 'tea_%'", r"s LIKE '%\\\\%'", r"s LIKE '%\\\\'", r"s LIKE '\\\\\%'", r"s LIKE 'a\\\\b'", r"s LIKE ''", r"s LIKE '%'",
    r"s LIKE '_'", r"s LIKE '__'", r"s LIKE '%''%'", r"s LIKE 'it\'s'", r"s LIKE 'a\nb'", r"s LIKE 'a\tb'", r"s LIKE '\0'",
    r"s LIKE '\Z'", r"s LIKE '\u00e9'", r"s LIKE '\U0001F600'", r"s LIKE '\101'", r"s LIKE 'a.b'", r"s LIKE 'a+b'", r"s LIKE '(a)'",
    r"s LIKE '[ab]'", r"s LIKE 'a b'", r"s LIKE '^a$'", r"s NOT LIKE '%\%'", r"NOT s LIKE 'a\_c'", r"s = 'a\\'", r"s = '\%'",
    r"s = 'a\nb'", r"s = '\\%'", r"s IN ('a\\b', '\_')", r"s = '\n'", r"s = 'a\qb'", r"s LIKE '\n%'", r"s = '\400'", r"s = '\u00E9'",
]  # fmt: skip


@dataclass
class Text:
    s: str | None


def answers(text: str) -> list[str | None]:
    condition = condition_of("a test", text, row_type(Text))
    column = pa.array(TEXTS, pa.string())
    found = holds(condition, lambda name: column, len(TEXTS)).tolist()
    return [one for one, there in zip(TEXTS, found, strict=True) if there]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"s LIKE '%\%'", ["a%", "%", "\\%"]),
        (r"s LIKE '%\\%'", ["a%", "%", "\\%"]),
        (r"s LIKE 'tea\_%'", ["tea_1"]),
        (r"s LIKE 'tea_%'", ["tea_1", "teapot"]),
        (r"s LIKE '%\\\\%'", ["\\", "a\\", "a\\b", "\\%"]),
        (r"s LIKE 'a\nb'", ["a\nb"]),
        (r"s = '\%'", ["\\%"]),
        (r"s = 'it\'s' OR s = 'it''s'", ["it's"]),
        (r"s LIKE '\101'", ["A"]),
        (r"s = '\U0001F600'", ["😀"]),
    ],
)
def test_a_backslash_takes_what_is_behind_it_as_itself(text: str, found: list[str]) -> None:
    assert answers(text) == found


@dataclass
class Number:
    i: int


@pytest.mark.parametrize("number", [2**63 - 1, 1 - 2**63])
def test_the_largest_numbers_are_compared(number: int) -> None:
    condition = condition_of("a test", f"i = {number}", row_type(Number))
    column = pa.array([1, 2**63 - 1, 1 - 2**63])
    assert column.filter(pa.array(holds(condition, lambda name: column, 3))).to_pylist() == [number]


@pytest.mark.parametrize("number", ["1e308", "9" * 38 + ".0", "0." + "1" * 38])
def test_numbers_that_a_column_holds_are_taken(number: str) -> None:
    condition_of("a test", f"i = {number}", row_type(Number))
