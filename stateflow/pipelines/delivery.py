"""`Delivery`: tells a function that is a sink which delivery its rows are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateflow.pipelines.graph import SinkNode


@dataclass(frozen=True, slots=True)
class Delivery:
    """One batch's rows for a function of `for_each_batch`.

    A function keeps `key` and `slot` in the transaction that writes the rows, and compares slots under one key only. A delivery
    that is repeated has the same key and slot. In a new job, also in a fork, slots begin again, and the key is another one.
    """

    key: str
    """The job's UUID and the sink's uid."""
    slot: int
    """Grows from delivery to delivery; some numbers are left out."""
    job: str
    """The job's name."""
    sink: str
    """The sink's uid."""
    record: str = ""
    """Unique to the batch, and the same when it is delivered again. If another record comes under the same key and slot, the
    checkpoints are a copy, and the database is ahead of them."""


def takes_id(function: Callable[..., Any]) -> bool:
    """True if a function takes the slot's number alone: its second parameter is called `checkpoint_id`, or is said to be an int."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    second = parameters[1] if len(parameters) > 1 else None
    return second is not None and (second.name == "checkpoint_id" or second.annotation in (int, "int"))


def taking_ids(sinks: Iterable[SinkNode]) -> dict[str, str]:
    """By the uid of the sink: what to write in place of a function that takes the number alone."""
    return {
        sink.uid: _advice(sink.uid)
        for sink in sinks
        if sink.sink_kind.calls_function and takes_id(sink.target)
    }


def _advice(uid: str) -> str:
    return (
        f"sink {uid!r} calls a function of (frame, checkpoint_id): ids begin again in a new job and in a fork, and a function that "
        "skips ids up to the last one would drop their rows; write it as (frame, delivery), keep delivery.key with delivery.slot, "
        "and compare slots under the same key only"
    )
