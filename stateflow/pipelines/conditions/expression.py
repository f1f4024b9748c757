"""Conditions of aggregates: the part of SQL that a `WHERE` over one row needs, checked when the pipeline is built.

They are evaluated beside the aggregates and not by Spark, so that the test harness says the same as a run.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from stateflow.errors import UsageError
from stateflow.format.scalars import FLOATS, INTEGERS
from stateflow.pipelines.conditions.like_patterns import WrongPatternError, parts
from stateflow.pipelines.rows.row_type import RowType

if TYPE_CHECKING:
    from stateflow.pipelines.conditions.syntax import SyntaxNode

_DIGITS = 38
"""Of a decimal."""
_KINDS = {
    **dict.fromkeys((*INTEGERS, *FLOATS), "number"),
    **{name: name for name in ("string", "boolean", "date", "timestamp")},
}
_WORDS = frozenset(["AND", "OR", "NOT", "IS", "NULL", "IN", "BETWEEN", "LIKE", "TRUE", "FALSE"])
"""Of the language. A column called so needs backticks."""


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


COLUMN = "compute a boolean column with transform()"
"""The next step where a condition of an operator does not do."""


def condition_of(where: str, text: str, rows: RowType, otherwise: str = COLUMN) -> Expression:
    """The condition, checked against the rows; `where` names the operator and the aggregate, `otherwise` what serves where a
    condition does not."""
    expression = _Checked(where, text, rows, otherwise).of(_read(where, text, otherwise))
    if expression.kind not in ("boolean", "null"):
        raise UsageError(
            f'{where}: the condition {text!r} is a {expression.kind}: compare it with something, as in "amount > 100"'
        )
    return expression


def _read(where: str, text: str, otherwise: str) -> SyntaxNode:
    # sqlglot takes as long to import as everything else here: only pipelines that have a condition wait for it.
    from stateflow.pipelines.conditions.syntax import FunctionCallError, NotReadError, read

    try:
        return read(text, _WORDS)
    except NotReadError as error:
        raise UsageError(
            f"{where}: the condition {text!r} cannot be read at {error.at or 'its end'!r}: it takes comparisons, AND, OR, NOT, "
            f"IS NULL, IN, BETWEEN, LIKE and arithmetic; for anything else, {otherwise}"
        ) from None
    except FunctionCallError as error:
        raise UsageError(
            f"{where}: the condition {text!r} calls {str(error)!r}, and conditions have no functions: {otherwise}"
        ) from None
    except RecursionError:
        raise UsageError(
            f"{where}: the condition {text[:60]!r}... is nested too deeply: {otherwise}"
        ) from None


class _Checked:
    """What was read, with the types of the rows."""

    def __init__(self, where: str, text: str, rows: RowType, otherwise: str) -> None:
        self._where, self._text, self._rows, self._otherwise = where, text, rows, otherwise

    def of(self, node: SyntaxNode) -> Expression:
        match node.operation:
            case "name":
                return self._column(node.text)
            case "number":
                return Expression("literal", "number", value=self._number(node.text))
            case "text":
                return Expression("literal", "string", value=_unquoted(node.text))
            case "TRUE" | "FALSE":
                return Expression("literal", "boolean", value=node.operation == "TRUE")
            case "NULL":
                return Expression("literal", "null")
        arguments = [self.of(argument) for argument in node.arguments]
        match node.operation:
            case "AND" | "OR":
                return self._chain(node.operation, arguments)
            case "NOT":
                return self._booleans("NOT", *arguments)
            case "IS NULL":
                return Expression("IS NULL", "boolean", tuple(arguments))
            case "IN":
                left, *options = arguments
                return self._chain("OR", [self._comparison("=", left, option) for option in options])
            case "BETWEEN":
                left, low, high = arguments
                return self._booleans(
                    "AND", self._comparison(">=", left, low), self._comparison("<=", left, high)
                )
            case "LIKE":
                return self._like(*arguments)
            case "negative":
                return self._numbers("-", Expression("literal", "number", value=0), *arguments)
            case "+" | "-" | "*" | "/" | "%":
                return self._numbers(node.operation, *arguments)
        return self._comparison(node.operation, *arguments)

    def _chain(self, operation: str, arguments: Sequence[Expression]) -> Expression:
        """By halves, so that a list of thousands is evaluated a few calls deep."""
        if len(arguments) == 1:
            return arguments[0]
        half = len(arguments) // 2
        return self._booleans(
            operation, self._chain(operation, arguments[:half]), self._chain(operation, arguments[half:])
        )

    def _booleans(self, operation: str, *arguments: Expression) -> Expression:
        for argument in arguments:
            if argument.kind not in ("boolean", "null"):
                raise self._misfit(operation, argument.kind)
        return Expression(operation, "boolean", arguments)

    def _like(self, text: Expression, pattern: Expression) -> Expression:
        if text.kind != "string" or pattern.operation != "literal" or pattern.kind != "string":
            raise self._misfit("LIKE", f"{text.kind} and {pattern.kind}")
        self._check_pattern(pattern.value)
        return Expression("LIKE", "boolean", (text,), pattern.value)

    def _check_pattern(self, pattern: str) -> None:
        try:
            list(parts(pattern))
        except WrongPatternError as error:
            raise UsageError(
                f"{self._where}: the LIKE pattern in the condition {self._text!r} has a backslash {error}: a backslash takes the "
                r"%, _ or \ behind it as itself, so write \\\\ for a backslash in the text"
            ) from None

    def _comparison(self, operation: str, left: Expression, right: Expression) -> Expression:
        left, right = self._beside(left, right), self._beside(right, left)
        if left.kind != right.kind and "null" not in (left.kind, right.kind):
            raise self._misfit(operation, f"{left.kind} and {right.kind}")
        return Expression(operation, "boolean", (left, right))

    def _beside(self, given: Expression, other: Expression) -> Expression:
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

    def _numbers(self, operation: str, *arguments: Expression) -> Expression:
        for argument in arguments:
            if argument.kind not in ("number", "null"):
                raise self._misfit(operation, argument.kind)
        return Expression(operation, "number", arguments)

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
                f"of Spark: write a smaller or shorter one, or {self._otherwise}"
            )
        return number if isinstance(number, float) or "." in text else int(number)

    def _column(self, name: str) -> Expression:
        column = self._rows.field(name)
        if column is None:
            raise UsageError(
                f"{self._where}: the condition {self._text!r} needs column {name!r}, but {self._rows.name} has none; it has "
                f"{', '.join(self._rows.names)}"
            )
        kind = "number" if column.type.startswith("decimal") else _KINDS.get(column.type)
        if kind is None:
            raise UsageError(
                f"{self._where}: the condition {self._text!r} cannot use column {name!r} ({column.type}): {self._otherwise}"
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
