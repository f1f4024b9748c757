"""What a job looks like from outside, for people and programs. Nothing in the protocol depends on it.

`asdict` of each value is a stable document. Names are Flink's where Flink has one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from msgspec.structs import asdict

from stateflow.checkpoint.control import Heartbeat, Progress
from stateflow.checkpoint.log import Log
from stateflow.checkpoint.pins import tags_among
from stateflow.checkpoint.statistics import INPUT_FREE, HistoryLine, held, summary
from stateflow.format.instants import END_OF_TIME
from stateflow.format.records import (
    ExpiryShare,
    Owner,
    Pin,
    Record,
    Shard,
    SourceState,
    StateSchema,
    total_size,
)
from stateflow.format.references import references
from stateflow.observe.batch_sizes import hot_key_of, sizes_document, sources_that_waited
from stateflow.observe.operator_words import combiner_text, late_text, operator_text
from stateflow.quantities import written_duration

Status = Literal["CREATED", "RUNNING", "IDLE", "LOST"]


@dataclass(frozen=True, slots=True)
class OperatorStatus:
    uid: str
    key: str
    parallelism: int
    max_parallelism: int
    shards: int
    entries: int
    """An estimate: an overwritten entry counts until the database has merged it away."""
    state_size: int
    backend: str
    states: dict[str, str]
    """By name of the state: its type."""
    ttl: dict[str, str]
    """By name of the state: how long it lives, if it expires."""
    expired: int
    """Entries that left with the newest batch because their ttl was over."""
    expiring: bool
    """Whether there are expired entries that wait for the next batches; nobody is given them."""
    live_bytes: dict[str, int] = field(default_factory=dict)
    """By name of the state that expires: about how many bytes of it live on. Before compression, without the index."""
    expired_bytes: dict[str, int] = field(default_factory=dict)
    """The same for entries that have expired by the time of the head and are still stored."""
    what: str = ""
    """Of a ready-made operator: what it is."""
    combiner: str = ""
    """Of an operator whose batches may be summed up before the exchange: what the newest batch did, and why."""
    late: str = ""
    """How many rows of the newest batch came late to it."""
    hot_key: dict[str, Any] = field(default_factory=dict)
    """The share of the newest batch's rows that one key has, and the subtask that works on it; empty when none is hot."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    uid: str
    kind: str
    position: str
    offsets: list[dict[str, Any]]
    """The decoded offset of every stream of the source."""
    lines: list[str]
    """The same offsets as Spark writes them, and as `stateflow state import --offset` takes them."""
    event_time: int | None
    """Highest event time seen, microseconds since 1970."""

    @property
    def data(self) -> Any:
        """The position as plain data, such as `{"version": 12}`; a list when the source has several streams."""
        found = [position_data(offset) for offset in self.offsets]
        return found[0] if len(found) == 1 else found


