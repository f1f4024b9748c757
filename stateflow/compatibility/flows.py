"""Does a pipeline fit the state of a job? Names everything that does not, without Spark and without writing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from stateflow.checkpoint.pins import before_drop
from stateflow.checkpoint.rescale import rescaled
from stateflow.checkpoint.statistics import POSITIONS, UNDONE_BY
from stateflow.compatibility.non_restored import NonRestored, non_restored
from stateflow.compatibility.renamed_columns import reused_since
from stateflow.compatibility.states import (
    NewerTypeError,
    changed_elements,
    check_key,
    check_key_columns,
    check_options,
    compared_states,
    declared_elements,
    declared_states,
    element_names,
    fixed_options,
    forgets,
    keeps_nothing,
    recorded_names,
    resolve_states,
    where_to_go_back,
)
from stateflow.errors import IncompatibleError, UsageError
from stateflow.format.records import OperatorState, Prepared, Record, SourceState
from stateflow.format.source_offsets import NOTHING, UNDER_NEW_UIDS, SourceLeaves, check_same_source
from stateflow.operators.combining import combining_of
from stateflow.pipelines.delivery import taking_ids
from stateflow.pipelines.event_times import has_event_time, splitting_operator, splitting_source
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import KeyedNode, Node, SinkNode, SourceNode, UnionNode, origin, sources_of
from stateflow.pipelines.inputs.files import Files
from stateflow.pipelines.inputs.places import same_place, same_spelling
from stateflow.pipelines.processes.operator_spec import DEAD_LETTERS, MAIN
from stateflow.pipelines.ready.enrichment import Enrich
from stateflow.pipelines.ready.fixed_options import duration
from stateflow.pipelines.ready.operators import ReadyOperator
from stateflow.pipelines.rows.row_type import RowType, key_type
from stateflow.pipelines.sink_kinds import kind_in_record
from stateflow.quantities import several
from stateflow.state.values.evolution.declared_types import RULES, Change

Counts = Mapping[tuple[str, str], int]
"""By uid of the operator and name of the state in the record: its entries."""
Verdict = Literal["compatible", "new", "incompatible", "dropped"]


@dataclass(frozen=True, slots=True)
class OperatorCheck:
    uid: str
    verdict: Verdict
    states: dict[str, str]
    """Per state: kept, new, renamed from ..., undeclared or forgotten (its entries stay); and how it evolves."""
    problem: str = ""
    evolution: Mapping[str, Change] = field(default_factory=dict)
    """Of states whose type has changed: what becomes of their values."""
    entries: int | None = None
    """About how many entries all its states have together, if any evolves and the record says it."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Of keyed states whose type has changed: how many entries each has, if somebody has counted them."""
    options: Mapping[str, str] = field(default_factory=dict)
    """As its records will have it: the columns of its inputs, and of a ready-made operator what it is and what its state is made with."""
    combines: bool = False
    """Whether batches may be summed up before the exchange."""

    @property
    def conversion(self) -> str:
        """How much there is to convert, for people; empty when no type changes or the record does not say it."""
        if self.counts:
            each = ", ".join(
                f"{name} has {several(count, 'entry', 'entries')}" for name, count in self.counts.items()
            )
            return f"{each}, {_read(sum(self.counts.values()))}"
        return (
            f"about {several(self.entries, 'entry', 'entries')}, {_read(self.entries)}"
            if self.entries
            else ""
        )


def _read(count: int) -> str:
    return f"which {'is' if count == 1 else 'are'} converted as {'it is' if count == 1 else 'they are'} read"


