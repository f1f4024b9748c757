"""A person's right to be forgotten: erases one key from the job's state for good.

Deleting a key inside a database leaves the old bytes in its files. So the erasure rewrites the shard of the key, and
every other shard whose files may still hold such bytes. It copies the files of claimed savepoints into the job's own
folder, so that these savepoints can be deleted. Then it decides a record that names the new files, deletes everything
older, and releases the tags and other pins on it. It waits for readers of older checkpoints: a savepoint or fork in the
making would hold the key again. Finished savepoints belong to their owners: the report names them, and they stay.

Elements of operator state have no key, so nobody but the pipeline's author knows whether they tell of the person. The plan
names each such state that has elements, and the erasure empties those that the caller chooses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, cast

import msgspec

from stateflow.checkpoint.collection import CollectionReport
from stateflow.checkpoint.copying import copy_files
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.edit import Edited, edit
from stateflow.checkpoint.history_erasure import may_hold, spans
from stateflow.checkpoint.log import Log
from stateflow.checkpoint.pins import list_pins, release
from stateflow.checkpoint.process import this_process
from stateflow.checkpoint.writer import Writer
from stateflow.config.options import Options, scratch_parent
from stateflow.errors import BusyError, NotFoundError, StateflowError, UsageError
from stateflow.format.encoding import group_range, split, split_timer
from stateflow.format.expiry_blocks import block, decode_progress, encode_progress, is_block, keys_of
from stateflow.format.keygroups import key_group
from stateflow.format.records import OperatorListState, OperatorState, Owner, Pin, Record, Shard, ShownState
from stateflow.format.scalars import BY_NAME
from stateflow.format.sql_texts import text_in_quotes
from stateflow.liveness.heart import Heart
from stateflow.liveness.stale_pins import stale
from stateflow.pipelines.rows.row_type import quoted
from stateflow.reading.opened_shard import opened_shard
from stateflow.reading.query import key_from_text
from stateflow.reading.snapshots import checkpoint_reader, reader_context
from stateflow.replay.fork import sweep as sweep_forks
from stateflow.replay.reports import forget as forget_replays
from stateflow.savepoints.format import list_savepoints, unfinished
from stateflow.spark.carry_out import Sinks
from stateflow.spark.task.shards import TaskShards
from stateflow.spark.task.storage import TaskStorage, task_storage
from stateflow.state.backends.choice import open_backend
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.keys.text import forms_of_key
from stateflow.storage.scratch import sweep_scratch

if TYPE_CHECKING:
    from stateflow.jobs.job import Job

CHUNK = 50_000
LOOK_AGAIN = 0.5
"""Seconds between two looks for readers of older checkpoints."""


@dataclass(frozen=True)
class ErasePlan:
    """What erasing a key would do."""

    job: Job
    options: Options
    keys: Mapping[str, object]
    """The key per operator uid, as that operator has it."""
    key_columns: Mapping[str, tuple[tuple[str, str], ...]]
    """The columns of every operator that has keys, as the newest record has them: the plan holds for these operators alone."""
    checkpoint: int
    """The newest record with state. A run may have left it pending: then the erasure carries it out first."""
    dropped: tuple[int, ...]
    """Checkpoints with older state: the erasure deletes them."""
    pins: tuple[Pin, ...]
    """Tags and other pins that the erasure releases."""
    savepoints: tuple[str, ...]
    """Savepoints of the job in its root, also unfinished ones. They may hold the key, and stay."""
    rewritten_bytes: int
    """An upper bound: the erasure only reads some of these shards."""
    emptied: tuple[str, ...] = ()
    """Operator states, as `UID.STATE`, whose elements all go."""
    unreached: tuple[str, ...] = ()
    """Operator states with elements that stay, whatever is in them."""
    feeds: tuple[ShownState, ...] = ()
    """Tables of feeds of these operators: they keep the rows of the key."""
    conditions: Mapping[str, str] = field(default_factory=dict)
    """By operator: which rows of its feeds are those of the key, as Spark's SQL."""
    entries: Mapping[str, int] = field(default_factory=dict)
    """By operator: how many entries of the key the newest checkpoint has."""
    not_looked_at: Mapping[str, str] = field(default_factory=dict)
    """Operators with keys that stay as they are: by uid, how one of their keys is written."""

    @property
    def rows_elsewhere(self) -> list[str]:
        """What its author has to delete."""
        return sorted({f"{self.conditions[each.operator]} in {each.target}" for each in self.feeds})

    def apply(self, owner: Owner, *, takeover: bool = False) -> Erased:
        return _Erasure(self, owner, takeover).run()