@dataclass(frozen=True, slots=True)
class SinkStatus:
    uid: str
    kind: str
    target: str
    last_commit: int | None
    """The highest slot whose output the sink has."""
    name: str = ""
    """What a catalog calls the target; empty if the pipeline gives its path."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job at one glance."""

    name: str
    root: str
    uuid: str
    created_at: int
    """Microseconds since 1970, like every time here unless noted otherwise."""
    status: Status
    epoch: int
    owner: dict[str, Any]
    """The owner of the newest run that wrote a heartbeat, or else of the newest record."""
    heartbeat_at: int | None
    head: int | None
    """The newest complete checkpoint that carries state."""
    head_at: int | None
    """When it was decided."""
    last_checkpoint_at: int | None
    """When the newest checkpoint in the head's own history was taken: after a restore, the restored one. None if there is
    none, for example after a restore from a savepoint."""
    looked_at: int | None
    """When the newest run last had read all its input, with or without a checkpoint; None if it never had."""
    over: bool
    """Whether the job was drained for good and needs no more runs."""
    pending: list[int]
    """Slots that are decided and not carried out: the next run carries them out, or `stateflow abandon` gives them up."""
    timeline: int
    floor: int
    watermark: int | None
    state_size: int
    num_files: int
    operators: list[OperatorStatus]
    sources: list[SourceStatus]
    sinks: list[SinkStatus]
    tags: dict[str, int]
    pins: list[dict[str, Any]]
    parameters: dict[str, str]
    versions: dict[str, str]
    checkpoints: dict[str, Any] = field(default_factory=dict)
    """Flink's gauges: numberOfCompletedCheckpoints, lastCheckpointSize, ..."""
    progress: dict[str, Any] = field(default_factory=dict)
    """What the newest run reported about its last batch."""
    watermark_held: dict[str, Any] = field(default_factory=dict)
    """The source that holds the watermark back while others are ahead, or the partition of it, and since when it has had no rows; empty when
    none does."""
    batch_size: dict[str, Any] = field(default_factory=dict)
    """Of the newest batch that has read something: the target, its duration and rows, and per stream of a source what it might take and what it took;
    empty without `target_batch_duration`."""
    waited: dict[str, str] = field(default_factory=dict)
    """The sources that the newest batch took nothing of, since they were ahead, each with the one that it waits for."""
    outcome: dict[str, Any] = field(default_factory=dict)
    """How the newest run ended: exit_code, error, stopped, ...; empty while it runs, or when it did not report it."""
    to_be_restored: bool = False
    """Whether a restore made the job, and has not brought its state."""
    half_deleted: bool = False
    """Whether somebody began to delete the job, and did not come to the end."""
    damage: str = ""
    """What of the job's log cannot be read or is missing, as a part of a sentence; empty if nothing is."""


def status_of(
    log: Log,
    root: str,
    *,
    heartbeat: Heartbeat | None,
    progress: Progress | None,
    pins: Iterable[Pin],
    lines: Iterable[HistoryLine],
    now: int,
    patience: int,
    gone: bool = False,
    begun_by_restore: bool = False,
) -> JobStatus:
    """The status, computed from what was read. `now` and `patience` are microseconds. `gone` says that the process of the
    heartbeat is known to have ended."""
    assert log.identity is not None
    head, top = log.head, log.decided
    pins, lines = list(pins), list(lines)
    owner = heartbeat.owner if heartbeat else top.owner if top else None
    refs = list(references(head)) if head else []
    return JobStatus(
        name=log.job,
        root=root,
        uuid=log.identity.uuid,
        created_at=log.identity.at,
        status=_status(log, heartbeat, now, patience, gone),
        epoch=log.newest_epoch,
        owner={
            **(owner_document(owner) if owner else {}),
            **({"warm_host": heartbeat.warm_host} if heartbeat and heartbeat.warm_host else {}),
        },
        heartbeat_at=heartbeat.at if heartbeat else None,
        head=head.slot if head else None,
        head_at=head.at if head else None,
        last_checkpoint_at=_last_checkpoint_at(head, lines),
        looked_at=_looked_at(heartbeat),
        over=head is not None and head.final,
        pending=[r.slot for r in log.pending if r.carries_state],
        timeline=top.timeline if top else 1,
        floor=log.floor,
        watermark=head.watermark if head else None,
        state_size=total_size(refs),
        num_files=len({(ref.base, ref.path) for ref in refs if ref.path}),
        operators=[_operator(uid, head) for uid in head.operators] if head else [],
        sources=[source_status(uid, s) for uid, s in head.sources.items()] if head else [],
        sinks=_sinks(log, head),
        tags={p.name: p.slot for p in sorted(tags_among(pins).values(), key=lambda p: (p.slot, p.at, p.id))},
        pins=[_pin(p) for p in pins if p.kind != "tag"],
        parameters=dict(head.parameters) if head else {},
        versions=dict(head.versions) if head else {},
        checkpoints=asdict(summary(lines)),
        progress={"checkpoint": progress.slot, "at": progress.at, **progress.statistics} if progress else {},
        watermark_held=_held(head),
        batch_size=_batch_size(log, lines),
        waited=sources_that_waited(head.statistics) if head else {},
        outcome=asdict(heartbeat.outcome) if heartbeat and heartbeat.outcome else {},
        to_be_restored=begun_by_restore and head is None and not log.pending and not log.half_deleted,
        half_deleted=bool(log.half_deleted),
        damage=log.damage,
    )


