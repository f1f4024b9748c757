"""Builds savepoints from tables: from any tables (bootstrap), or from those of a snapshot with some replaced (edit).

It touches no job. The result is a savepoint, which `stateflow restore` takes like any other.
"""

from __future__ import annotations

import logging
import tempfile
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
from pyspark.sql import DataFrame, SparkSession

from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.log import has_tombstone, is_job, read_log
from stateflow.checkpoint.pins import pinned
from stateflow.checkpoint.rescale import first_assignment
from stateflow.compatibility.non_restored import non_restored
from stateflow.compatibility.states import (
    check_options,
    declared_states,
    options_behind,
    recorded_names,
    resolve_states,
)
from stateflow.config.options import Options, scratch_parent
from stateflow.errors import IncompatibleError, NotFoundError, StateflowError, UsageError
from stateflow.format.layout import SAVEPOINT_BUILT, SAVEPOINTS, JobLayout
from stateflow.format.records import (
    FileRef,
    OperatorState,
    Owner,
    Record,
    Savepoint,
    SourceState,
    StateSchema,
)
from stateflow.format.references import with_references
from stateflow.format.source_offsets import check_given, kinds_of, read_until
from stateflow.observe.status import decoded_offsets
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import KeyedNode
from stateflow.pipelines.inputs.files import Files
from stateflow.pipelines.pipeline import Pipeline
from stateflow.pipelines.rows.row_type import key_type
from stateflow.savepoints.location import require_fit
from stateflow.savepoints.native import create_native
from stateflow.savepoints.outputs import JobOutputs
from stateflow.savepoints.publish import SavepointFacts, probe_elsewhere, remove_empty, require_vacant
from stateflow.spark.inputs.open_inputs import open_source
from stateflow.spark.sources.files import entry_until
from stateflow.spark.state_tables.canonical import create_canonical
from stateflow.spark.state_tables.frames import table_frame
from stateflow.spark.state_tables.load import load_state
from stateflow.spark.state_tables.snapshots import TableSnapshot
from stateflow.spark.task.storage import TaskStorage, task_storage
from stateflow.state.backends.choice import open_backend
from stateflow.state.tabular import TIMERS, tables_of
from stateflow.storage.files import inline, upload_file
from stateflow.storage.local import held_root
from stateflow.storage.places import paths_inside
from stateflow.storage.roots import open_recorded, open_store
from stateflow.storage.store import Store

_log = logging.getLogger(__name__)

Tables = Mapping[str, Mapping[str, DataFrame]]
"""By operator uid and state name; timers are `_timers`."""


@dataclass(frozen=True)
class BuildRequest:
    """The contents of the savepoint, and its place."""

    pipeline: Pipeline
    tables: Tables
    to: str
    options: Options
    owner: Owner
    parameters: Mapping[str, Any] = field(default_factory=dict)
    like: TableSnapshot | None = None
    """The snapshot that supplies what `tables` leaves out: other states, sources' offsets, the watermark."""
    offsets: Mapping[str, str] = field(default_factory=dict)
    """Per source uid the offset as Spark writes it (JSON). Other sources start at their beginning."""
    kind: Literal["native", "canonical"] = "canonical"
    note: str = ""


def table_names(flow: Flow) -> dict[str, tuple[str, str]]:
    """By OPERATOR.STATE, as a user writes it, the uid and the name of each state that a table can be given for: both may have dots."""
    return {
        f"{node.uid}.{name}": (node.uid, name)
        for node in flow.operators
        for name in (*declared_states(node), TIMERS)
    }