@dataclass(frozen=True)
class Erased:
    checkpoint: int
    entries: int
    """How many entries of the key there were."""
    report: CollectionReport
    """The report of the collection that deleted the last older checkpoint."""
    savepoints: tuple[str, ...]
    """The plan's savepoints that are still there, new ones, and those that are `left`."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Savepoints that the job has claimed, that may hold the key, and that are not the job's to delete in this root, with the reason."""


def plan_erase(
    job: Job,
    key: str,
    options: Options,
    *,
    operator: str = "",
    empty: Collection[str] = (),
    absent: bool = False,
) -> ErasePlan:
    """Plans to erase `key`, given as text. Without `operator`: from every operator whose key it can be.

    `empty` names operator states, as `UID.STATE`, that lose all their elements. `absent` takes a key that the newest checkpoint
    does not have: older ones may have it. Without it, a misspelt key would take every older checkpoint, and leave the person's.
    """
    log = job.log()
    head = log.head
    # The erasure first carries out what a run has left pending, so that record says which operators there are to erase from.
    newest = next((record for record in reversed(log.pending) if record.carries_state), head)
    if newest is None:
        raise NotFoundError(f"job {job.name!r} has no checkpoint yet, so there is nothing to erase")
    if operator and operator not in newest.operators:
        names = ", ".join(sorted(newest.operators)) or "none"
        raise NotFoundError(f"job {job.name!r} has no operator {operator!r}; its operators are: {names}")
    elements = {name for name, state in _operator_states(newest).items() if any(state.parts)}
    if unknown := sorted(set(empty) - elements):
        raise NotFoundError(
            f"job {job.name!r} has no operator state {unknown[0]!r} with elements to empty: "
            f"{'those that have some are ' + ', '.join(sorted(elements)) if elements else 'none of its states without keys has any'}"
        )
    keys = dict(_keys(newest, key, operator))
    if not keys and not any(state.key for state in newest.operators.values()):
        if not empty:
            raise UsageError(
                f"no operator of job {job.name!r} has keys: name the state to empty with --empty UID.STATE; those with elements are "
                f"{', '.join(sorted(elements)) or 'none'}"
            )
    elif not keys:
        raise UsageError(
            f"{key!r} cannot be a key of any operator of job {job.name!r}: name one with --operator to see why"
        )
    entries = _entries(job, newest, keys, options, complete=newest is head)
    others = {
        uid: forms_of_key(state.key)
        for uid, state in sorted(newest.operators.items())
        if state.key and uid not in keys
    }
    if keys and not any(entries.values()) and not absent:
        raise NotFoundError(
            f"checkpoint {newest.slot}, the newest of job {job.name!r}, has nothing under the key {key!r} (looked at: "
            f"{', '.join(sorted(keys))}; not looked at: {', '.join(others) or 'none'}): write the key as the state has it, or go on with "
            "--absent (absent=True) if older checkpoints may have it; the erasure deletes them, with their tags"
        )
    return ErasePlan(
        job=job,
        options=options,
        keys=keys,
        key_columns=_key_columns(newest),
        checkpoint=newest.slot,
        dropped=tuple(r.slot for r in log.chain if r.carries_state),
        pins=tuple(_pins_to_release(log, list_pins(job.store, job.layout))),
        savepoints=_savepoints(job),
        rewritten_bytes=_bytes_to_rewrite(newest, keys),
        emptied=tuple(sorted(empty)),
        unreached=tuple(sorted(elements.difference(empty))),
        feeds=tuple(each for each in log.feeds if each.operator in keys),
        conditions={uid: _condition(newest.operators[uid], key) for uid, key in keys.items()},
        entries=entries,
        not_looked_at=others,
    )