@dataclass(frozen=True, slots=True)
class Check:
    """What a run would find, before it writes anything."""

    pipeline: str
    job: str
    checkpoint: int | None
    """The record that was compared with; None when the job has none yet."""
    compatible: bool
    operators: tuple[OperatorCheck, ...]
    sources: Mapping[str, str]
    """Per source uid: continues, new, incompatible, or dropped."""
    sinks: Mapping[str, str]
    problem: str = ""
    """Of the sources together."""
    warnings: tuple[str, ...] = ()
    """Warnings of what works and is perhaps not intended."""
    misfits: tuple[str, ...] = ()
    """Of sources that do not fit the record, and outputs that do not fit their tables, as far as it can be told without Spark."""
    drops: bool = False
    """Whether a run drops something that the checkpoint alone has from then on, so that the run is to keep the checkpoint."""

    def refuse_evolution(self) -> None:
        """Raises IncompatibleError when any state's type changes, also by rule. One that is only written another way does not."""
        if evolving := [
            f"{o.uid}.{name}"
            for o in self.operators
            for name, change in o.evolution.items()
            if change.changes
        ]:
            raise IncompatibleError(
                f"the type of state {', '.join(evolving)} changes: leave out --strict to let its values be converted as they are read"
            )

    @property
    def problems(self) -> list[str]:
        problems = (self.problem, *(each.problem for each in self.operators), *self.misfits)
        return [problem for problem in problems if problem]


def check_flow(
    flow: Flow,
    record: Record | None,
    *,
    checkpoints: Collection[int] = (),
) -> None:
    """Raises IncompatibleError for the first thing that does not fit; `checkpoints` are those that the job has."""
    if record is None:
        return
    left = non_restored(flow, record)
    if left.refusal:
        raise IncompatibleError(left.refusal)
    for node in flow.operators:
        if (before := record.operators.get(node.uid)) is None:
            continue
        check_options(node, before)
        try:
            resolve_states(node, before)
        except NewerTypeError as error:
            raise IncompatibleError(f"{error}{where_to_go_back(error, checkpoints)}") from None
        changed_elements(node, before)
        if node.keyed:
            check_key_columns(node.uid, node.keyed[0].columns, before)
        if refusal := left.of_states(node, before):
            raise IncompatibleError(refusal)
    for sentence in source_refusals(flow, record).values():
        raise IncompatibleError(sentence)


def source_refusals(flow: Flow, record: Record | None) -> dict[str, str]:
    """By uid of a source why it cannot take up what the record says of it. Of the kind of a function's stream only the run knows, once it is
    open."""
    problems = {}
    for node in flow.sources:
        recorded = record.sources.get(node.uid) if record else None
        if recorded is None:
            continue
        try:
            if node.factory.offset_kind:
                check_same_source(SourceLeaves(node.uid, 1, (node.factory.offset_kind,)), recorded)
            _check_time_column(node, recorded)
        except IncompatibleError as error:
            problems[node.uid] = str(error)
    return problems


def _check_time_column(node: SourceNode, recorded: SourceState) -> None:
    """Refuses that rows are judged by how far the times of another column are. Records of before this was noted do not tell."""
    was, now, rows = recorded.time_column, node.event_time, node.rows
    if recorded.event_time is None or was == "" or now is None:
        return
    called = was if rows is None else reused_since(rows, recorded.columns).get(was, was)
    column = None if rows is None else rows.field(now)
    has_alias = column is not None and was in column.aliases
    if now == called or (has_alias and now not in recorded.columns):
        return
    column_was, way = repr(was), "put it back"
    if called != was:
        column_was, way = f"{was!r}, which is called {called!r} today", f"say event_time={called!r}"
    elif not has_alias:
        way += f"; or, if {now!r} is the new name of that column, give the field sf.field(aliases=[{was!r}])"
    raise IncompatibleError(
        f"source {node.uid!r}: its event time was {column_was}, and is {now!r} now, and its rows would be late or on time by how far {called!r} has "
        f"come: {way}; or begin event time anew with `stateflow restore JOB FILE --from latest --reset-watermark`"
    )


