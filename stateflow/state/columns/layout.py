"""The layout of a columnar operator's state, as its pipeline declares it. It needs no Arrow, because DAG files are parsed
without Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from stateflow.errors import UsageError
from stateflow.format.records import StateSchema
from stateflow.format.scalars import BY_TYPE, KEY_TYPES
from stateflow.names import with_options
from stateflow.state.expiry.ttl import Ttl, ttl_fields, ttl_of
from stateflow.state.values.schema_text import WAS

MOST_COLUMNS = 64
TIME = "at"
"""The column of times in the tables of a timed state."""


@dataclass(frozen=True)
class ColumnLayout:
    """The entries of one state of a columnar operator.

    `columns` are the values of an entry; there may be none, if it is enough that an entry exists. By default a key has one
    entry. With `by` it may have several: these columns tell the entries of a key apart, and order them. The entries of a
    `timed` state are ordered by an instant first, so that finding and deleting what is due costs nothing for the rest.
    """

    columns: Mapping[str, Any] = field(default_factory=dict)
    by: Mapping[str, Any] = field(default_factory=dict)
    timed: bool = False
    aliases: tuple[str, ...] = ()
    """Names that the state had before."""
    ttl: Ttl | None = None
    """How long an entry lives after it was put, or read, as the ttl says."""
    queryable: bool = False
    """Whether `stateflow serve` may answer from it."""
    renamed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By column: its earlier names."""

    def check(self, where: str, key: Sequence[str] = ()) -> None:
        """Raises UsageError for a layout that cannot be; `key` are the names of the key's columns, as far as known."""
        if len(self.columns) > MOST_COLUMNS:
            raise UsageError(f"{where}: state has up to {MOST_COLUMNS} columns, not {len(self.columns)}")
        if self.ttl is not None and self.timed:
            raise UsageError(
                f"{where}: the entries of a timed state leave by their time: call delete_due() in place of ttl="
            )
        if not self.columns and not self.by and not self.timed:
            raise UsageError(f"{where}: state has no columns: name them, such as state={{'total': float}}")
        for name, hint in self.columns.items():
            scalar = BY_TYPE.get(hint)
            if scalar is None or not scalar.is_column:
                raise UsageError(
                    f"{where}: state column {name!r} is {hint!r}: use int, float, bool, datetime, str or bytes"
                )
        for name, hint in self.by.items():
            if hint not in BY_TYPE or not BY_TYPE[hint].is_key:
                raise UsageError(
                    f"{where}: state column {name!r} of `by` is {hint!r}: use a type that keys have, one of "
                    f"{', '.join(KEY_TYPES)}"
                )
        if self.by or self.timed:
            self._check_names(where, key)

    def _check_names(self, where: str, key: Sequence[str]) -> None:
        """Entries come as tables with all columns: of the key, the time, `by`, and the values."""
        names = [*key, *([TIME] if self.timed else []), *self.by, *self.columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(
                f"{where}: a table of the state's entries would have two columns {twice[0]!r} (its columns are "
                f"{', '.join(names)}): rename one"
            )

    def schema(self) -> StateSchema:
        """The state as a record has it, still without its id."""
        return StateSchema(
            id=0,
            kind="columns",
            value=self._text({}),
            by=tuple((name, BY_TYPE[hint].name) for name, hint in self.by.items()),
            timed=self.timed,
            aliases=self.aliases,
            queryable=self.queryable,
            **ttl_fields(self.ttl),
        )

    @property
    def with_aliases(self) -> str:
        """The type of its values with the former names of its columns; empty when there are none."""
        return self._text(self.renamed) if any(self.renamed.values()) else ""

    def _text(self, renamed: Mapping[str, Sequence[str]]) -> str:
        columns = ",".join(
            f"{WAS.join((name, *renamed.get(name, ())))}:{BY_TYPE[hint].name}"
            for name, hint in self.columns.items()
        )
        return f"columns{{{columns}}}"


@with_options
def columns(
    values: Mapping[str, Any] | None = None,
    *,
    by: Mapping[str, Any] | None = None,
    timed: bool = False,
    aliases: Sequence[str] = (),
    ttl: str | timedelta | Ttl | None = None,
    queryable: bool = False,
) -> ColumnLayout:
    """A state of `process_arrow`: `sf.columns({"total": float}, by={"product": str}, ttl="7 days")`. With `queryable=True`
    `stateflow serve` answers from it."""
    return ColumnLayout(dict(values or {}), dict(by or {}), timed, tuple(aliases), ttl_of(ttl), queryable)
