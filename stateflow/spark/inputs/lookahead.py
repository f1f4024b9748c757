"""Finds out before Spark starts what a run would read, from the job's log and its sources' logs.

The answer is certain or None. It is None whenever a run has something to do, or might have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from stateflow.checkpoint.control import Heartbeat
from stateflow.checkpoint.log import Log
from stateflow.checkpoint.rescale import needs_rescale
from stateflow.compatibility.flows import check_flow
from stateflow.compatibility.states import as_begun
from stateflow.config.options import Options
from stateflow.format.records import Record
from stateflow.format.source_offsets import NOTHING
from stateflow.pipelines.inputs.tables import DeltaTable
from stateflow.spark.inputs.silence import found_nothing, looked_into, recorded_sources
from stateflow.spark.sources.delta_log import Ahead, SourceLog, ahead, begins_after
from stateflow.spark.sources.delta_offset import DeltaOffset

if TYPE_CHECKING:
    from stateflow.pipelines.flow import Flow
    from stateflow.pipelines.graph import Node
    from stateflow.spark.sources.positions import Bound

LogOf = Callable[[str], SourceLog | None]
"""Opens the log of the Delta table at a path; None when it cannot be read with certainty."""


def may_tell(log: Log | None, heartbeat: Heartbeat | None, options: Options, *, bounded: bool) -> bool:
    """True if it makes sense to load the pipeline in order to look ahead. `heartbeat`: the newest run's, which has ended."""
    if options.trigger != "drain" and not bounded:
        return False
    if log is None or log.head is None:
        return bounded and (log is None or not log.pending)
    head = log.head
    ended = heartbeat.outcome if heartbeat is not None and heartbeat.epoch > head.epoch else None
    return (
        # After a restore, or another change from outside, a run shows that the job works from there.
        (head.kind == "checkpoint" or (ended is not None and ended.nothing_left))
        and not log.pending
        and not head.final
        and not needs_rescale(head, options.parallelism)
        and all(len(s.lines) == 1 and s.kind == "delta" for s in head.sources.values())
    )


def look_ahead(
    flow: Flow,
    log: Log | None,
    log_of: LogOf,
    until: Bound | Mapping[str, Bound] | None,
    *,
    now: int,
    idle_after: int,
) -> Ahead | None:
    """NOTHING or BEHIND if a run would find only that. `now` and `idle_after` are microseconds.

    Call it after `may_tell`. Raises what the run would raise about the flow.
    """
    head = log.head if log is not None else None
    if head is None:
        return _before_a_first_run(flow, log_of, until)
    check_flow(flow, head)
    # Only a batch's record has outputs.
    other_sinks = head.kind == "checkpoint" and _uids(flow.sinks) != set(head.sinks)
    if other_sinks or _uids(flow.sources) != set(head.sources) or _due(flow, head, now, idle_after, until):
        return None
    answers = set()
    for node in flow.sources:
        table = node.factory
        source = head.sources[node.uid]
        line, commit = source.lines[0], source.commits.get("0", "")
        bound = until.get(node.uid) if isinstance(until, Mapping) else until
        if until is not None and bound is None:
            continue  # a source without a bound does not advance
        place = table.path if isinstance(table, DeltaTable) and line != NOTHING else ""
        delta_log = log_of(place) if place else None
        answers.add(
            ahead(delta_log, DeltaOffset.parse(line), bound, commit)
            if delta_log is not None
            else Ahead.UNKNOWN
        )
    if Ahead.UNKNOWN in answers or not answers:
        return None
    return Ahead.BEHIND if Ahead.BEHIND in answers else Ahead.NOTHING


def _uids(nodes: Iterable[Node]) -> set[str]:
    return {node.uid for node in nodes}


def _before_a_first_run(flow: Flow, log_of: LogOf, until: Bound | Mapping[str, Bound] | None) -> Ahead | None:
    for node in flow.sources:
        bound = until.get(node.uid) if isinstance(until, Mapping) else until
        table = node.factory
        starts = {"startingversion", "startingtimestamp"}
        if (
            not isinstance(table, DeltaTable)
            or not table.path
            or starts & {name.lower() for name in table.options}
        ):
            return None
        delta_log = log_of(table.path)
        if bound is None or delta_log is None or not begins_after(delta_log, bound):
            return None
    return Ahead.NOTHING


def _due(
    flow: Flow, head: Record, now: int, idle_after: int, until: Bound | Mapping[str, Bound] | None
) -> bool:
    """Whether the run would fire a timer if it found nothing to read."""
    from stateflow.spark.inputs.watermark import timers_due, watermark_of

    looked = looked_into(head.sources, now, until)
    sources = found_nothing(recorded_sources(head), looked)
    watermark = watermark_of(flow, sources, head.watermark, idle_after)
    return timers_due(as_begun(flow.operators, head), watermark, now)
