"""Conditions of aggregates: the part of SQL that a `WHERE` over one row needs, parsed and checked when the pipeline is built.

They are evaluated beside the aggregates and not by Spark, so that the test harness says the same as a run.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from stateflow.errors import UsageError
from stateflow.pipelines.like_patterns import WrongPatternError, parts
from stateflow.pipelines.rows import RowType

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+(?:[eE][+-]?\d+)?)"
    r"|(?P<text>'(?:[^'\\]|''|\\.)*')|(?P<quoted>`[^`]+`)|(?P<word>[A-Za-z_]\w*)|(?P<sign><=>|<>|!=|<=|>=|==|[-+*/%(),<>=]))"
)
_DIGITS = 38
"""Of a decimal."""
_COMPARISONS = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_WORDS = {"AND", "OR", "NOT", "IS", "NULL", "IN", "BETWEEN", "LIKE", "TRUE", "FALSE"}
_KINDS = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint", "float", "double"), "number"),
    "string": "string",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp",
}


@dataclass(frozen=True)
class Expression:
    """A node of a condition. `kind` is what its value is: a number, a string, a boolean, a date, a timestamp or null."""

    operation: str
    """`column`, `literal`, or what is done with the arguments."""
    kind: str
    arguments: tuple[Expression, ...] = ()
    value: Any = None
    """The name of a column, or a literal."""

    def columns(self) -> Iterator[str]:
        if self.operation == "column":
            yield self.value
        for argument in self.arguments:
            yield from argument.columns()


def is_name(condition: str) -> bool:
    """Whether the condition is a column alone."""
    return re.fullmatch(r"[A-Za-z_]\w*", condition) is not None and condition.upper() not in _WORDS


def condition_of(where: str, text: str, rows: RowType) -> Expression:
    """The condition, checked against the rows; `where` names the operator and the aggregate."""
    parser = _Parser(where, text, rows)
    expression = parser.any_of()
    parser.end()
    if expression.kind not in ("boolean", "null"):
        raise UsageError(
            f'{where}: the condition {text!r} is a {expression.kind}: compare it with something, as in "amount > 100"'
        )
    return expression


class _Parser:
    def __init__(self, where: str, text: str, rows: RowType) -> None:
        self._where, self._text, self._rows = where, text, rows
        self._tokens = list(self._cut())
        self._at = 0

    def _cut(self) -> Iterator[tuple[str, str]]:
        at, text = 0, self._text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._wrong(text[at:].strip())
            kind = str(match.lastgroup)
            token = match[kind]
            if kind == "word" and token.upper() in _WORDS:
                kind, token = "sign", token.upper()
            yield kind, token
            at = match.end()

    def _wrong(self, at: str) -> UsageError:
        return UsageError(
            f"{self._where}: the condition {self._text!r} cannot be read at {at or 'its end'!r}: it takes comparisons, AND, OR, NOT, "
            "IS NULL, IN, BETWEEN, LIKE and arithmetic; compute anything else as a boolean column with transform()"
        )

    def _next_is(self, *signs: str) -> str:
        """Takes the token if it is one of them."""
        if self._at < len(self._tokens):
            kind, token = self._tokens[self._at]
            if kind == "sign" and token in signs:
                self._at += 1
                return token
        return ""

    def _need(self, sign: str) -> None:
        if not self._next_is(sign):
            raise self._wrong(self._rest())

    def _rest(self) -> str:
        return " ".join(token for _, token in self._tokens[self._at :])

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise self._wrong(self._rest())

    def any_of(self) -> Expression:
        left = self._all_of()
        while self._next_is("OR"):
            left = self._booleans("OR", left, self._all_of())
        return left

    def _all_of(self) -> Expression:
        left = self._negated()
        while self._next_is("AND"):
            left = self._booleans("AND", left, self._negated())
        return left

    def _negated(self) -> Expression:
        if self._next_is("NOT"):
            return self._booleans("NOT", self._negated())
        return self._compared()

    def _booleans(self, operation: str, *arguments: Expression) -> Expression:
        for argument in arguments:
            if argument.kind not in ("boolean", "null"):
                raise self._misfit(operation, argument.kind)
        return Expression(operation, "boolean", arguments)

    def _compared(self) -> Expression:
        left = self._sum()
        if sign := self._next_is(*_COMPARISONS):
            return self._comparison(_COMPARISONS[sign], left, self._sum())
        if self._next_is("IS"):
            negative = self._next_is("NOT")
            self._need("NULL")
            return self._maybe_not(negative, Expression("IS NULL", "boolean", (left,)))
        negative = self._next_is("NOT")
        if self._next_is("IN"):
            self._need("(")
            found = self._comparison("=", left, self._sum())
            while self._next_is(","):
                found = self._booleans("OR", found, self._comparison("=", left, self._sum()))
            self._need(")")
            return self._maybe_not(negative, found)
        if self._next_is("BETWEEN"):
            low = self._sum()
            self._need("AND")
            both = self._comparison(">=", left, low), self._comparison("<=", left, self._sum())
            return self._maybe_not(negative, self._booleans("AND", *both))
        if self._next_is("LIKE"):
            pattern = self._sum()
            if left.kind != "string" or pattern.operation != "literal" or pattern.kind != "string":
                raise self._misfit("LIKE", f"{left.kind} and {pattern.kind}")
            self._check_pattern(pattern.value)
            return self._maybe_not(negative, Expression("LIKE", "boolean", (left,), pattern.value))
        if negative:
            raise self._wrong(self._rest())
        return left

    def _check_pattern(self, pattern: str) -> None:
        try:
            list(parts(pattern))
        except WrongPatternError as error:
            raise UsageError(
                f"{self._where}: the LIKE pattern in the condition {self._text!r} has a backslash {error}: a backslash takes the "
                r"%, _ or \ behind it as itself, so write \\\\ for a backslash in the text"
            ) from None

    def _maybe_not(self, negative: str, expression: Expression) -> Expression:
        return Expression("NOT", "boolean", (expression,)) if negative else expression

    def _comparison(self, operation: str, left: Expression, right: Expression) -> Expression:
        left, right = self._like(left, right), self._like(right, left)
        if left.kind != right.kind and "null" not in (left.kind, right.kind):
            raise self._misfit(operation, f"{left.kind} and {right.kind}")
        return Expression(operation, "boolean", (left, right))

    def _like(self, given: Expression, other: Expression) -> Expression:
        """A text beside a date or an instant is one. An instant without a zone is in UTC."""
        if given.operation != "literal" or given.kind != "string" or other.kind not in ("date", "timestamp"):
            return given
        try:
            if other.kind == "date":
                return Expression("literal", "date", value=date.fromisoformat(given.value))
            at = datetime.fromisoformat(given.value)
        except ValueError as error:
            raise UsageError(
                f"{self._where}: {given.value!r} in {self._text!r} is no {other.kind}: {error}"
            ) from error
        return Expression("literal", "timestamp", value=at if at.tzinfo else at.replace(tzinfo=UTC))

    def _misfit(self, operation: str, kinds: str) -> UsageError:
        return UsageError(f"{self._where}: {operation} in the condition {self._text!r} does not take {kinds}")

    def _sum(self) -> Expression:
        left = self._product()
        while sign := self._next_is("+", "-"):
            left = self._numbers(sign, left, self._product())
        return left

    def _product(self) -> Expression:
        left = self._factor()
        while sign := self._next_is("*", "/", "%"):
            left = self._numbers(sign, left, self._factor())
        return left

    def _numbers(self, operation: str, *arguments: Expression) -> Expression:
        for argument in arguments:
            if argument.kind not in ("number", "null"):
                raise self._misfit(operation, argument.kind)
        return Expression(operation, "number", arguments)

    def _factor(self) -> Expression:
        if self._next_is("-"):
            return self._numbers("-", Expression("literal", "number", value=0), self._factor())
        if self._next_is("("):
            inside = self.any_of()
            self._need(")")
            return inside
        if word := self._next_is("TRUE", "FALSE"):
            return Expression("literal", "boolean", value=word == "TRUE")
        if self._next_is("NULL"):
            return Expression("literal", "null")
        if self._at == len(self._tokens):
            raise self._wrong("")
        kind, token = self._tokens[self._at]
        if kind == "sign":
            raise self._wrong(self._rest())
        self._at += 1
        match kind:
            case "number":
                return Expression("literal", "number", value=self._number(token))
            case "text":
                return Expression("literal", "string", value=_unquoted(token))
        return self._column(token.strip("`"))

    def _number(self, text: str) -> Any:
        number: Decimal | float = float(text) if "e" in text.lower() else Decimal(text)
        if isinstance(number, float):
            fits = not math.isinf(number)
        elif "." in text:
            fits = number < 10**_DIGITS and len(text.rpartition(".")[2]) <= _DIGITS
        else:
            fits = number < 1 << 63
        if not fits:
            raise UsageError(
                f"{self._where}: the number {text} in the condition {self._text!r} does not fit a bigint, a decimal or a double "
                "of Spark: write a smaller or shorter one, or compute a boolean column with transform()"
            )
        return number if isinstance(number, float) or "." in text else int(number)

    def _column(self, name: str) -> Expression:
        column = self._rows.field(name)
        if column is None:
            if self._at < len(self._tokens) and self._tokens[self._at][1] == "(":
                raise UsageError(
                    f"{self._where}: the condition {self._text!r} calls {name!r}, and conditions have no functions: compute a boolean column "
                    "with transform()"
                )
            raise UsageError(
                f"{self._where}: the condition {self._text!r} needs column {name!r}, but {self._rows.name} has none; it has "
                f"{', '.join(self._rows.names)}"
            )
        kind = "number" if column.type.startswith("decimal") else _KINDS.get(column.type)
        if kind is None:
            raise UsageError(
                f"{self._where}: the condition {self._text!r} cannot use column {name!r} ({column.type}): compute a boolean "
                "column with transform()"
            )
        return Expression("column", kind, value=name)


_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
"""Spark keeps the backslash before `%` and `_`, for LIKE."""
_ESCAPED = re.compile(
    r"''|\\(?:u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})|(?P<octal>[01][0-7]{2})|(?P<one>.))", re.S
)


def _unquoted(text: str) -> str:
    return _ESCAPED.sub(_unescaped, text[1:-1])


def _unescaped(found: re.Match[str]) -> str:
    if found[0] == "''":
        return "'"
    if one := found["one"]:
        return _ESCAPES.get(one, one)
    code = int(found["octal"], 8) if found["octal"] else int(found["short"] or found["long"], 16)
    return chr(code) if code <= sys.maxunicode else found[0]