def _entries(
    job: Job, record: Record, keys: Mapping[str, object], options: Options, *, complete: bool
) -> dict[str, int]:
    """By operator: how many entries of its key the record has."""
    if not keys:
        return {}
    counts = dict.fromkeys(keys, 0)
    context = reader_context(options, job.root, job.clock)
    with (
        checkpoint_reader(context, job.name, str(record.slot), owner=job.owner(), ids=job.new_id)
        if complete
        else closing(context.reader(record))
    ) as reader:
        for uid in keys.keys() & record.operators.keys():
            operator, key = record.operators[uid], keys[uid]
            keep, group = _Keep(operator, key), group_of(operator, key)
            for entry in reader.entries(uid, group, *group_range(group, group)):
                keep(*entry)
            counts[uid] = keep.dropped
    return counts


def _condition(operator: OperatorState, key: object) -> str:
    names = [name for name, _ in operator.key]
    values = (key,) if len(names) == 1 else cast("tuple[object, ...]", key)
    return " and ".join(
        f"{quoted(name)} = {_literal(value)}" for name, value in zip(names, values, strict=True)
    )


def _literal(value: object) -> str:
    if isinstance(value, bool | int):
        return str(value)
    if isinstance(value, Decimal):
        # Beside a text, Spark compares it as a float: the rows of keys that differ behind 15 digits would be named, too.
        return f"cast('{value:f}' as {BY_NAME['decimal'].spark})"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    return text_in_quotes(str(value))


def _operator_states(record: Record) -> dict[str, OperatorListState]:
    """Those of all operators, by `UID.STATE`."""
    return {
        f"{uid}.{name}": state
        for uid, operator in record.operators.items()
        for name, state in operator.operator_states.items()
    }


def _key_columns(record: Record) -> dict[str, tuple[tuple[str, str], ...]]:
    return {uid: state.key for uid, state in record.operators.items() if state.key}


def _keys(record: Record, text: str, operator: str) -> Iterator[tuple[str, object]]:
    for uid, state in record.operators.items():
        if not state.key or (operator and uid != operator):
            continue
        try:
            yield uid, key_from_text(state, text)
        except UsageError:
            if operator:
                raise


def _pins_to_release(log: Log, pins: list[Pin]) -> Iterator[Pin]:
    members, in_use = {record.slot for record in log.chain}, _pins_in_use(pins)
    yield from (pin for pin in pins if pin.slot in members and pin not in in_use)


def _pins_in_use(pins: Iterable[Pin], run: str = "") -> list[Pin]:
    """Pins of other processes that may still be reading. `run` is the idempotency key of this erasure."""
    others = [pin for pin in pins if pin.kind not in ("tag", "abandoned") and pin.owner.run != run]
    dead = stale(others, this_process())
    return [pin for pin in others if pin not in dead]


def _savepoints(job: Job) -> tuple[str, ...]:
    finished = {path for path, _ in list_savepoints(job.store, job.name)}
    return tuple(sorted(finished | set(unfinished(job.store, job.name))))


def group_of(operator: OperatorState, key: object) -> int:
    return key_group(key, operator.max_parallelism)


def _bytes_to_rewrite(record: Record, keys: Mapping[str, object]) -> int:
    operators = ((record.operators[uid], key) for uid, key in keys.items())
    return sum(
        shard.bytes
        for operator, key in operators
        for shard in operator.all_shards
        if may_hold(shard, group_of(operator, key), record.cut)
    )


def _pause() -> None:
    Event().wait(LOOK_AGAIN)