def owner_document(owner: Owner) -> dict[str, Any]:
    return {name: value for name, value in asdict(owner).items() if value}


def _held(head: Record | None) -> dict[str, Any]:
    return held(head.statistics) if head else {}


def _batch_size(log: Log, lines: Iterable[HistoryLine]) -> dict[str, Any]:
    """Of the newest batch that has read something: one for timers alone takes what it takes, whatever the target is."""
    newest = newest_that_read(log)
    if newest is None:
        return {}
    line = next((line for line in lines if line.id == newest.slot), None)
    rows, duration = (line.processed_rows, line.end_to_end_duration) if line else (0, None)
    return sizes_document(newest.statistics, rows, duration)


def newest_that_read(log: Log) -> Record | None:
    """The head, or behind batches for timers alone the newest checkpoint whose batch has read something."""
    if log.head is None or not log.head.statistics.get(INPUT_FREE):
        return log.head
    return next((r for r in reversed(log.checkpoints) if not r.statistics.get(INPUT_FREE)), log.head)


def _status(log: Log, heartbeat: Heartbeat | None, now: int, patience: int, gone: bool) -> Status:
    """For people only: it compares the clocks of two hosts. `checkpoint.control.watch` decides whether to wait for a run."""
    if heartbeat is not None and not heartbeat.ended:
        silent = now - heartbeat.at >= heartbeat.patience(patience / 1e6) * 1e6
        return "LOST" if gone or silent else "RUNNING"
    return "IDLE" if log.chain or log.trace else "CREATED"


def _looked_at(heartbeat: Heartbeat | None) -> int | None:
    if heartbeat is None:
        return None
    read_all = heartbeat.outcome is not None and heartbeat.outcome.nothing_left
    times = [heartbeat.at if read_all else None, heartbeat.looked_at]
    return max((at for at in times if at is not None), default=None)


def _last_checkpoint_at(head: Record | None, lines: Iterable[HistoryLine]) -> int | None:
    """When the job took the checkpoint whose state the head continues. A restore or another edit reads no newer input."""
    if head is None or head.kind == "checkpoint":
        return head.at if head else None
    by_slot = {line.id: line for line in lines}
    line = by_slot.get(head.slot)
    while line is not None and line.kind != "checkpoint":
        below = line.based_on or 0
        # A record continues an earlier one; a damaged one that names a later one would lead in a circle.
        line = by_slot.get(below) if below < line.id else None
    return line.latest_ack_timestamp * 1000 if line else None


def _operator(uid: str, head: Record) -> OperatorStatus:
    state = head.operators[uid]
    of_batch = head.statistics.get("operators")
    figures = of_batch.get(uid) if isinstance(of_batch, dict) else None
    expired = figures.get("expired") if isinstance(figures, dict) else None
    notes = head.statistics.get("combiner")
    shards = list(state.all_shards)
    hot = hot_key_of(figures)
    sizes = {
        name: _expiring_sizes(s, shards, head)
        for name, s in state.states.items()
        if s.ttl is not None and s.expiry_index
    }
    return OperatorStatus(
        uid=uid,
        key=", ".join(f"{name} {kind}" for name, kind in state.key),
        parallelism=len(state.assignment),
        max_parallelism=state.max_parallelism,
        shards=len(shards),
        entries=sum(s.entries for s in shards),
        state_size=total_size(state.files),
        backend=", ".join(sorted({s.backend for s in shards})),
        states={
            name: f"{s.kind} {f'{s.map_key} -> ' if s.map_key else ''}{s.value}".strip()
            for name, s in state.states.items()
        }
        | {
            # The pages' copy of a record has no elements, so they are not counted here.
            name: f"operator {s.kind} {s.schema}"
            for name, s in state.operator_states.items()
        },
        ttl={name: _ttl(s, s.ttl) for name, s in state.states.items() if s.ttl is not None},
        expired=expired if isinstance(expired, int) else 0,
        expiring=any(_is_expiring(shard, head) for shard in shards),
        live_bytes={name: live for name, (live, _) in sizes.items()},
        expired_bytes={name: gone for name, (_, gone) in sizes.items()},
        what=operator_text(state.options),
        combiner=combiner_text(notes.get(uid) if isinstance(notes, dict) else None),
        late=late_text(figures),
        hot_key=asdict(hot) if hot else {},
    )