def build_savepoint(spark: SparkSession, request: BuildRequest) -> Savepoint:
    """Encodes the tables, brings their rows together by key, and writes a savepoint into the folder `to`."""
    flow, options, like = request.pipeline.build(request.parameters), request.options, request.like
    nodes = {node.uid: node for node in flow.operators}
    if unknown := sorted(set(request.tables) - set(nodes)):
        raise NotFoundError(
            f"pipeline {flow.name!r} has no operator {unknown[0]!r} to make state for; its operators are: "
            f"{', '.join(sorted(nodes)) or 'none'}"
        )
    _check_offsets(spark, request, flow)
    if like is not None:
        _check_kept(request, flow, like.record)
    job = request.pipeline.name
    if like is not None:
        job = like.savepoint.job if like.savepoint is not None else like.origin.job
    slot = like.record.slot if like else 1
    store = open_store(request.to, options.storage_options, fsync=options.local_fsync)
    root = open_store(options.checkpoint_dir, options.storage_options) if options.checkpoint_dir else None
    if root is not None:
        require_fit(store.url, root.url, job, lambda folder: is_job(root, folder))
    require_vacant(store)
    probe_elsewhere(store, root.url if root is not None else "", _new_id)
    # In the savepoint's own folder: if this process is killed, a disposal finds the files there.
    building = f"{SAVEPOINT_BUILT}{_new_id()}"
    storage = task_storage(options, request.to, building, 1, slot)
    with ExitStack() as stack:
        _hold_clean_ups_back(stack, request, store, root, job)
        stack.callback(_remove_build, store, building)
        if like is not None:
            stack.enter_context(like.pinned(request.owner, _new_id, _micros, f"read to build {request.to}"))
        operators = {
            uid: _operator(spark, nodes[uid], request, storage)
            for uid in nodes
            if uid in request.tables or (like is not None and uid in like.record.operators)
        }
        sources = _sources(spark, request, flow, store, building)
        record = _record(request, operators, sources, slot, _new_id(), _micros())
        facts = SavepointFacts(
            name=Path(request.to.rstrip("/")).name,
            owner=request.owner,
            note=request.note,
            offsets={uid: decoded_offsets(state) for uid, state in record.sources.items()},
            outputs=_outputs(request),
        )
        if request.kind == "canonical":
            return create_canonical(
                spark, facts, root_url=request.to, job=job, record=record, target_url=request.to,
                storage_options=options.storage_options, options=options, ids=_new_id, clock=_micros,
            )  # fmt: skip
        return create_native(
            store, JobLayout(job), record, store, facts, ids=_new_id, clock=_micros,
            open_base=lambda base: open_recorded(base, options.storage_options, root=store.url), scratch=scratch_parent(options),
        )  # fmt: skip


def _new_id() -> str:
    return uuid.uuid4().hex


def _micros() -> int:
    return time.time_ns() // 1000


def _check_offsets(spark: SparkSession, request: BuildRequest, flow: Flow) -> None:
    """Refuses offsets that fit no source. The first run would only say that the checkpoint does not fit."""
    sources = {node.uid: node for node in flow.sources}
    for uid, line in request.offsets.items():
        if uid not in sources:
            raise NotFoundError(
                f"pipeline {flow.name!r} has no source {uid!r}; its sources are: {', '.join(sorted(sources))}"
            )
        _, leaves = open_source(spark, sources[uid], exactly_once=request.options.delivery == "exactly_once")
        check_given(uid, [leaf.kind for leaf in leaves], line)
        if leaves[0].kind == "file" and not isinstance(sources[uid].factory, Files):
            raise UsageError(
                f"source {uid!r} reads files that it does not name: declare it with sf.files(path, format), keep where it is "
                "with --like, or let it begin at its beginning"
            )


def _check_kept(request: BuildRequest, flow: Flow, before: Record) -> None:
    """Refuses a pipeline that leaves state of the snapshot out, as a restore would: the savepoint does not have it, so no restore can tell."""
    # A source whose offset is given is read from there, not from its beginning.
    given = {uid: SourceState(lines=(line,)) for uid, line in request.offsets.items()}
    left = non_restored(flow, msgspec.structs.replace(before, sources={**before.sources, **given}))
    if left.refusal:
        raise IncompatibleError(left.refusal)
    for node in flow.operators:
        if (state := before.operators.get(node.uid)) is None:
            continue
        if refusal := left.of_states(node, state, _given_states(node, request.tables.get(node.uid, {}))):
            raise IncompatibleError(refusal)
    for sentence in left.dropped:
        _log.warning("%s", sentence)