class _Erasure:
    def __init__(self, plan: ErasePlan, owner: Owner, takeover: bool) -> None:
        self.plan, self.owner, self.takeover = plan, owner, takeover
        self.job, self.options = plan.job, plan.options
        self.entries = 0
        self.left: dict[str, str] = {}
        self.reading = reader_context(plan.options, plan.job.root, plan.job.clock)

    def run(self) -> Erased:
        job, options = self.job, self.options
        patience = options.heartbeat_timeout.total_seconds()
        job.refuse_while_live(self.owner, takeover=self.takeover, patience=patience)
        beats = options.heartbeat_interval.total_seconds()
        self._refuse_while_copied()
        with Heart(job.store, job.layout, self.owner, beats, Event()) as heart:
            edited = self._edit(heart.begin)
        report = self._collect(edited.slot, max(1, round(patience / LOOK_AGAIN)))
        forget_replays(job.store, job.layout)
        sweep_forks(job.store)
        self._forget()
        return Erased(edited.slot, self.entries, report, (*_savepoints(job), *self.left), self.left)

    def _refuse_while_copied(self) -> None:
        """Runs before the claim. `_collect` finds readers that begin later."""
        for pin in _pins_in_use(list_pins(self.job.store, self.job.layout), self.owner.run):
            if pin.kind != "reader":
                raise BusyError(
                    f"nothing of job {self.job.name!r} is erased now: {self._reads(pin, 'erase the key')}"
                )

    def _collect(self, slot: int, looks: int) -> CollectionReport:
        """Deletes everything older than the record in `slot`. It looks again and again: tags may appear at any time."""
        job = self.job
        for look in range(looks):
            if look:
                _pause()
            pins = [pin for pin in list_pins(job.store, job.layout) if pin.slot < slot]
            in_use = _pins_in_use(pins, self.owner.run)
            for pin in pins:
                if pin not in in_use:
                    release(job.store, job.layout, pin.id)
            report = job.collect(retained=1)
            self.left.update(report.left)
            slots = job.log().slots
            remaining = [n for n in sorted(slots) if n < slot and slots[n].record is not None]
            if not remaining:
                return report
        state = f"record {slot} of job {job.name!r} has erased the key, but older ones still hold it"
        again = "erase it again with --absent (absent=True)"
        if in_use:
            raise BusyError(f"{state}: {self._reads(in_use[0], again)}")
        for url, why in report.undisposed.items():
            raise StateflowError(f"{state}, and the savepoint {url} cannot be deleted: {why}; then {again}")
        raise StateflowError(f"{state} ({', '.join(map(str, remaining))}): {again}")

    def _reads(self, pin: Pin, then: str) -> str:
        owner, gc = pin.owner, f"`stateflow gc {self.job.name} --release {pin.id} --yes`"
        who = f"{owner.user or owner.run}{' on ' + owner.host if owner.host else ''}"
        return (
            f"{pin.kind} by {who} reads checkpoint {pin.slot} ({pin.reason or 'no reason given'}): {then} when that "
            f"is over, or after {gc} if its process is gone for good"
        )

    def _forget(self) -> None:
        """Empties this host's cache: nobody knows which of its entries came from deleted files. What merges have left for a batch goes,
        too, however new it is."""
        storage = task_storage(self.options, self.job.root, self.job.name, 0, 0)
        storage.cache().clear()
        sweep_scratch(Path(storage.scratch_dir), now=lambda: math.inf)

    def _edit(self, begin: Callable[[int], object]) -> Edited:
        from stateflow.spark.session.build import build_session  # loads Spark

        job = self.job
        sinks = Sinks.of(job, lambda: build_session(f"stateflow erase {job.name}"))
        return edit(
            job.store,
            job.layout,
            self._draft,
            owner=self.owner,
            ids=job.new_id,
            clock=job.clock,
            carry_out=sinks.carry_out_pending,
            claimed_epoch=begin,
        )

    def _draft(self, writer: Writer) -> Draft:
        parent = writer.parent
        assert parent is not None
        self._require_planned_operators(parent)
        cut = parent.cut
        operators = dict(parent.operators)
        for uid, key in self.plan.keys.items():
            operators[uid] = self._without(operators[uid], key, writer, cut)
        operators = {uid: _emptied(uid, state, self.plan.emptied) for uid, state in operators.items()}
        # A claimed savepoint is deleted as a whole, once no record names any of its files.
        own, _ = copy_files(
            msgspec.structs.replace(parent, operators=operators),
            writer,
            self.job.open_base,
            ids=self.job.new_id,
            scratch=scratch_parent(self.options),
            needs_copy=lambda ref: bool(ref.base),
        )
        feeds = (each for each in writer.feeds if each.operator in self.plan.keys)
        return Draft.continuing(
            "erase", own, feeds=tuple(msgspec.structs.replace(each, erased=True) for each in feeds)
        )

    def _require_planned_operators(self, parent: Record) -> None:
        """A run, a restore or a release may have come since the plan. An operator that it does not know would keep the key."""
        if _key_columns(parent) == self.plan.key_columns and _operator_states(parent).keys() >= {
            *self.plan.emptied
        }:
            return
        raise UsageError(
            f"record {parent.slot} of job {self.job.name!r} has other operators, keys or states than record {self.plan.checkpoint}, for which this "
            "erasure was planned: nothing is erased; plan it again"
        )

    def _without(self, operator: OperatorState, key: object, writer: Writer, cut: int) -> OperatorState:
        group = group_of(operator, key)
        storage = task_storage(self.options, self.job.root, self.job.name, writer.epoch, writer.next_slot)
        keep = _Keep(operator, key)
        shards = tuple(
            tuple(
                self._rewrite(shard, storage, keep) if self._holds(shard, group, cut) else shard
                for shard in task
            )
            for task in operator.shards
        )
        self.entries += keep.dropped
        return msgspec.structs.replace(operator, shards=shards)

    def _holds(self, shard: Shard, group: int, cut: int) -> bool:
        """Whether files of the shard may have bytes of the key group. It asks their database's manifest when the record does not tell."""
        if not may_hold(shard, group, cut):
            return False
        if spans(shard, group) or shard.backend != "rocksdb":
            return True
        return self.reading.files().reaches(shard, *group_range(group, group))

    def _rewrite(self, old: Shard, storage: TaskStorage, keep: _Keep) -> Shard:
        shards = TaskShards((empty_shard(old),), storage, open_backend(self.options))
        whole = replace(self.reading, open_shard=open_backend(self.options))
        try:
            target = shards.open(0)
            with opened_shard(whole, old) as source:
                for chunk in _chunks(source.scan(*group_range(old.first, old.last)), keep):
                    target.write(chunk)
            shards.finish(
                0,
                target,
                (old.next_event_timer, old.next_processing_timer),
                (old.next_event_expiry, old.next_processing_expiry),
                old.expiring,
            )
            (new,) = shards.handles()
        finally:
            shards.close()
        return new


