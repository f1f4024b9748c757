"""Which slots' rows a way back has taken out of an output, and what a later restore would miss there. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stateflow.checkpoint.recovery import DELIVERED
from stateflow.format.records import Record, Spans


def newest_rows(has: int, lacks: Spans) -> int:
    """The slot of the newest rows that an output has, of which `has` is the last slot: behind a way back that to which it went."""
    return next((first - 1 for first, last in lacks if last == has - 1), has)


def without(spans: Spans, others: Spans) -> Spans:
    """The slots of these spans that are in none of the others."""
    for first, last in others:
        spans = tuple(
            piece
            for one, end in spans
            for piece in ((one, min(end, first - 1)), (max(one, last + 1), end))
            if piece[0] <= piece[1]
        )
    return spans


def lacks_after(
    record: Record,
    outcomes: Mapping[str, str],
    before: Mapping[str, Spans],
    at: Callable[[int], Mapping[str, Spans] | None],
) -> dict[str, Spans]:
    """By sink uid: the slots whose output a way back has taken out of it, after `record` ended with `outcomes`.

    `at` gives what sinks lacked behind a slot; None where nobody knows that any more.
    """
    lacks = dict(before)
    for uid, prepared in record.sinks.items():
        to = prepared.back_to
        if to is None or outcomes[uid] not in DELIVERED:
            continue
        # Between that slot and the snapshot's nothing has changed of it. Where nobody knows what it lacked by then, it may lack it all.
        then = at(to)
        if then is None and record.based_on:
            then = at(record.based_on)
        lacked = (before if then is None else then).get(uid, ())
        taken = (to + 1, record.slot - 1)
        lacks[uid] = (*lacked, *([taken] if to + 1 < record.slot else []))
    return {uid: spans for uid, spans in lacks.items() if spans}


def missing(now: Spans, then: Spans | None, *, had: int, snapshot: int) -> Spans:
    """The slots that a snapshot counts as delivered, and whose rows an output lacks now. `had`: the sink's last slot at the snapshot.
    `then`: what it lacked by then; None where nobody knows that any more."""
    if then is None:
        # What was out before the snapshot was so at the snapshot.
        lost, newest = tuple(span for span in now if span[1] >= snapshot), had
    else:
        lost, newest = without(now, then), newest_rows(had, then)
    return tuple((first, min(last, newest)) for first, last in lost if first <= newest)
