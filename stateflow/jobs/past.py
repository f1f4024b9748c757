"""A job's past, for its verbs: which checkpoints to look at, how they are named, and what keeps them meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from stateflow.checkpoint.handle import JobHandle
from stateflow.checkpoint.log import Log, SlotCache
from stateflow.checkpoint.names import (
    Elsewhere,
    Name,
    Slot,
    Time,
    complete_records,
    newest_up_to,
    no_checkpoint,
    parse,
    slot_of,
)
from stateflow.checkpoint.pins import pinned
from stateflow.config.options import Options
from stateflow.errors import CorruptError, NotFoundError, UsageError
from stateflow.format.records import OperatorState, Record, StateSchema
from stateflow.reading.bisect import FirstBad, first_of_any, first_of_key
from stateflow.reading.diff import (
    ComparedSnapshot,
    Differences,
    compared_savepoint,
    names_of_states,
    no_point,
)
from stateflow.reading.history import KeyHistory, history_of_key
from stateflow.reading.key_state import as_last_argument, last_changes
from stateflow.reading.past_states import (
    DISK_READERS,
    READERS,
    KeyOfState,
    PastStates,
    gone,
    other_names,
)
from stateflow.reading.predicates import Predicate, condition
from stateflow.reading.snapshots import ReaderContext, reader_context
from stateflow.savepoints.format import read_savepoint

if TYPE_CHECKING:
    from stateflow.debugging.trial import Run, Trial
    from stateflow.debugging.written_test import Expectation
    from stateflow.pipelines.pipeline import Pipeline


_SEARCHES = 3
"""How often a bisection begins before it gives up on checkpoints that are collected."""


def kept_records(job: JobHandle, log: Log, since: str = "", until: str = "") -> list[Record]:
    """The records whose state can be read, ascending, from a slot, tag or time on. A time may lie before all of them."""
    records = complete_records(log)
    if not records:
        raise no_checkpoint(log)
    if since:
        name = parse(since)
        if isinstance(name, Time):
            records = [record for record in records if record.at >= name.micros]
        elif isinstance(name, Slot):
            records = [record for record in records if record.slot >= name.number]
        else:
            first = slot_of(name, job, log)
            records = [record for record in records if record.slot >= first]
    if until:
        last = slot_of(parse(until), job, log)
        records = [record for record in records if record.slot <= last]
    if not records:
        kept = complete_records(log)
        if since and until and any(record.slot <= last for record in kept):
            raise UsageError(f"--since {since} begins behind --until {until}: nothing lies between them")
        newest = kept[-1]
        raise NotFoundError(
            f"job {job.name!r} keeps no checkpoint in that time: its newest one is {newest.slot} of {Time(newest.at)}"
        )
    return records


def history(
    job: JobHandle, asked: KeyOfState, options: Options, *, since: str = "", limit: int | None = None
) -> KeyHistory:
    log = _log(job)
    records = kept_records(job, log, since)
    found = history_of_key(records, PastStates(_context(job, options)), asked, limit=limit)
    return replace(found, begins_later=begins_later(records, log, since))


def begins_later(records: Sequence[Record], log: Log, since: str) -> int | None:
    """The oldest of the records from `since` on, if that reaches further back than what is kept."""
    further = bool(since) and _lies_before(parse(since), complete_records(log)[0])
    return records[0].slot if further else None


def _lies_before(name: Name, record: Record) -> bool:
    if isinstance(name, Time):
        return name.micros < record.at
    return isinstance(name, Slot) and name.number < record.slot


def with_rows(
    job: JobHandle,
    found: KeyHistory,
    asked: KeyOfState,
    pipeline: Pipeline,
    options: Options,
    parameters: Mapping[str, Any],
    **request: Any,
) -> KeyHistory:
    """The history with the rows of its versions, read again by the pipeline's sources."""
    from stateflow.debugging.rows_of_versions import rows_of_versions, steps_of  # loads Spark
    from stateflow.reading.history import RowsOfVersion
    from stateflow.replay.evaluation import PastBatches
    from stateflow.replay.span import Step

    log = _log(job)
    records = kept_records(job, log)
    kept = {record.slot for record in records}
    collected = {
        version.slot: "it was collected meanwhile" for version in found.versions if version.slot not in kept
    }
    steps = steps_of(records, [version for version in found.versions if version.slot in kept]) | collected
    readable = [step for step in steps.values() if isinstance(step, Step)]
    if not readable:
        return replace(found, rows={slot: RowsOfVersion(why=str(step)) for slot, step in steps.items()})
    batches = PastBatches(job, pipeline, readable, log, options, parameters, **request)
    return replace(found, rows=rows_of_versions(batches, asked.operator, asked.key, steps))