def _expiring_sizes(schema: StateSchema, shards: Iterable[Shard], head: Record) -> tuple[int, int]:
    """About how many bytes of a state live, and how many have expired and are still stored."""
    clock = head.watermark if schema.ttl_time == "event" else head.now
    shares = [share for shard in shards for share in shard.expiring if share.state == schema.id]
    gone = 0
    if clock is not None and clock < END_OF_TIME:
        gone = sum(_expired_size(share, clock) for share in shares)
    return sum(share.size for share in shares) - gone, gone


def _expired_size(share: ExpiryShare, clock: int) -> int:
    """As if its entries expired evenly over the range."""
    if clock < share.first:
        return 0
    if clock >= share.last:
        return share.size
    return share.size * (clock - share.first) // (share.last - share.first)


def _ttl(schema: StateSchema, length: int) -> str:
    begin = "read or written" if schema.ttl_renew == "read" else "written"
    return (
        f"{written_duration(timedelta(microseconds=length))} after it was {begin}, in {schema.ttl_time} time"
    )


def _is_expiring(shard: Shard, head: Record) -> bool:
    event, processing = shard.next_event_expiry, shard.next_processing_expiry
    mark = head.watermark
    return (event is not None and mark is not None and event <= mark < END_OF_TIME) or (
        processing is not None and processing <= head.now
    )


def position_data(offset: dict[str, Any]) -> dict[str, Any]:
    """What has been read, for programs: `{"version": 12}` of a Delta table, `{"orders": {"0": 17}}` (the next offsets) of Kafka,
    `{"log_offset": 3}` of files, else `{"offset": text}`. A version that is read in part also has `"index"`."""
    if "version" in offset:
        version, index, snapshot = offset["version"], offset["index"], offset["snapshot"]
        if index < 0:
            return {"version": version - 1} if version and not snapshot else {}
        return {"version": version, "index": index, **({"snapshot": True} if snapshot else {})}
    if "topics" in offset:
        return {
            topic: {str(p): at for p, at in partitions.items()}
            for topic, partitions in offset["topics"].items()
        }
    return {name: offset[name] for name in ("log_offset", "offset") if name in offset}


def decoded_offsets(state: SourceState) -> list[dict[str, Any]]:
    """The position of each stream of a source, readable for people and programs."""
    from stateflow.format.source_offsets import decode

    return [decode(line, state.kind if len(state.lines) == 1 else "") for line in state.lines]


def position_of(state: SourceState) -> str:
    return "; ".join(str(offset.get("position", "")) for offset in decoded_offsets(state))


def source_status(uid: str, state: SourceState) -> SourceStatus:
    """What a record says of a source."""
    return SourceStatus(
        uid=uid,
        kind=state.kind,
        position=position_of(state),
        offsets=decoded_offsets(state),
        lines=list(state.lines),
        event_time=state.event_time,
    )


def _sinks(log: Log, head: Record | None) -> list[SinkStatus]:
    commits, newest = log.last_commits, log.newest_sinks
    # The record of a restore or a rescale has no outputs: the sinks that have delivered are known from those before it.
    uids = {*commits, *(head.sinks if head else ())}
    sinks = {
        uid: SinkStatus(uid, newest[uid].kind, newest[uid].target, commits.get(uid), newest[uid].name)
        if uid in newest
        else SinkStatus(uid, "", "", commits.get(uid))
        for uid in uids
    }
    return [sinks[uid] for uid in sorted(sinks)]


def _pin(pin: Pin) -> dict[str, Any]:
    return {
        "id": pin.id,
        "checkpoint": pin.slot,
        "kind": pin.kind,
        "name": pin.name,
        "reason": pin.reason,
        "at": pin.at,
    }
