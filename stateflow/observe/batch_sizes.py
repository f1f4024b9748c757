"""What a run with `target_batch_duration` chose, which sources waited, and hot keys, from what a batch noted. No I/O.

A run may have noted anything: what has another form is not shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from stateflow.checkpoint.statistics import LONGEST_UID
from stateflow.format.records import MOST, Count

MOST_STREAMS = 1000
_Uid = Annotated[str, msgspec.Meta(max_length=LONGEST_UID)]


class StreamSize(msgspec.Struct, frozen=True):
    """What a batch might take of one stream of a source, and what it took."""

    source: _Uid
    unit: Literal["rows", "bytes", "files"]
    most: Count
    took: Count | None = None
    """None while it is not known."""


class BatchSizes(msgspec.Struct, frozen=True):
    """The batch sizes that a run chose for its target."""

    target_ms: Annotated[int, msgspec.Meta(ge=1, le=MOST)]
    streams: Annotated[tuple[StreamSize, ...], msgspec.Meta(max_length=MOST_STREAMS)] = ()


class NotedHotKey(msgspec.Struct, frozen=True):
    """A key with a large share of an operator's rows. The record does not have the key itself, so that nobody has to erase it there."""

    share: Annotated[float, msgspec.Meta(ge=0, le=1)]
    subtask: Count


def batch_sizes(statistics: Mapping[str, Any]) -> BatchSizes | None:
    """None for a batch without a target."""
    sizes: BatchSizes | None = _as(statistics.get("batch_size"), BatchSizes)
    return sizes


def sources_that_waited(statistics: Mapping[str, Any]) -> dict[str, str]:
    """The sources that a batch took nothing of because they were ahead, each with the one that it waited for."""
    waited: dict[str, str] | None = _as(statistics.get("waited"), _Waited)
    return waited or {}


def hot_key_of(figures: Any) -> NotedHotKey | None:
    """`figures` is an operator's part of a record's statistics."""
    hot: NotedHotKey | None = _as(figures.get("hot_key"), NotedHotKey) if isinstance(figures, dict) else None
    return hot


def sizes_document(statistics: Mapping[str, Any], rows: int, duration_ms: int | None) -> dict[str, Any]:
    """For programs; empty for a batch without a target. `rows` and `duration_ms` are the batch's own."""
    sizes = batch_sizes(statistics)
    if sizes is None:
        return {}
    streams = [msgspec.structs.asdict(stream) for stream in sizes.streams]
    return {"target_ms": sizes.target_ms, "duration_ms": duration_ms, "rows": rows, "streams": streams}


_Waited = Annotated[dict[_Uid, _Uid], msgspec.Meta(max_length=MOST_STREAMS)]


def _as(noted: Any, form: Any) -> Any:
    try:
        return None if noted is None else msgspec.convert(noted, form)
    except msgspec.ValidationError:
        return None