def first_bad(
    job: JobHandle,
    operator: str,
    state: str,
    key: str | None,
    predicate: str | Predicate,
    options: Options,
    *,
    map_key: str | None = None,
    namespace: str | None = None,
    since: str = "",
    until: str = "",
    scan: bool = False,
) -> FirstBad:
    """Without a key: over all keys of the state. If a clean-up takes checkpoints meanwhile, it begins again with those that are left."""
    states = PastStates(_context(job, options))
    for _ in range(_SEARCHES):
        records = kept_records(job, _log(job), since, until)
        try:
            return _first_bad(records, states, operator, state, key, predicate, map_key, namespace, scan=scan)
        except (CorruptError, NotFoundError) as error:
            searched = {record.slot for record in records}
            if not gone(error) or searched <= {record.slot for record in complete_records(_log(job))}:
                raise
    raise NotFoundError(
        f"checkpoints of job {job.name!r} are collected faster than they are searched: search the newer ones with --since"
    )


def _first_bad(
    records: Sequence[Record],
    states: PastStates,
    operator: str,
    state: str,
    key: str | None,
    predicate: Predicate | str,
    map_key: str | None,
    namespace: str | None,
    *,
    scan: bool,
) -> FirstBad:
    try:
        schema = states.reader(records[-1]).target(operator, state).schema
    except NotFoundError as error:
        has = [r.slot for r in records if operator in r.operators and state in r.operators[operator].states]
        raise (
            NotFoundError(f"{error}; --until {has[-1]} searches those that have it") if has else error
        ) from None
    if isinstance(predicate, str):
        if schema.kind == "map" and key is not None and map_key is None:
            raise UsageError(
                f"state {state!r} of operator {operator!r} is a map: name the entry with --map-key, or give a Python function"
            )
        unfit = _without_columns(predicate, records, operator, state)
        records = [record for record in records if record.slot not in unfit]
        predicate = condition(predicate, schema)
    else:
        unfit = ()
    if key is None:
        found = first_of_any(records, states.context, operator, state, predicate)
    else:
        asked = KeyOfState(operator, state, key, map_key, namespace, limit=None)
        found = first_of_key(records, states, asked, predicate, scan=scan)
    return replace(found, other_types=unfit)


def _without_columns(text: str, records: Sequence[Record], operator: str, state: str) -> tuple[int, ...]:
    """The records whose type of the state lacks what a condition needs: there it would quietly be of nothing."""
    names = other_names(records, operator, state)
    schemas = {
        record.slot: owner.states[name]
        for record in records
        if (owner := record.operators.get(operator)) is not None
        and (name := names.get(record.slot, state)) in owner.states
    }
    types = {(schema.kind, schema.value): schema for schema in schemas.values()}
    unfit = {kind for kind, schema in types.items() if not _fits(text, schema)}
    without = {slot: (schema.kind, schema.value) in unfit for slot, schema in schemas.items()}
    if without.get(records[-1].slot, True):
        return ()  # a condition that does not even fit the newest type is refused, in words of its own
    return tuple(slot for slot, lacks in without.items() if lacks)


def _fits(text: str, schema: StateSchema) -> bool:
    try:
        condition(text, schema)
    except UsageError:
        return False
    return True


