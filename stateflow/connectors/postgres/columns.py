"""Columns of an output and those of its table in Postgres: which fit without loss, and which a new table gets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stateflow.connectors import IncompatibleError

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")
_ROUNDING = re.compile(r"time(stamp)?\([0-5]\) .*")
"""Types of times with fewer digits than the microseconds of an output."""
_TEXTS = (
    "text", "varchar", "bpchar", "citext", "json", "jsonb", "uuid", "xml", "inet", "cidr", "macaddr", "macaddr8",
)  # fmt: skip
"""Types whose values are written as text. What is no such value is refused before a batch is decided."""
_FITTING: Mapping[str, tuple[str, ...]] = {
    "tinyint": ("int2", "int4", "int8", "numeric"),
    "smallint": ("int2", "int4", "int8", "numeric"),
    "int": ("int4", "int8", "numeric"),
    "bigint": ("int8", "numeric"),
    "float": ("float4", "float8"),
    "double": ("float8",),
    "boolean": ("bool",),
    "string": _TEXTS,
    "date": ("date",),
    "timestamp": ("timestamptz",),
    "timestamp_ntz": ("timestamp",),
    "binary": ("bytea",),
}
_CUTTING = ("cidr",)
"""Of these the ones that take other values cut, without a word."""
_EXACT = (
    "text",
    "varchar",
    "int2",
    "int4",
    "int8",
    "numeric",
    "bool",
    "date",
    "timestamptz",
    "timestamp",
    "bytea",
)
"""Types in which different values of an output are different keys. To others `AB` and `ab` may be one."""
_MIXING = ("citext", "jsonb")
"""Types to which different texts are equal, and are kept as they came."""
_REWRITING = ("bpchar", "uuid", "inet", "cidr", "macaddr", "macaddr8")
"""Types that keep equal texts as one, whichever of them comes."""
_WIDER: Mapping[str, tuple[str, ...]] = {
    "smallint": ("int4", "int8", "numeric"),
    "integer": ("int8", "numeric"),
    "bigint": ("numeric",),
    "real": ("float8",),
}
"""By the type that a column had, as the catalog writes it, those that hold all of its values."""
_MADE = {
    "int2": "smallint", "int4": "integer", "int8": "bigint", "float4": "real", "float8": "double precision",
    "bool": "boolean", "timestamptz": "timestamp with time zone", "timestamp": "timestamp without time zone",
}  # fmt: skip
"""Types as a statement writes them."""
_LONGEST = 63
"""Bytes that the server keeps of a name. It cuts what is longer, with no more than a notice."""
NESTED = ("struct<", "array<", "map<")
"""Beginnings of types whose values become JSON."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table in Postgres."""

    name: str
    type: str
    """As the catalog writes it, such as `numeric(10,2)`."""
    base: str
    """Its name in the catalog, of a domain that of its base."""
    enum: bool = False
    needed: bool = False
    """Whether a row without a value is refused: NOT NULL, and no default."""
    not_null: bool = False
    computed: str = ""
    """Why nobody may write it: `generated`, or `identity` for one that is generated always."""
    length: int | None = None
    """Characters at most of a `varchar`. Blanks behind them are cut without a word."""
    folds: bool = False
    """Whether different texts are equal to its collation."""
    plain: str = ""
    """The type where `type` is the name of a domain: that which the domain is of, with its digits."""

    @property
    def bounds(self) -> str:
        """The type that says how many digits it has."""
        return self.plain or self.type

    @property
    def rounds(self) -> bool:
        """Whether it takes times with fewer digits than they have, without a word."""
        return _ROUNDING.fullmatch(self.bounds) is not None

    @property
    def mixes(self) -> bool:
        """Whether texts that it keeps apart are equal to it."""
        return self.base in _MIXING

    @property
    def kept_as(self) -> str:
        """An expression for the text that it keeps in the place of all that are equal to it; empty for a type that keeps each as it is."""
        if self.base not in _REWRITING:
            return ""
        # Blanks behind a `char(n)` are no part of it, and its output has them.
        return f"{quoted(self.name)}::text" if self.base == "bpchar" else f"format('%s', {quoted(self.name)})"

    @property
    def is_exact(self) -> bool:
        """Whether different values are different keys, as they are to the pipeline."""
        return self.base in _EXACT


