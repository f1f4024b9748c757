"""Enrichment as a pipeline declares it: what to ask for each key, how to ask, and which part of the answer to keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import Any, ClassVar

from stateflow.errors import UsageError
from stateflow.pipelines.processes.operator_spec import check_on_error
from stateflow.pipelines.ready.aggregates import KEPT_AS, fits
from stateflow.pipelines.ready.operators import Diverting, KeyedRows
from stateflow.pipelines.ready.windows import at_least, not_negative
from stateflow.pipelines.rows.row_type import Field, RowType, row_type
from stateflow.state.columns.layout import ColumnLayout
from stateflow.state.expiry.ttl import Ttl, ttl_of

ANSWERS = "answers"
ANSWERED = "is_answered"
ASKED = "asked_keys"
"""The counter of requested keys."""

_KEPT = {name: kind for name, kind in KEPT_AS.items() if name != "date"}


@dataclass(frozen=True)
class Asking:
    """How a service is asked."""

    look_up: Callable[..., Any]
    """Takes a list of keys, and gives a list of answers."""
    batch: int
    """Most keys of a call."""
    concurrency: int
    """Most calls of a task that run at once."""
    retries: int
    """How often a call that failed is repeated."""
    backoff: int
    """Microseconds before the first repetition; each time twice as many."""
    rate: float | None
    """Most calls per second of a task."""


@dataclass(frozen=True)
class Enrich(Diverting):
    """Joins each row with the answer for its key; answers are state."""

    kind: ClassVar[str] = "enrichment"

    asking: Asking
    answered: tuple[Field, ...]
    """The fields of the output that come from the answer."""
    on_error: str

    @property
    def letters_have_all_columns(self) -> bool:
        return self.diverts


def enrich(
    keyed: KeyedRows,
    look_up: Any,
    output: Any,
    *,
    batch: int,
    concurrency: int,
    ttl: str | timedelta | Ttl | None,
    retries: int,
    backoff: str | timedelta,
    rate: float | None,
    on_error: str,
) -> Enrich:
    uid, rows, out = keyed.uid, keyed.known(), row_type(output)
    if keyed.order_by:
        raise UsageError(
            f"operator {uid!r}: order_by has no effect, for each row gets the answer for its key: leave it out of key_by()"
        )
    if not callable(look_up):
        raise UsageError(
            f"operator {uid!r}: {look_up!r} is no function: give one that takes a list of keys and gives their answers"
        )
    for name, number, least in (
        ("batch", batch, 1),
        ("concurrency", concurrency, 1),
        ("retries", retries, 0),
    ):
        at_least(least, f"operator {uid!r}: {name} is {number!r}", number)
    if rate is not None and not _is_above_zero(rate):
        raise UsageError(
            f"operator {uid!r}: rate is {rate!r}: give the calls per second of a task, a number above zero, or leave it out for no limit"
        )
    check_on_error(uid, on_error)
    answered = _answered(uid, rows, out)
    columns: dict[str, type[Any]] = {
        ANSWERED: bool,
        **{stored_answer(f.name): _KEPT[f.type] for f in answered},
    }
    wait = not_negative(f"operator {uid!r}", "backoff", backoff)
    return Enrich(
        uid=uid,
        key=keyed.key(),
        rows=rows,
        output=out,
        states={
            ANSWERS: ColumnLayout(
                columns,
                ttl=ttl_of(ttl),
                renamed={stored_answer(f.name): tuple(map(stored_answer, f.aliases)) for f in answered},
            )
        },
        reads=tuple(n for n in rows.names if n in keyed.columns or out.field(n) is not None),
        changes=None,
        asking=Asking(look_up, batch, concurrency, retries, wait, rate),
        answered=answered,
        on_error=on_error,
    )


def _is_above_zero(rate: Any) -> bool:
    return isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < inf


def stored_answer(field: str) -> str:
    """The state column of a field of the answer."""
    return f"answer_{field}"


def _answered(uid: str, rows: RowType, out: RowType) -> tuple[Field, ...]:
    answered = []
    for field in out.fields:
        column = rows.field(field.name)
        if column is None:
            answered.append(field)
        elif not fits(column.type, field.type):
            raise UsageError(
                f"operator {uid!r} puts {column.type} into {out.name}.{field.name}, which is {field.type}: change the type of "
                "the field"
            )
    if not answered:
        raise UsageError(
            f"operator {uid!r}: every field of {out.name} is a column of its rows: add the fields that the answers fill"
        )
    for field in answered:
        if field.type not in _KEPT:
            raise UsageError(
                f"operator {uid!r} cannot keep {out.name}.{field.name} ({field.type}) of an answer: make it a number, a string, "
                "bytes, a boolean or a datetime"
            )
    return tuple(answered)
