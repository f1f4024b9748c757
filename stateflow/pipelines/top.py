"""The best rows of each key as a pipeline declares them: a list that changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from stateflow.errors import UsageError
from stateflow.pipelines.changes import OPERATION
from stateflow.pipelines.keys import no_column
from stateflow.pipelines.ready.fixed_options import listed
from stateflow.pipelines.ready.operators import (
    ROW_THERE,
    KeyedRows,
    ReadyOperator,
    former_columns,
    stored_columns,
)
from stateflow.pipelines.ready.windows import at_least
from stateflow.state.columns.layout import ColumnLayout
from stateflow.state.expiry.ttl import Ttl, ttl_of

PLACE = "place_in_list"


@dataclass(frozen=True)
class Top(ReadyOperator):
    """The first `n` rows of each key by the columns `by`."""

    kind: ClassVar[str] = "top"
    operation: ClassVar[str] = OPERATION
    keeps_rows: ClassVar[bool] = True

    n: int = 0
    by: tuple[str, ...] = ()
    """The columns that order the list; one that begins with a minus descends."""
    per: tuple[str, ...] = ()
    """One row of those that are alike in these columns is in the list; without any, each row is one of its own."""
    last_by: tuple[str, ...] = ()
    """Of rows that are alike in `per` the last one by these columns; without any, the one that is first by `by`."""
    rank: str = "rank"
    kept: tuple[str, ...] = ()
    """The columns beside the key."""

    @property
    def fixed(self) -> Mapping[str, str]:
        last = {"order_by of the key": listed(self.last_by)} if self.per else {}
        return {"n": str(self.n), "by": listed(self.by), "per": listed(self.per), **last}

    @property
    def warnings(self) -> tuple[str, ...]:
        if not self.last_by or self.states["rows"].ttl is not None:
            return ()
        return (
            (
                f"operator {self.uid!r} keeps the last row of every {', '.join(self.per)}, in the list or not, for a later row may "
                "bring it back: say ttl= if they are many"
            ),
        )


def top(
    keyed: KeyedRows,
    n: int,
    *,
    by: str | Sequence[str],
    per: str | Sequence[str],
    rank: str,
    ttl: str | timedelta | Ttl | None,
) -> Top:
    uid, rows = keyed.uid, keyed.known()
    where = f"operator {uid!r}"
    at_least(1, f"{where}: the first {n!r} rows", n)
    order, alike = _names(by), _names(per)
    if not order:
        raise UsageError(f"{where}: say what the list is ordered by, such as by='-revenue'")
    for name in (*(each.removeprefix("-") for each in order), *alike):
        if rows.field(name) is None:
            raise UsageError(no_column(where, rows, name))
        if name in keyed.columns:
            raise UsageError(
                f"{where}: column {name!r} is the key, the same in the whole list: leave it out of by= and per="
            )
    for name in (rank, OPERATION):
        if rows.field(name) is not None:
            step = "give rank= another name" if name == rank else "rename it with transform()"
            raise UsageError(f"{where}: {rows.name} has a column {name!r} already: {step}")
    kept = tuple(name for name in rows.names if name not in keyed.columns)
    state = {ROW_THERE: bool, **stored_columns(uid, rows, kept)}
    layout = ColumnLayout(state, by={PLACE: int}, ttl=ttl_of(ttl), renamed=former_columns(rows, kept))
    output = rows.with_columns(**{rank: "bigint", OPERATION: "string"})
    changes = (*keyed.columns, *(alike or (rank,)))
    return Top(
        uid, keyed.key(), rows, output, {"rows": layout}, rows.names, changes,
        n, order, alike, keyed.order_by if alike else (), rank, kept,
    )  # fmt: skip


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) and given else tuple(given)