def made_type(kind: str) -> str:
    """The type of a column of a new table."""
    if kind.startswith(NESTED):
        return "jsonb"
    if match := _DECIMAL.fullmatch(kind):
        return f"numeric({match[1]},{match[2]})"
    fitting = _FITTING.get(kind)
    if fitting is None:
        raise IncompatibleError(
            f"no type of Postgres holds {kind} without loss: let a transform() before the sink make text or a number of it"
        )
    return _MADE.get(fitting[0], fitting[0])


def fits(kind: str, column: Column) -> bool:
    """Whether a column takes every value of a type of the output."""
    if kind.startswith(NESTED):
        return column.base in ("json", "jsonb")
    if match := _DECIMAL.fullmatch(kind):
        bounded = _NUMERIC.fullmatch(column.bounds)
        if column.base != "numeric" or bounded is None:
            return column.base == "numeric"
        scale = int(bounded[2])
        return scale >= int(match[2]) and int(bounded[1]) - scale >= int(match[1]) - int(match[2])
    if kind == "string" and column.enum:
        return True
    if column.base == "numeric" and column.bounds != "numeric":
        return False  # whole numbers may have more digits
    return not column.rounds and column.base in _FITTING.get(kind, ())


def keeps(kind: str, column: Column) -> bool:
    """Whether a column that had the type `kind` still takes all of its values whole, or the server refuses those that it does not."""
    if column.type == kind or (column.base in _TEXTS and column.base not in _CUTTING):
        return True
    if match := _NUMERIC.fullmatch(kind):
        return fits(f"decimal({match[1]},{match[2]})", column)
    return column.base in _WIDER.get(kind, ()) and not _NUMERIC.fullmatch(column.bounds)


def matched(rows: Sequence[tuple[str, str]], table: Sequence[Column], what: str) -> dict[str, Column]:
    """The table's column for each of the output, `rows`: its names and types. IncompatibleError names all that is wrong."""
    found: dict[str, Column] = {}
    problems = list[str]()
    exact, folded = {c.name: c for c in table}, {c.name.lower(): c for c in table}
    for name, kind in rows:
        column = exact.get(name) or folded.get(name.lower())
        if column is None:
            problems.append(f"it has no column {name!r}{_added(name, kind)}")
            continue
        found[name] = column
        if column.computed:
            problems.append(
                f"its column {column.name!r} is {column.computed}, and nobody may write it: leave it out of the output"
            )
        elif not fits(kind, column):
            problems.append(_misfit(name, kind, column))
    written = {column.name for column in found.values()}
    problems += [
        f"its column {c.name!r} takes no nulls and has no default, and the output does not have it: add it, or ALTER COLUMN {c.name} SET DEFAULT"
        for c in table
        if c.needed and c.name not in written
    ]
    if problems:
        raise IncompatibleError(f"{what} does not fit its output: {'; '.join(problems)}")
    return found


def _added(name: str, kind: str) -> str:
    try:
        return f" (ALTER TABLE ... ADD COLUMN {quoted(name)} {made_type(kind)})"
    except IncompatibleError:
        return ""


def _misfit(name: str, kind: str, column: Column) -> str:
    if kind == "timestamp" and column.base == "timestamp":
        return (
            f"its column {column.name!r} has times without a zone, and those of the output are instants: ALTER COLUMN {quoted(column.name)} TYPE "
            "timestamptz, or cast them to timestamp_ntz"
        )
    if column.rounds and kind.startswith("timestamp"):
        return (
            f"its column {column.name!r} is {_said(column)}, which rounds the times of the output: ALTER COLUMN {quoted(column.name)} TYPE "
            f"{made_type(kind)}"
        )
    return f"its column {column.name!r} is {_said(column)}, which does not hold every {kind}: cast the output, or alter the column"


def _said(column: Column) -> str:
    return column.type if column.bounds == column.type else f"{column.type}, a domain of {column.bounds}"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def overlong(names: Iterable[str]) -> str:
    """The first of these names that the server would cut, with the length that it keeps; empty for none."""
    return next(
        (
            f"{name!r}, which is longer than {_LONGEST} bytes"
            for name in names
            if len(name.encode()) > _LONGEST
        ),
        "",
    )


def json_columns(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The columns whose values become JSON before they are staged."""
    return (name for name, kind in rows if kind.startswith(NESTED))
