"""How far event time is in each source, what of that a batch has moved, the watermark that follows, and whether timers are due
by it. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from stateflow.format.records import PartitionTime, Record, SourceState
from stateflow.format.source_offsets import NOTHING
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import SourceNode
from stateflow.spark.inputs.partition_times import advanced_partitions, kept_awake, lowest_partition
from stateflow.spark.inputs.silence import gained_by, is_idle, is_read_through, quiet_until
from stateflow.spark.sources.kafka import parse

if TYPE_CHECKING:
    from stateflow.spark.inputs.observations import Observation


def watermark_of(
    flow: Flow, sources: Mapping[str, SourceState], before: int | None, idle_after: int
) -> int | None:
    """The watermark of the next batch: the lowest among the sources that are not idle. It never goes back. The source that had rows last is
    never idle.
    """
    marks = _marks(flow, sources, idle_after)
    if not marks or None in marks.values():
        return before
    lowest = min(mark for mark in marks.values() if mark is not None)
    return lowest if before is None else max(before, lowest)


def timers_due(record: Record, watermark: int | None, now: int, *, draining: bool = False) -> bool:
    """Whether a batch without input would fire a timer. `watermark` is that of the batch; a drain fires event time only."""
    shards = (s for operator in record.operators.values() for s in operator.all_shards)
    return any(
        (s.next_event_timer is not None and watermark is not None and s.next_event_timer <= watermark)
        or (not draining and s.next_processing_timer is not None and s.next_processing_timer <= now)
        for s in shards
    )


class Holder(NamedTuple):
    """What holds the watermark back."""

    source: str
    since: int
    """When it last had rows."""
    partition: str = ""
    """The partition of the source, if it is only that."""


def holder_of(flow: Flow, sources: Mapping[str, SourceState], idle_after: int) -> Holder | None:
    """What holds the watermark back: the lowest of the sources that are not idle, while another one had rows since and is ahead; or,
    whenever it last had rows, its lowest partition, if the rows there would be late by the newest row of the source. A source whose
    rows had no time yet holds it with every batch."""
    marks = _marks(flow, sources, idle_after)
    if not marks:
        return None
    uid = min(marks, key=lambda uid: (marks[uid] is not None, marks[uid] or 0))
    lowest = marks[uid]
    if uid not in sources or (active := sources[uid].active) is None:
        return None
    if held := _lowest_of_its_source(flow, uid, sources[uid], idle_after):
        return held
    passed = [
        other
        for other, mark in marks.items()
        if mark is not None
        and (lowest is None or mark > lowest)
        and (sources[other].active or 0) > (active - 1 if lowest is None else active)
    ]
    return Holder(uid, active) if passed else None


def _lowest_of_its_source(flow: Flow, uid: str, state: SourceState, idle_after: int) -> Holder | None:
    node = next(node for node in flow.sources if node.uid == uid)
    if not node.per_partition or state.event_time is None or node.watermark is None:
        return None
    name = lowest_partition(state.partitions, idle_after)
    if name is None:
        return None
    own = state.partitions[name]
    if own.event_time is None or own.active is None or own.event_time >= state.event_time - node.watermark:
        return None
    return Holder(uid, own.active, name)


def _marks(flow: Flow, sources: Mapping[str, SourceState], idle_after: int) -> dict[str, int | None]:
    """How far event time is in each source that is not idle; None for one that had no rows yet."""
    marks: dict[str, int | None] = {}
    timed = [node for node in flow.sources if node.event_time is not None]
    last = max(
        (
            s.active
            for node in timed
            if (s := sources.get(node.uid)) and s.event_time is not None and s.active
        ),
        default=None,
    )
    for node in timed:
        state = sources.get(node.uid)
        if state is None or node.watermark is None:
            marks[node.uid] = None
            continue
        had_rows_last = state.event_time is not None and state.active == last
        if had_rows_last or not is_idle(state.silent, idle_after):
            reached = _reached(node, state, idle_after)
            marks[node.uid] = None if reached is None else reached - node.watermark
    return marks


def _reached(node: SourceNode, state: SourceState, idle_after: int) -> int | None:
    """How far event time is in a source. Of a record from before the pipeline said `per_partition` no partition is known."""
    name = lowest_partition(state.partitions, idle_after) if node.per_partition else None
    return state.event_time if name is None else state.partitions[name].event_time


def advanced(
    sources: Mapping[str, SourceState],
    observed: Mapping[str, Observation],
    now: int,
    waiting: Collection[str] = (),
    *,
    before: Mapping[str, SourceState] = MappingProxyType({}),
    looked: Mapping[str, int] = MappingProxyType({}),
    cutting: Collection[str] = (),
) -> dict[str, SourceState]:
    """Source states with the event times, the activity and the silence of this batch. `waiting`: sources of which it was to take nothing: they
    are not idle. If they were, the watermark could pass the rows that wait. `before`: the sources before the batch. `looked`: until when
    it has looked into each source that it has read. `cutting`: sources that may end a batch where more follows.
    """
    out: dict[str, SourceState] = {}
    for uid, state in sources.items():
        observation, until = observed.get(uid), looked.get(uid)
        if observation is not None and observation.rows:
            times = [t for t in (state.event_time, observation.event_time) if t is not None]
            out[uid] = msgspec.structs.replace(
                state,
                event_time=max(times, default=None),
                active=now,
                partitions=_partitions_after(state, before.get(uid), observation, now, until),
                looked=max((at for at in (state.looked, until) if at is not None), default=None),
                silent=0,
            )
        elif uid in waiting:
            awake = kept_awake(state.partitions, now)
            out[uid] = msgspec.structs.replace(state, active=now, partitions=awake, silent=0)
        elif until is not None and is_read_through(state, before.get(uid), cuts_batches=uid in cutting):
            out[uid] = quiet_until(state, until)
        else:
            out[uid] = state
    return out


def _partitions_after(
    state: SourceState, before: SourceState | None, observation: Observation, now: int, until: int | None
) -> dict[str, PartitionTime]:
    if observation.partitions is None:
        return {}
    ends = parse(state.lines[0])
    begins = parse(before.lines[0]) if before is not None and before.lines[0] != NOTHING else {}
    unmoved = {partition for partition, end in ends.items() if begins.get(partition) == end}
    return advanced_partitions(
        state.partitions,
        observation.partitions,
        {_named(partition) for partition in ends},
        now,
        read_through={_named(partition) for partition in unmoved},
        gained=gained_by(state, until),
    )


def _named(partition: tuple[str, int]) -> str:
    topic, number = partition
    return f"{topic}/{number}"