def compare(
    flow: Flow,
    job: str,
    record: Record | None,
    *,
    parallelism: int = 0,
    checkpoints: Collection[int] = (),
    counts: Counts | None = None,
    misfits: Mapping[str, str] | None = None,
    written: Mapping[str, Prepared] | None = None,
    read: Mapping[str, str] | None = None,
    kept_as: str = "",
) -> Check:
    """Reports every problem, not only the first. `checkpoints` are those that can be restored, as far as known; `misfits` says
    by the uid of a sink what its table lacks, and `written` what the job has written there, if not the record alone tells it; `read` which folders of files it has read;
    `kept_as` by which tag a run keeps the record, if it drops something."""
    before = record.operators if record else {}
    nodes = {node.uid: node for node in flow.operators}
    left = non_restored(flow, record)
    operators = [
        replace(
            _operator(node, before.get(uid), parallelism, left, checkpoints, counts or {}),
            options=fixed_options(node),
            combines=combining_of(node.columnar, flow.read_outputs(node)) is not None,
        )
        for uid, node in nodes.items()
    ]
    for uid in left.operators:
        problem = left.of_operator(uid)
        states = dict.fromkeys(before[uid].states, "dropped")
        operators.append(OperatorCheck(uid, "incompatible" if problem else "dropped", states, problem))
    others = source_refusals(flow, record)
    compatible = not left.sources and not others and not any(each.problem for each in operators)
    if compatible:
        check_flow(flow, record)
    if written is None:
        written = record.sinks if record else {}
    sinks = _compared([n.uid for n in flow.sinks], list(written))
    misfits = misfits or {}
    kept = _kept(record, kept_as) if record else ""
    losses = [warning for each in operators for warning in _losses(each, record, kept)]
    return Check(
        pipeline=flow.name,
        job=job,
        checkpoint=record.slot if record else None,
        compatible=compatible and not misfits,
        operators=tuple(operators),
        sources={
            **_compared([n.uid for n in flow.sources], list(record.sources) if record else []),
            **dict.fromkeys(others, "incompatible"),
        },
        sinks={**sinks, **dict.fromkeys(misfits, "incompatible")},
        problem=left.sources,
        warnings=(
            *losses,
            *_without_ttl(flow, job, before),
            *(
                [
                    f"{left.warning}; to take it back once a run has gone on, restore {kept} with the uid that the source had"
                ]
                if left.warning
                else ()
            ),
            *(
                [f"{left.forgotten}; only a restore of {kept} brings its position back"]
                if left.forgotten
                else ()
            ),
            *(f"{sentence}: only a restore of {kept} brings it back" for sentence in left.dropped),
            *left.left,
            *(warning for source in flow.sources for warning in _lost_late_rows(flow, source)),
            *(warning for node in flow.operators for warning in _warnings(flow, node)),
            *taking_ids(flow.sinks).values(),
            *_moved(flow, written),
            *_in_the_middle(flow, record, written),
            *begins_empty(flow, record, kept),
            *_under_new_uids(flow, written),
            *_by_other_keys(flow, written),
            *_other_folders(flow, read or {}),
            *(
                warning
                for node in flow.nodes
                if isinstance(node, UnionNode)
                for warning in _without_time(node)
            ),
        ),
        misfits=(*others.values(), *misfits.values()),
        drops=bool(losses or left.warning or left.forgotten or left.dropped),
    )


def _kept(record: Record, tag: str) -> str:
    return f"checkpoint {record.slot} (the run keeps it as tag:{tag or before_drop(record.slot)})"


def _losses(operator: OperatorCheck, record: Record | None, kept: str) -> Iterator[str]:
    for name, change in operator.evolution.items():
        if change.losses and record is not None:
            yield (
                f"operator {operator.uid!r}, state {name!r}: its values in checkpoint {record.slot} lose something under the type of today "
                f"({', '.join(change.losses)}): if that is not meant, give the type back what it had, and once a run has gone on, restore "
                f"{kept} with it"
            )


