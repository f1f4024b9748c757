"""Conditions made at random, and rows for them with values that are near each other, so that comparisons go either way."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

SCHEMA = (
    "i8 tinyint, i16 smallint, i32 int, i64 bigint, f32 float, f64 double, n2 decimal(10,2), n6 decimal(20,6), "
    "s string, o string, b boolean, c boolean, d date, e date, t timestamp, u timestamp"
)
_WORDS = ["", "a", "A", "ab", "abc", "a%", "a_c", "it's", "a\\b", "a\nb", "é", "😀", " a"]
_PATTERNS = ["a%", "%b%", "_b", "a\\_c", "a\\%", "%", "", "_", "%''%", "é", "a\\\\\\\\b", "a\\nb"]
_INTEGERS = ("i8", "i16", "i32", "i64")
_DECIMALS = ("n2", "n6")
_FLOATS = ("f32", "f64")


_SMALL = [-3, -2, -1, 0, 1, 2, 3, 5]


def rows(random: Random, count: int, *, large: bool = False) -> list[tuple[Any, ...]]:
    """With `large`, half of the whole numbers are those whose sums overflow, or which no float or double is."""

    def whole(bits: int) -> Callable[[], int]:
        ends = [-(1 << bits), (1 << bits) - 1]
        big = [number for number in (1 << 24, 1 << 53) if bits > 24 and number < 1 << bits]
        return lambda: random.choice(
            _SMALL + (ends + [near for number in big for near in (number, number + 1)] if large else [])
        )

    floats = lambda: random.choice(  # noqa: E731
        [-2.5, -0.0, 0.0, 0.1, 0.5, 1.0, 3.0, math.nan, math.inf, -math.inf] + [2.0**24, 2.0**53] * large
    )
    cents = lambda: Decimal(random.choice(["-2.50", "0.00", "0.10", "0.33", "1.00", "3.00", "5.01"]))  # noqa: E731
    days = lambda: date(2024, 2, 28) + timedelta(random.randrange(4))  # noqa: E731
    instants = lambda: datetime(2024, 2, 28, tzinfo=UTC) + timedelta(hours=random.choice([0, 1, 24]))  # noqa: E731
    word = lambda: random.choice(_WORDS)  # noqa: E731
    flag = lambda: random.random() < 0.5  # noqa: E731
    makers: list[Callable[[], Any]] = [
        whole(7), whole(15), whole(31), whole(63), floats, floats, cents, cents, word, word, flag, flag, days, days, instants, instants,
    ]  # fmt: skip
    return [tuple(None if random.random() < 0.2 else make() for make in makers) for _ in range(count)]


class Conditions:
    def __init__(self, random: Random, signs: str) -> None:
        self._random, self._signs = random, signs

    def condition(self, depth: int) -> str:
        one = self._random.random()
        if depth and one < 0.45:
            word = self._random.choice([" AND ", " OR ", " or\n"])
            return word.join(self.condition(depth - 1) for _ in range(self._random.choice([2, 2, 3])))
        if depth and one < 0.6:
            return f"NOT {self._inside(depth)}"
        if depth and one < 0.65:
            return f"{self._inside(depth)} {self._random.choice(['=', '<>'])} {self._inside(depth)}"
        if depth and one < 0.7:
            return f"{self._inside(depth)} IS{self._random.choice(['', ' NOT'])} NULL"
        if depth and one < 0.8:
            return self._inside(depth)
        return self._plain()

    def _inside(self, depth: int) -> str:
        return f"({self.condition(depth - 1)})"

    def _plain(self) -> str:
        value = self._random.choice(
            [self._number, self._number, self._number, self._text, self._day, self._instant, self._flag]
        )
        left = value()
        if left in ("b", "c") and self._random.random() < 0.3:
            return left
        no = self._random.choice(["", "", "NOT "])
        match self._random.randrange(6):
            case 0:
                return f"{left} IS {no}NULL"
            case 1:
                return f"{left} {no}IN ({', '.join(value() for _ in range(self._random.randint(1, 4)))})"
            case 2 if value != self._flag:
                return f"{left} {no}BETWEEN {value()} AND {value()}"
            case 3 if value == self._text:
                return f"{self._random.choice(['s', 'o'])} {no}LIKE '{self._random.choice(_PATTERNS)}'"
        sign = self._random.choice(["=", "==", "<>", "!=", "<", "<=", ">", ">="])
        return f"{left} {sign} {value()}"

    def _number(self) -> str:
        one = self._random.random()
        if one < 0.3:
            return self._random.choice(
                ["0", "1", "2", "-1", "3", "2.5", ".5", "0.1", "1.00", "1e0", "-2.5E0", "3.", "NULL"]
            )
        if one < 0.75:
            return self._random.choice([*_INTEGERS, *_FLOATS, *_DECIMALS])
        return self._sum()

    def _sum(self) -> str:
        left, right = (self._random.choice([*_INTEGERS, *_FLOATS, *_DECIMALS, "2", "0.5"]) for _ in range(2))
        return f"{left} {self._random.choice(self._signs)} {right}"

    def _text(self) -> str:
        literal = (
            self._random.choice(_WORDS).replace("\\", "\\\\").replace("'", self._random.choice(["''", "\\'"]))
        )
        return self._random.choice(["s", "o", f"'{literal}'"])

    def _day(self) -> str:
        return self._random.choice(["d", "e", "'2024-02-29'"])

    def _instant(self) -> str:
        return self._random.choice(["t", "u", "'2024-02-28 01:00:00'", "'2024-02-29T02:00:00+01:00'"])

    def _flag(self) -> str:
        return self._random.choice(["b", "c", "TRUE", "false", "NULL"])
