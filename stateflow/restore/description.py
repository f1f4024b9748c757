"""What people and programs are told of a restore: once, from its plan. `printing` makes text, Markdown and JSON of it.

Text is for whoever types the command, Markdown for the person who approves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

from stateflow.compatibility.flows import OperatorCheck
from stateflow.pipelines.code.bound_code import BoundCode
from stateflow.quantities import size_text, time_text
from stateflow.restore.digest import bound, digest
from stateflow.restore.parameters import SOURCES, ParameterRestore
from stateflow.restore.plan import Plan, SinkRestore, SourceRestore
from stateflow.restore.printing import Aside, Description, Marked, Name, Row, Section, Sentence, Strong, Words
from stateflow.restore.readers import Reader
from stateflow.restore.visible import quoted

_MOST_NAMES = 12
_FACTS = ("", ("", ""))
_PARAMETERS = ("Parameters", ("parameter", "value", "comes from", "the snapshot has", "the job has"))
_OPERATORS = ("Operators", ("operator", "verdict", "states"))
_SOURCES = ("Sources", ("source", "verdict", "goes on at", "is now at", "kind", "reads"))
_SINKS = ("Outputs", ("sink", "where", "what happens", "kind", "where so far"))
_READERS = ("Readers of what would be undone", ())


def describe(plan: Plan) -> Description:
    request, operators = plan.request, plan.check.operators
    new, bound_code = Aside(" (a new job)" if plan.new_job else ""), request.pipeline.code
    states = [row for operator in operators for row in _operator(operator, plan)]
    code = [Row("" if place else "code", (words,)) for place, words in enumerate(_code(bound_code))]
    steps = [_next_step(reader, goes_along=request.with_readers) for reader in plan.readers]
    readers = [
        {**asdict(reader), "next_step": step} for reader, step in zip(plan.readers, steps, strict=True)
    ]
    parameters = [parameter.document() for parameter in plan.parameters]
    notes = [Row("note", (Sentence(warning),)) for warning in plan.warnings]
    verdicts = [
        {"uid": o.uid, "verdict": o.verdict, "states": dict(o.states), "counts": dict(o.counts)}
        for o in operators
    ]
    last = {"files": plan.files, "bytes": plan.bytes, "copies": plan.copies, "warnings": list(plan.warnings)}
    last["code"] = {"bound": dict(bound_code.files), "not_bound": list(bound_code.elsewhere)}
    last |= {"digest": digest(plan), "bound": bound(plan, masked=True)}
    return Description(
        ("Restore job ", Name(request.job.name), new, " from ", Name(request.origin.label)),
        (
            Section(*_FACTS, _facts(plan), _snapshot(plan)),
            Section(*_PARAMETERS, [*map(_parameter, plan.parameters)], {"parameters": parameters}),
            Section(*_OPERATORS, states, {"operators": verdicts}),
            Section(*_SOURCES, [*map(_source, plan.sources)], {"sources": [*map(vars, plan.sources)]}),
            Section(*_SINKS, [*map(_sink, plan.sinks)], {"sinks": [*map(vars, plan.sinks)]}),
            Section(rows=code),
            Section(*_READERS, [*map(_reader, plan.readers, steps)], {"readers": readers}),
            Section("Note", (), notes),
            Section(rows=[Row("digest", (digest(plan),))], data=last),
        ),
    )


def describe_together(plans: Sequence[Plan], of_all: str) -> Description:
    """What stands before the plans of several jobs. `of_all`: the digest that an approval names."""
    job = Name(plans[-1].request.job.name)
    facts = ((plan.request.job.name, plan.request.origin.label, digest(plan)) for plan in plans)
    rows = [Row("", cells=[(Name(text),) for text in each]) for each in facts]
    return Description(
        ("Restore job ", job, " together with the jobs that have read what this undoes"),
        (Section("", ("job", "goes back to", "digest of its plan"), rows),),
        ("In this order; every plan stands below, that of ", job, " first. Digest of all: ", Name(of_all)),
    )


def _snapshot(plan: Plan) -> dict[str, Any]:
    request, origin = plan.request, plan.request.origin
    record, savepoint = origin.record, origin.savepoint
    return {
        "job": request.job.name,
        "new_job": plan.new_job,
        "from": origin.label,
        "of_job": origin.job,
        "checkpoint": record.slot,
        "at": record.at,
        "kind": savepoint.kind if savepoint else "checkpoint",
        "savepoint": savepoint.id if savepoint else None,
        "record": {"job": record.job, "slot": record.slot, "writer": record.writer},
        "claim_mode": request.claim_mode if savepoint else None,
        "timeline": plan.timeline,
        "watermark": None if request.reset_watermark else record.watermark,
    }


def _facts(plan: Plan) -> list[Row]:
    request, record = plan.request, plan.request.origin.record
    watermark = None if request.reset_watermark else record.watermark
    savepoint, timeline = request.origin.savepoint, str(plan.timeline)
    kind = (f"{savepoint.kind} savepoint", Aside(" of checkpoint")) if savepoint else ("checkpoint",)
    job, taken = Name(request.origin.job), f", taken {time_text(record.at)}"
    mode = request.claim_mode if savepoint else ""
    identity = (Name(savepoint.id),) if savepoint else ()
    writer = (Name(record.writer), " of job ", Name(record.job))
    copied = ("copied", Aside(" into the job")) if plan.copies else ("nothing is copied",)
    return [
        _fact("snapshot", *kind, f" {record.slot} of job ", job, taken, Aside(" UTC")),
        Row("savepoint", identity),
        Row("record", writer),
        _cell("identity", *identity, ", " if savepoint else "", "record ", *writer),
        Row("timeline", (f"{timeline}{' (a new job)' if plan.new_job else ''}",)),
        Row("claim mode", (mode.replace("_", "-"),) if mode else ()),
        _fact(
            "watermark", *((time_text(watermark), Aside(" UTC")) if watermark is not None else ("none yet",))
        ),
        _fact("state", f"{plan.files} files, {size_text(plan.bytes)}, ", *copied),
        _cell("timeline", timeline),
        *([_cell("claim mode", mode)] if mode else ()),
        *([_cell("parallelism", f"{request.parallelism} from now on")] if request.parallelism else ()),
        _cell("code", Sentence("; ".join(_code(request.pipeline.code)))),
        *([_cell("note", Name(request.owner.note))] if request.owner.note else ()),
        _cell("digest", Name(digest(plan))),
    ]


def _fact(label: str, *words: str | Marked) -> Row:
    return Row(label, words, ((label,), words))


def _cell(label: str, *words: str | Marked) -> Row:
    """A fact that Markdown has among the others, and text elsewhere or not at all."""
    return Row(label, cells=((label,), words))


def _parameter(parameter: ParameterRestore) -> Row:
    name, origin = Name(parameter.name), SOURCES[parameter.origin]
    texts = (parameter.value, parameter.snapshot, parameter.job)
    value, snapshot, job = (Name(parameter.masked_text(text)) for text in texts)
    shown = "unset" if parameter.value is None else value
    keeps = ", the job keeps its own" if parameter.origin == "job" else ""
    made_with = ("; the snapshot was made with ", snapshot, keeps) if parameter.snapshot is not None else ()
    now = ("; the job's newest record has ", job) if parameter.job is not None else ()
    cells = ((name,), (shown if shown == "unset" or value.text else "empty",), (origin,), (snapshot,), (job,))
    return Row("parameter", (name, " = ", shown, f" ({origin}", *made_with, *now, ")"), cells)


def _operator(operator: OperatorCheck, plan: Plan) -> list[Row]:
    uid, verdict = Name(operator.uid), operator.verdict
    states = _joined(", ", [(Name(name), " ", Sentence(kept)) for name, kept in operator.states.items()])
    conversion = (Sentence(operator.conversion),) if operator.conversion else ()
    before, wanted = plan.request.origin.record.operators.get(operator.uid), plan.request.max_parallelism
    moves = before is not None and wanted not in (0, before.max_parallelism)
    groups = f", key groups {before.max_parallelism} -> {wanted}" if before is not None and moves else ""
    return [
        Row(
            "operator",
            (uid, f": {verdict} (", *states, f"){groups}"),
            ((uid,), (verdict,), _joined("; ", (states, conversion))),
        ),
        Row("", conversion),
    ]


def _source(source: SourceRestore) -> Row:
    texts = (source.uid, source.position, source.now, source.kind, source.reads)
    uid, position, now, kind, reads = map(Name, texts)
    of = _joined(" ", [(name,) for name in (kind, reads) if name.text])
    # A source without a position begins where it likes, and the plan says that in words of its own.
    at = source.position if source.verdict == "new" else position
    moved = (" (now at ", now, ")") if source.now and source.now != source.position else ()
    line = (uid, *((" (", *of, ")") if of else ()), f": {source.verdict} at ", at, *moved)
    return Row("source", line, ((uid,), (source.verdict,), (position,), (now,), (kind,), (reads,)))


def _sink(sink: SinkRestore) -> Row:
    uid, target, note, before = Name(sink.uid), Name(sink.target), Sentence(sink.note), Name(sink.before)
    where = () if sink.target == sink.kind else (" ", target)
    so_far = ("; so far it wrote to ", before) if sink.before else ()
    happens, kind = (Strong(sink.action), ": ", note), (Name(sink.kind),)
    cells = ((uid,), (target,), happens, kind, (before if sink.before else "the same",))
    return Row("sink", (uid, f" ({sink.kind}", *where, *so_far, "): ", note), cells)


def _code(code: BoundCode) -> list[str]:
    """Which part of the code an approval binds, and which not."""
    if not code.files:
        return ["not bound by the digest: the pipeline was not loaded from a file"]
    unbound = [f"not bound: {_listed(code.elsewhere)}"] if code.elsewhere else []
    return [f"bound by the digest: {_listed(code.files)}", *unbound]


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(quoted(name) for name in list(names)[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"


def _reader(reader: Reader, next_step: str) -> Row:
    job, table, of, source = map(quoted, (reader.job, reader.table, reader.of, reader.source))
    read = f"job {job} has read {table} of job {of} (source {source}), from version {reader.first} on of what would be undone"
    return Row("reader", (Sentence(f"{read}: {next_step}"),))


def _next_step(reader: Reader, *, goes_along: bool) -> str:
    """What happens to a reader, and what to do about it. `goes_along`: the restore takes it back, too."""
    if goes_along:
        return f"it goes back with it, to its checkpoint {reader.back_to}"
    if reader.back_to is None:
        return "its next run is refused, and none of its checkpoints is from before that: restore a savepoint of it, or let it begin anew"
    return (
        f"its next run is refused until it is back at its checkpoint {reader.back_to}, with its outputs: take it along with "
        f"`--with-readers --reader {quoted(reader.job)}=FILE` (in Airflow's recovery form the field `with_readers`)"
    )


def _joined(between: str, parts: Iterable[Words]) -> Words:
    """The parts that say anything, with `between` between them."""
    return list(chain.from_iterable((between, *part) for part in parts if part))[1:]