def _without_ttl(flow: Flow, job: str, before: Mapping[str, OperatorState]) -> Iterator[str]:
    """Of states whose ttl is gone: an entry has the instant at which it expires, and nobody knows any more what had expired when the ttl
    went."""
    for node in flow.operators:
        if node.uid not in before or keeps_nothing(before[node.uid]):
            continue
        declared, states = declared_states(node), before[node.uid].states
        for name, old in recorded_names(node, before[node.uid]).items():
            if states[old].ttl is not None and declared[name].ttl is None:
                yield (
                    f"operator {node.uid!r}, state {name!r}: it has no ttl any more, so its entries live on, also those that have expired and that no "
                    "batch has deleted yet, and it takes no ttl again: if expired ones are not to come back, keep the ttl until a batch has "
                    f"deleted them, which `stateflow show {job}` tells"
                )


def _lost_late_rows(flow: Flow, source: SourceNode) -> Iterator[str]:
    for name in flow.unread_sides(source):
        yield (
            f"source {source.uid!r} splits off its late rows (late=), which nobody reads, so that they would be lost: append "
            f".side({name!r}) to a table, or leave late= out to get them with ctx.late"
        )


def renamed_targets(flow: Flow, written: Mapping[str, Prepared]) -> dict[str, str]:
    """By uid of a sink why its target cannot be the one that the job has written to."""
    return {
        sink.uid: f"sink {sink.uid!r} wrote {written[sink.uid].target}, and the pipeline now says {sink.output}: put the name back, or give the sink "
        "a new uid, with which it begins there"
        for sink in flow.sinks
        if sink.uid in written and sink.sink_kind.renamed(sink.target, written[sink.uid].target)
    }


def _moved(flow: Flow, written: Mapping[str, Prepared]) -> Iterator[str]:
    for sink in flow.sinks:
        before = written[sink.uid].target if sink.uid in written else None
        if before is None or not sink.place or sink.sink_kind.renamed(sink.target, before):
            continue
        # Where a catalog has the table, only a run asks.
        known = not sink.sink_kind.table or bool(sink.target.path)
        if known and not sink.sink_kind.is_at(sink.target, before):
            yield (
                f"sink {sink.uid!r} has written to {before} and goes on in {sink.output}: a run refuses a table that is not that one, "
                "moved as a whole; give a new table a new uid"
            )


def _in_the_middle(flow: Flow, record: Record | None, written: Mapping[str, Prepared]) -> Iterator[str]:
    """Of what begins empty, and gets one source from its beginning and of another one only what comes from now on."""
    if record is None:
        return
    begins = [node for node in flow.operators if node.uid not in record.operators]
    known = {*written, *record.sinks}
    sinks = [sink for sink in flow.sinks if sink.uid not in known and not _is_behind_operator(sink)]
    read = _read_already(record)
    for node in (*begins, *sinks):
        new = _from_the_beginning(node, record)
        goes_on = sorted(s.uid for s in sources_of(node) if s.uid in read)
        if new and goes_on:
            yield (
                f"{node.kind} {node.uid!r} is new, and gets source {', '.join(map(repr, new))} from where that begins, but of source "
                f"{', '.join(map(repr, goes_on))}, which the job has read already, only what comes from now on: if it should have all, give that "
                "one a new uid, too"
            )


