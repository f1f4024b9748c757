"""Which sources wait, so that none reads days ahead of another one: state that joins or windows them holds what is between. No I/O.

A source that is silent holds nobody back for ever: as for the watermark, it counts until it has had no rows for
`source_idle_timeout`, and at the end of the input no more. One that waits has no rows either, and goes on waiting all the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stateflow.format.records import SourceState
from stateflow.pipelines.flow import Flow
from stateflow.spark.inputs.silence import is_idle


def waiting(
    flow: Flow,
    sources: Mapping[str, SourceState],
    drift: int,
    now: int,
    idle_after: int,
    ended: Collection[str] = (),
) -> dict[str, str]:
    """The sources that wait, each with the one that it waits for: the one that is furthest behind in event time. Of the others, those
    wait that are more than `drift` microseconds ahead of it. `ended`: sources that have no more rows, and do not count.
    """
    marks: dict[str, int] = {}
    active: set[str] = set()
    for node in flow.sources:
        state = sources.get(node.uid)
        if node.event_time is None or state is None or state.event_time is None:
            continue
        if node.uid in ended:
            continue
        # A single row of the year 3000 would otherwise make its source wait for ever.
        marks[node.uid] = min(state.event_time, now) - (node.watermark or 0)
        if not is_idle(state.silent, idle_after):
            active.add(node.uid)
    if not active:
        return {}
    behind = min(active, key=lambda uid: marks[uid])
    return {uid: behind for uid, mark in marks.items() if mark - marks[behind] > drift}


def nothing_waits(flow: Flow) -> list[str]:
    """Warns if no source of the pipeline can wait for another one."""
    timed = [node.uid for node in flow.sources if node.event_time is not None]
    if len(timed) > 1:
        return []
    which = f"only source {timed[0]!r} has" if timed else "no source has"
    sentence = (
        f"max_source_drift holds nothing back: {which} event_time=, and a source waits for another one by their event times; give it to "
        "two sources or more, or leave the option out"
    )
    return [sentence]
