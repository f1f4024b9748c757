"""Ten thousand checkpoints as a chart of a few hundred points, and as percentiles. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stateflow.checkpoint.statistics import HistoryLine
from stateflow_ui.history_lines import Columns, Lines, target_of

DRAWN = ("duration", "size", "full", "rows")
_ACTS = ("restore", "rescale", "erase")
_MOST_ACTS = 200
_PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}
_NAMES = {"duration": "duration", "size": "size", "full_size": "full", "rows": "rows"}


def timeline(
    lines: Lines, points: int, since: int | None = None, until: int | None = None
) -> dict[str, list[Any]]:
    """Columns for charts, ascending by id: complete checkpoints, thinned to about `points`, and what people did.

    `since` and `until` are milliseconds. Highest and lowest of all that is drawn stay, so that no peak is lost.
    """
    columns = lines.columns
    inside = within(columns["t"], since, until)
    chosen = inside[thinned({name: column[inside] for name, column in columns.items()}, points)]
    picked = [lines.checkpoints[index] for index in chosen.tolist()]
    first, last = since or 0, until if until is not None else 1 << 62
    acts = [
        line
        for line in lines.all
        if line.kind in _ACTS and line.status != "IN_PROGRESS" and first <= line.latest_ack_timestamp <= last
    ]
    drawn = sorted([*picked, *acts[-_MOST_ACTS:]], key=lambda line: line.id)
    return {
        "id": [line.id for line in drawn],
        "t": [line.latest_ack_timestamp for line in drawn],
        "duration": [line.end_to_end_duration for line in drawn],
        "size": [line.checkpointed_size for line in drawn],
        "full": [line.state_size for line in drawn],
        "rows": [line.processed_rows for line in drawn],
        "target": [target_of(line) for line in drawn],
        "kind": [line.kind for line in drawn],
        "timeline": [line.timeline for line in drawn],
    }


def within(times: NDArray[np.int64], since: int | None, until: int | None) -> NDArray[np.intp]:
    """Indices of those times."""
    mask = np.ones(len(times), bool)
    if since is not None:
        mask &= times >= since
    if until is not None:
        mask &= times <= until
    return np.flatnonzero(mask)


def thinned(columns: Columns, points: int) -> NDArray[np.intp]:
    """Indices, ascending: of every stretch the highest of each column and the lowest duration, and both ends."""
    count = len(columns["id"])
    if count <= points:
        return np.arange(count)
    picks = len(DRAWN) + 1
    stretches = max(1, (points - 2) // picks)
    edges = np.linspace(0, count, stretches + 1).astype(int)
    chosen = {0, count - 1}
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if begin == end:
            continue
        chosen.update(begin + int(columns[name][begin:end].argmax()) for name in DRAWN)
        chosen.add(begin + int(columns["duration"][begin:end].argmin()))
    return np.array(sorted(chosen))


def percentiles(columns: Columns) -> dict[str, dict[str, float | None]]:
    """Per measure, over all checkpoints in memory."""
    return {name: _summary(columns[column]) for name, column in _NAMES.items()}


def _summary(values: NDArray[np.int64]) -> dict[str, float | None]:
    if not len(values):
        return dict.fromkeys(("min", "avg", *_PERCENTILES, "max"))
    # Nearest rank: a value that there was, not one between two.
    ranks = np.percentile(values, list(_PERCENTILES.values()), method="inverted_cdf")
    return {
        "min": int(values.min()),
        "avg": float(values.mean()),
        **{name: int(rank) for name, rank in zip(_PERCENTILES, ranks.tolist(), strict=True)},
        "max": int(values.max()),
    }


def recent(lines: Lines, count: int) -> dict[str, list[int]]:
    """The last few, for the small chart in a list of jobs."""
    last = lines.checkpoints[-count:]
    return {
        "t": [line.latest_ack_timestamp for line in last],
        "duration": [line.end_to_end_duration for line in last],
        "full": [line.state_size for line in last],
    }


def rate(last: Sequence[HistoryLine]) -> float | None:
    """Rows a second over these checkpoints, pauses between them included; None when too little is known."""
    if not last:
        return None
    length = last[-1].latest_ack_timestamp - last[0].trigger_timestamp
    return sum(line.processed_rows for line in last) * 1000 / length if length > 0 else None