def begins_empty(flow: Flow, record: Record | None, kept: str = "") -> Iterator[str]:
    """Of operators that begin empty behind sources that go on: what came before is in none of their results. `kept` names
    the checkpoint that a run keeps; a plan names none, since nobody has gone on from it."""
    if record is None:
        return
    read = _read_already(record)
    lacking: dict[tuple[str, ...], list[str]] = {}
    for node in flow.operators:
        if node.uid in record.operators or not _keeps_rows(node) or _from_the_beginning(node, record):
            continue
        goes_on = tuple(sorted(s.uid for s in _sources_by_rows(node) if s.uid in read))
        if goes_on:
            lacking.setdefault(goes_on, []).append(node.uid)
    gone = sorted(set(record.operators) - {node.uid for node in flow.operators})
    # To whoever has renamed an operator, this is the sentence that says so.
    back = f", and once a run has gone on, restore {kept} with it" if kept else ""
    renamed = (
        f"; if the state of operator {', '.join(map(repr, gone))} is what it should have, give it that uid again{back}"
        if gone
        else ""
    )
    for sources, operators in lacking.items():
        yield (
            f"operator {', '.join(map(repr, operators))} is new and begins empty, and gets of source {', '.join(map(repr, sources))}, which the job "
            "has read already, only what comes from now on: its results lack all rows before that, also where they replace complete ones in a "
            f"table; if it should have all, give the source {UNDER_NEW_UIDS}{renamed}"
        )


def _read_already(record: Record) -> set[str]:
    """The sources of which the job has read anything, as far as the record tells it. One that was only put at its beginning is unread."""
    noted = record.statistics
    begun = noted.get(POSITIONS, ()) if UNDONE_BY not in noted else ()
    return {
        uid
        for uid, state in record.sources.items()
        if uid not in begun and any(line != NOTHING for line in state.lines)
    }


def _from_the_beginning(node: Node, record: Record) -> list[str]:
    """The sources of a node that are new to the job and are read from their beginning."""
    return sorted(s.uid for s in sources_of(node) if s.uid not in record.sources and not s.factory.since)


def _keeps_rows(node: KeyedNode) -> bool:
    """Whether what an operator puts out depends on earlier rows. Kept answers only spare questions."""
    if isinstance(node.columnar, Enrich):
        return False
    return bool(declared_states(node) or declared_elements(node))


def _sources_by_rows(node: Node) -> set[SourceNode]:
    """The sources whose rows come to the node, apart from those that come by the feed of a state: a new reader of that gets all entries."""
    if isinstance(node, SourceNode):
        return {node}
    streams = (s for s in node.inputs if not (isinstance(s.node, KeyedNode) and s.output in s.node.feeds))
    return {source for stream in streams for source in _sources_by_rows(stream.node)}


def _is_behind_operator(node: Node) -> bool:
    return any(isinstance(each.node, KeyedNode) or _is_behind_operator(each.node) for each in node.inputs)


def _under_new_uids(flow: Flow, written: Mapping[str, Prepared]) -> Iterator[str]:
    for sink in flow.sinks:
        if sink.uid not in written and (before := other_uid(sink, written)):
            kind = kind_in_record(written[before].kind)
            if kind is None or not kind.rewound_as:
                # Nobody is asked here whether it is still the same one, and a new uid is what a run advises for one that was made anew.
                yield (
                    f"sink {sink.uid!r} begins in {sink.output}, where the job has written as sink {before!r}: unless that was made anew since, a "
                    f"run adds to those rows what comes from now on; if it was not, and it is the same sink, call it {before!r} again"
                )
                continue
            yield (
                f"sink {sink.uid!r} begins in {sink.output}, where the job has written as sink {before!r}: a run adds to those rows what "
                f"comes from now on, and --rewind-sinks will leave them there; if it is the same sink into the same table, call it {before!r} again"
            )


def _by_other_keys(flow: Flow, written: Mapping[str, Prepared]) -> Iterator[str]:
    """Of sinks that tell rows apart in another way than so far: what stands in the table was told apart in the old one."""
    for sink in flow.sinks:
        before = written.get(sink.uid)
        kind = kind_in_record(before.kind) if before is not None else None
        if before is None or kind is None or not sink.sink_kind.one_row_per_key:
            continue
        keys, now = before.payload.get("keys") or (), sink.options.get("keys") or ()
        if not sink.sink_kind.is_at(sink.target, before.target, before.name):
            continue
        # Kinds share the name of an output that was taken back.
        if kind.mode == "append" and before.kind == kind.name:
            how = "appended its rows to"
        elif keys and not _are_renamed(keys, now, sink.inputs[0].rows):
            how = f"upserted by {', '.join(keys)} into"
        else:
            continue
        yield (
            f"sink {sink.uid!r} has {how} {sink.output} so far and upserts by {', '.join(now)} from now on: what stands there stays as it is, "
            "also several rows of one key; leave one row of each key there, or give the sink a new table and a new uid"
        )


