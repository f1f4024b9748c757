"""The last row of each key as a pipeline declares it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from stateflow.errors import UsageError
from stateflow.format.layout import checked_name
from stateflow.pipelines.ready.fixed_options import listed
from stateflow.pipelines.ready.operators import (
    ROW_THERE,
    KeyedRows,
    ReadyOperator,
    former_columns,
    stored_columns,
)
from stateflow.state.columns.layout import ColumnLayout
from stateflow.state.expiry.ttl import Ttl, ttl_of

NEWEST = "newest"


@dataclass(frozen=True)
class Latest(ReadyOperator):
    """The last row of each key by the columns `order`."""

    kind: ClassVar[str] = "latest"
    keeps_rows: ClassVar[bool] = True

    order: tuple[str, ...] = ()
    """The columns that order the rows; one that begins with a minus descends."""
    kept: tuple[str, ...] = ()
    """The columns beside the key."""

    @property
    def fixed(self) -> Mapping[str, str]:
        return {"order_by of the key": listed(self.order)}


def latest(keyed: KeyedRows, *, time: str, queryable: str, ttl: str | timedelta | Ttl | None) -> Latest:
    uid, rows = keyed.uid, keyed.known()
    order = keyed.order_by or ((time,) if time else ())
    order = tuple(by for by in order if by.removeprefix("-") not in keyed.columns)
    if not order:
        raise UsageError(
            f"operator {uid!r} cannot tell which row of a key is the last: say key_by(..., order_by=...), or give its source "
            "event_time= and watermark="
        )
    if queryable and not isinstance(queryable, str):
        raise UsageError(
            f"operator {keyed.uid!r}: queryable is {queryable!r}: give latest the name under which it is asked, such as 'prices'"
        )
    name = checked_name("state", queryable) if queryable else NEWEST
    kept = tuple(column for column in rows.names if column not in keyed.columns)
    columns = {ROW_THERE: bool, **stored_columns(uid, rows, kept)}
    former = former_columns(rows, kept)
    layout = ColumnLayout(columns, ttl=ttl_of(ttl), queryable=bool(queryable), renamed=former)
    return Latest(uid, keyed.key(), rows, rows, {name: layout}, rows.names, keyed.columns, order, kept)