def _sources(
    spark: SparkSession, request: BuildRequest, flow: Flow, store: Store, building: str
) -> dict[str, SourceState]:
    """Where the sources begin whose offset was given. That of a source of files stands for a log of the files it has read."""
    files = {node.uid: node.factory for node in flow.sources if isinstance(node.factory, Files)}
    states: dict[str, SourceState] = {}
    for uid, line in request.offsets.items():
        if uid not in files:
            states[uid] = SourceState(lines=(line,), kind=kinds_of((line,)))
        elif (log := entry_until(files[uid].listed(spark), read_until(uid, line))) is not None:
            entry = inline("0/0", log)
            if len(log) > request.options.inline_threshold:
                entry = _uploaded(store, f"{building}/{uid}-read.log", log)
            states[uid] = SourceState(lines=('{"logOffset":0}',), files=(entry,), kind="file")
    return states


def _uploaded(store: Store, path: str, log: bytes) -> FileRef:
    with tempfile.TemporaryDirectory(prefix="stateflow-") as folder:
        local = Path(folder, "0")
        local.write_bytes(log)
        return upload_file(store, path, local, "0/0")


def _hold_clean_ups_back(
    stack: ExitStack, request: BuildRequest, store: Store, root: Store | None, job: str
) -> None:
    """A clean-up of a job deletes what is unfinished among its savepoints, unless a pin says that somebody makes one. So an import in
    there pins the job's newest checkpoint, whatever it is made like. Nothing can pin a deleted job."""
    if root is None or not any(
        path.startswith(f"{SAVEPOINTS}/") for path in paths_inside(store.url, root.url)
    ):
        return
    layout = JobLayout(job)
    if has_tombstone(root, layout):
        raise UsageError(
            f"{store.url} is no place for a new savepoint: job {job!r} is deleted, and a clean-up deletes what is unfinished there; choose a "
            f"folder outside of {root.url}/{SAVEPOINTS}"
        )
    head = read_log(root, layout).head
    if head is not None:
        what = f"import into {store.url}"
        stack.enter_context(
            pinned(
                root,
                layout,
                head.slot,
                kind="savepoint",
                owner=request.owner,
                ids=_new_id,
                clock=_micros,
                reason=what,
            )
        )


def _remove_build(store: Store, building: str) -> None:
    # Nothing names these files, and the error that led here says more.
    with suppress(StateflowError), held_root(store) as held:
        held.delete([entry.path for entry in held.list(f"{building}/")])
    remove_empty(store)


def still_read(
    feeds: Sequence[tuple[str, str]], tables: Mapping[str, Mapping[str, Any]]
) -> tuple[tuple[str, str], ...]:
    """Of the feeds that an operator has read, those whose state is not made anew: of the others it has had other rows."""
    return tuple((operator, state) for operator, state in feeds if state not in tables.get(operator, {}))