def _are_renamed(before: Iterable[str], now: Iterable[str], rows: RowType | None) -> bool:
    """Whether the key columns are those of before, by their names of today. The table's are renamed by the statements that go with them."""
    former = {} if rows is None else {f.name.lower(): {a.lower() for a in f.aliases} for f in rows.fields}
    old, new = ({name.lower() for name in names} for names in (before, now))
    gone, added = old - new, new - old
    return len(gone) == len(added) and all(gone & former.get(name, set()) for name in added)


def other_uid(sink: SinkNode, written: Mapping[str, Prepared]) -> str:
    """The other uid under which the job has written where a sink writes; empty if there is none."""
    return next(
        (
            uid
            for uid, each in written.items()
            if uid != sink.uid and sink.place and sink.sink_kind.is_at(sink.target, each.target, each.name)
        ),
        "",
    )


def folders(flow: Flow) -> dict[str, str]:
    """Of sources of files, by uid."""
    return {source.uid: source.factory.path for source in flow.sources if isinstance(source.factory, Files)}


def _other_folders(flow: Flow, read: Mapping[str, str]) -> Iterator[str]:
    for uid, path in folders(flow).items():
        if uid not in read or same_spelling(read[uid], path):
            continue
        if same_place(read[uid], path):
            yield (
                f"source {uid!r} has read {read[uid]} and reads it as {path} now, under which Spark would read every file again, so that a "
                f"run refuses it: give it {read[uid]}, or, to read all once more, {UNDER_NEW_UIDS}"
            )
        else:
            yield (
                f"source {uid!r} has read {read[uid]} and reads {path} now, on top of what the job has: give another input another uid, and "
                "a folder that was moved its old path, as a link"
            )


def _without_time(union: UnionNode) -> Iterator[str]:
    timed = {origin(stream): has_event_time(stream) for stream in union.inputs}
    if any(timed.values()):
        for name, has_time in timed.items():
            if not has_time:
                yield (
                    f"union: {name!r} has no event time, so that its rows are judged by the watermark of the others and do not hold it back: "
                    "give its source event_time= and watermark="
                )


def _warnings(flow: Flow, node: KeyedNode) -> Iterator[str]:
    if isinstance(node.columnar, ReadyOperator):
        yield from node.columnar.warnings
        lateness = getattr(node.columnar, "lateness", 0)
        if lateness and (source := splitting_source(node)):
            yield (
                f"operator {node.uid!r} has lateness={duration(lateness)!r}, but source {source!r} splits off its late rows (late=) "
                "before, so that none can come to it: leave late= of the source out, and read .side('late') of the operator"
            )
        elif lateness and (before := splitting_operator(node)):
            yield (
                f"operator {node.uid!r} has lateness={duration(lateness)!r}, but operator {before!r} takes out late rows before, so that "
                "none can come to it and its rows only come later: leave lateness= out"
            )
    read = flow.read_outputs(node)
    if (
        node.output is not None
        and MAIN not in read
        and not read & node.feeds.keys()
        and not _may_be_asked(node)
    ):
        yield (
            f"nobody reads the rows of operator {node.uid!r}, so that they are in no table: append or upsert them, or make its state "
            "queryable if it is only asked"
        )
    if DEAD_LETTERS in flow.unread_sides(node):
        yield (
            f"operator {node.uid!r} diverts rows to .dead_letters (on_error='dead_letter'), which nobody reads, so that they would be "
            "lost: append .dead_letters to a table"
        )