def debugged(
    job: JobHandle,
    pipeline: Pipeline,
    operator: str,
    key: str,
    at: str | int,
    options: Options,
    parameters: Mapping[str, Any],
    run: Run | None,
    expectation: Expectation | None = None,
    **request: Any,
) -> Trial | None:
    """The key in the batch of a checkpoint, run again. A key that the batch left alone is refused, with the checkpoints that did not."""
    from stateflow.debugging.past_key import past_key  # loads Spark
    from stateflow.debugging.trial import tried
    from stateflow.replay.evaluation import PastBatches
    from stateflow.replay.span import span

    log = _log(job)
    slot = slot_of(parse(str(at)), job, log)
    record = log.record(slot)
    if record.kind != "checkpoint":
        raise UsageError(
            f"record {slot} of job {job.name!r} is a {record.kind}, which no code computes: name a batch's checkpoint"
        )
    if expectation is not None:
        expectation.of(operator, record)
    batches = PastBatches(job, pipeline, span(log, slot, slot), log, options, parameters, **request)
    with past_key(batches, operator, key) as past:
        if past.is_untouched:
            raise NotFoundError(_untouched(job, log, past.then.operator, operator, key, slot, options))
        return tried(past) if run is None else tried(past, run)


MOST_NAMED = 5
"""Checkpoints that a refusal names."""


def _untouched(
    job: JobHandle, log: Log, operator: OperatorState, uid: str, key: str, slot: int, options: Options
) -> str:
    past = PastStates(_context(job, options))
    newest = last_changes(kept_records(job, log), past.reader, uid, key, MOST_NAMED)
    known = (
        f"kept checkpoints that changed it are {', '.join(map(str, newest))}"
        if newest
        else "no kept checkpoint changed it"
    )
    # What a state with namespaces holds is in one of them, and which is not known here.
    state = next((name for name, schema in operator.states.items() if not schema.namespace), "")
    asked = f"stateflow history {job.name} {uid} {state} {as_last_argument(key)}"
    look = f"; `{asked}` shows its values" if newest and state else ""
    if not newest and (before := newest_up_to(log, slot - 1)):
        look = f"; `stateflow diff {job.name} {before} {slot} --operator {uid}` shows keys that it changed"
    return f"the batch of checkpoint {slot} had no rows of key {key} for operator {uid!r}, and left its state alone: {known}{look}"


@contextmanager
def differing(
    job: JobHandle,
    before: str,
    after: str,
    options: Options,
    *,
    other: JobHandle | None = None,
    operators: Sequence[str] = (),
    states: Sequence[str] = (),
    look_up: bool | None = None,
) -> Iterator[Differences]:
    """The two points, each kept until the block ends; `after` is of the other job if one is given."""
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(_snapshot(whose, name, options))
            for whose, name in ((job, before), (other or job, after))
        )
        kept = (lambda: complete_records(_log(job))) if other is None else list
        names = names_of_states(one.record, two.record, kept)
        yield Differences(one, two, operators=operators, states=states, look_up=look_up, names=names)


@contextmanager
def _snapshot(job: JobHandle, text: str, options: Options) -> Iterator[ComparedSnapshot]:
    name = parse(text)
    context = _context(job, options)
    if isinstance(name, Elsewhere):
        store = replace(context, root=name.url).store()
        try:
            savepoint = read_savepoint(store)
        except NotFoundError as error:
            raise no_point(text, error) from error
        record = compared_savepoint(savepoint, store.url, job.name)
        yield ComparedSnapshot(f"the savepoint {name.url}", record, replace(context, root=store.url))
        return
    log = _log(job)
    slot = slot_of(name, job, log)
    record = log.record(slot)
    owner = job.owner()
    with pinned(
        job.store,
        job.layout,
        slot,
        kind="reader",
        owner=owner,
        ids=job.new_id,
        clock=job.clock,
        reason="diff",
    ):
        yield ComparedSnapshot(
            f"checkpoint {slot} of job {job.name!r}", msgspec.structs.replace(record), context
        )


def _log(job: JobHandle) -> Log:
    """It may have a thousand records, so several are read at once: each waits for the network, or for a disk to keep its name."""
    at_once = READERS if job.store.local_root is None else DISK_READERS
    with ThreadPoolExecutor(at_once, "stateflow-log") as pool:
        return job.log(SlotCache(each=pool.map))


def _context(job: JobHandle, options: Options) -> ReaderContext:
    return reader_context(options, job.root, job.clock)


__all__ = ["debugged", "differing", "first_bad", "history", "kept_records", "with_rows"]