def _operator(
    spark: SparkSession, node: KeyedNode, request: BuildRequest, storage: TaskStorage
) -> OperatorState:
    own_tables, like, options = request.tables.get(node.uid, {}), request.like, request.options
    before = like.record.operators.get(node.uid) if like is not None else None
    if before is not None and set(before.states) - set(own_tables):
        check_options(node, before)  # what is kept of it was made with them
    states, next_id = _states(node, before, own_tables)
    if before is None:
        before = OperatorState(
            key=_key(node, own_tables),
            max_parallelism=options.max_parallelism,
            assignment=first_assignment(
                node.uid,
                node.parallelism,
                options.parallelism or spark.sparkContext.defaultParallelism,
                options.max_parallelism,
            ),
            shards=(),
            parallelism=node.parallelism,
        )
    operator = msgspec.structs.replace(
        before,
        states=states,
        next_state_id=next_id,
        options=options_behind(node, before),
        feeds=still_read(before.feeds, request.tables),
    )
    tables = tables_of(before) if like is not None and before.states else {}
    frames = {
        name: table_frame(spark, like, node.uid, name)
        for name in tables
        if like is not None and name not in own_tables and (name in states or name == TIMERS)
    }
    return load_state(
        {**frames, **own_tables},
        operator,
        storage=storage,
        backend=options.backend,
        parallelism=len(operator.assignment),
        max_parallelism=operator.max_parallelism,
        open_shard=open_backend(options),
        uid=node.uid,
    )


def _states(
    node: KeyedNode, before: OperatorState | None, given: Collection[str]
) -> tuple[dict[str, StateSchema], int]:
    """Given states have today's type and name. States that are taken over stay as they were: the next run converts them."""
    states, next_id = resolve_states(node, before, given=_given_states(node, given))
    names = recorded_names(node, before) if before is not None else {}
    out: dict[str, StateSchema] = {}
    for name, schema in states.items():
        table = TIMERS if schema.kind == "timer" else name
        if before is not None and name in names and table not in given:
            out[names[name]] = before.states[names[name]].written_anew()
        else:
            out[name] = schema.written_anew()
    return out, next_id


def _given_states(node: KeyedNode, tables: Collection[str]) -> set[str]:
    """The declared states that these tables hold: one table has all timers."""
    return {
        name for name, s in declared_states(node).items() if (TIMERS if s.kind == "timer" else name) in tables
    }


def _key(node: KeyedNode, tables: Mapping[str, DataFrame]) -> tuple[tuple[str, str], ...]:
    """The key's columns with their types: the rows declare them, or else the first table has them."""
    rows = node.rows[0]
    columns = dict(next(iter(tables.values())).dtypes) if tables else {}
    key = []
    for name in node.keyed[0].columns:
        declared = rows.field(name) if rows is not None else None
        spark_type = declared.type if declared is not None else columns.get(name)
        kind = key_type(spark_type) if spark_type is not None else None
        if kind is None:
            raise UsageError(
                f"operator {node.uid!r}: the type of key column {name!r} is not known: give its tables that column, or its "
                "rows a type"
            )
        key.append((name, kind))
    return tuple(key)


def _outputs(request: BuildRequest) -> JobOutputs:
    """Those of the snapshot. Where an offset moves one of its sources, nobody knows what of the rows behind it was delivered. A feed's
    table shows the state of before, which a state that is made anew does not continue."""
    like = request.like
    if like is None:
        return JobOutputs()
    outputs = like.outputs()
    return replace(
        outputs,
        last_commits=None if request.offsets.keys() & like.record.sources.keys() else outputs.last_commits,
        feeds=tuple(
            each for each in outputs.feeds if still_read([(each.operator, each.state)], request.tables)
        ),
    )


def _record(
    request: BuildRequest,
    operators: Mapping[str, OperatorState],
    sources: Mapping[str, SourceState],
    slot: int,
    writer: str,
    now: int,
) -> Record:
    like = request.like
    if like is None:
        draft = Draft("checkpoint", now=now, operators=dict(operators), sources=dict(sources))
        return draft.record(job=_new_id(), slot=slot, epoch=1, writer=writer, owner=request.owner, at=now)

    def elsewhere(ref: FileRef) -> FileRef:
        return ref if ref.base or not ref.path else msgspec.structs.replace(ref, base=like.origin.url)

    record = with_references(msgspec.structs.replace(like.record, operators={}), elsewhere)
    return msgspec.structs.replace(
        record, operators=dict(operators), sources={**record.sources, **sources}, owner=request.owner, at=now
    )