def _may_be_asked(node: KeyedNode) -> bool:
    return any(schema.queryable for schema in resolve_states(node, None, 0)[0].values())


def _operator(
    node: KeyedNode,
    before: OperatorState | None,
    parallelism: int,
    left: NonRestored,
    checkpoints: Collection[int],
    counts: Counts,
) -> OperatorCheck:
    try:
        if before is not None:
            check_options(node, before)
        resolved, _, evolution = compared_states(node, before)
        if before is not None:
            evolution |= changed_elements(node, before)
            _check_key(node, before)
            if refusal := left.of_states(node, before):
                raise IncompatibleError(refusal)
            if node.parallelism or parallelism:
                rescaled(before, node.parallelism or parallelism, f"operator {node.uid!r}")
    except NewerTypeError as error:
        return OperatorCheck(node.uid, "incompatible", {}, f"{error}{where_to_go_back(error, checkpoints)}")
    except (IncompatibleError, UsageError) as error:
        return OperatorCheck(node.uid, "incompatible", {}, str(error))
    if before is None:
        return OperatorCheck(node.uid, "new", dict.fromkeys((*resolved, *declared_elements(node)), "new"))
    ids = {schema.id: name for name, schema in before.states.items()}
    states = {}
    declared = declared_states(node)
    for name, schema in resolved.items():
        old = ids.get(schema.id)
        if old is None:
            states[name] = "new"
        elif name not in declared:
            states[name] = "forgotten" if schema.forgotten else "undeclared"
        else:
            states[name] = "kept" if old == name else f"renamed from {old}"
    states |= _elements(node, before)
    for name, change in evolution.items():
        states[name] = f"{states.get(name, 'kept')}, {_evolves(change)}"
    converted = [name for name, change in evolution.items() if change.changes]
    entries = sum(shard.entries for shard in before.all_shards)
    names = recorded_names(node, before)
    counted = {
        name: counts[node.uid, names[name]]
        for name in converted
        if name in names and (node.uid, names[name]) in counts
    }
    return OperatorCheck(
        node.uid, "compatible", states, evolution=evolution, entries=entries or None if converted else None,
        counts=counted,
    )  # fmt: skip


def _elements(node: KeyedNode, before: OperatorState) -> dict[str, str]:
    """What happens to state that has no key."""
    names = element_names(node, before)
    states = {
        name: "new" if name not in names else "kept" if names[name] == name else f"renamed from {names[name]}"
        for name in declared_elements(node)
    }
    left = [name for name in before.operator_states if name not in names.values()]
    # The next record leaves out what is forgotten: unlike keyed state it lies in the record itself.
    return states | {name: "dropped" if name in forgets(node) else "undeclared" for name in left}


def _evolves(change: Change) -> str:
    """One line: who converts the values, what changes, and what is lost."""
    rest = [one for one in change.changes if one not in change.losses]
    changes = ", ".join((*rest, *change.alike))
    what = f"evolves by {change.by}{changes and f': {changes}'}"
    if change.by != RULES:
        what += "; until a run has written a value anew, tables, queries and canonical savepoints refuse it"
    return f"{what}; loses values: {', '.join(change.losses)}" if change.losses else what


def _check_key(node: KeyedNode, before: OperatorState) -> None:
    columns, rows = node.keyed[0].columns, node.rows[0]
    check_key_columns(node.uid, columns, before)
    fields = [rows.field(name) for name in columns] if rows is not None else []
    types = [key_type(field.type) for field in fields if field is not None]
    # Columns without a declared type are known to Spark only: the run compares them.
    if len(types) == len(columns) and None not in types:
        check_key(node.uid, tuple(str(t) for t in types), before)


def _compared(now: list[str], before: list[str]) -> dict[str, str]:
    return {
        **{uid: "continues" if uid in before else "new" for uid in now},
        **{uid: "dropped" for uid in before if uid not in now},
    }