def _emptied(uid: str, operator: OperatorState, names: Collection[str]) -> OperatorState:
    """The operator without the elements of those of its operator states that are named."""
    states = {
        name: msgspec.structs.replace(state, parts=((),) * len(state.parts))
        if f"{uid}.{name}" in names
        else state
        for name, state in operator.operator_states.items()
    }
    return msgspec.structs.replace(operator, operator_states=states)


class _Keep:
    """What stays of an entry: None if it belongs to the key. Counts the entries that do."""

    def __init__(self, operator: OperatorState, key: object) -> None:
        self._key = KeyCodec([kind for _, kind in operator.key]).encode(key)
        self._group = group_of(operator, key)
        self._queues = frozenset(s.id for s in operator.states.values() if s.kind == "timer" or s.timed)
        self._indexes = frozenset(s.expiry_index for s in operator.states.values() if s.expiry_index)
        self.dropped = 0

    def __call__(self, full_key: bytes, value: bytes) -> bytes | None:
        group, state_id, body = split(full_key)
        if group != self._group:
            return value
        if state_id in self._indexes:
            return self._of_others(full_key, value)
        if state_id in self._queues:
            body = split_timer(body)[1]
        if not body.startswith(self._key):
            return value
        self.dropped += 1
        return None

    def _of_others(self, full_key: bytes, value: bytes) -> bytes | None:
        """An entry of an index of expiries, whose value has keys in it."""
        if is_block(full_key):
            keys = keys_of(value)
            others = [key for key in keys if not key.startswith(self._key)]
            return value if len(others) == len(keys) else block(others) if others else None
        progress = decode_progress(value)
        # The sweep begins this key group again: it may see an entry twice.
        return encode_progress(progress._replace(key=b"")) if progress.key.startswith(self._key) else value


def _chunks(
    entries: Iterator[tuple[bytes, bytes]], keep: Callable[[bytes, bytes], bytes | None]
) -> Iterator[list[tuple[bytes, bytes | None]]]:
    chunk: list[tuple[bytes, bytes | None]] = []
    for key, value in entries:
        kept = keep(key, value)
        if kept is not None:
            chunk.append((key, kept))
            if len(chunk) >= CHUNK:
                yield chunk
                chunk = []
    if chunk:
        yield chunk


def empty_shard(shard: Shard) -> Shard:
    """An empty shard over the same range."""
    return Shard(first=shard.first, last=shard.last, backend=shard.backend)
