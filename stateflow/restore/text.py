"""A restore plan as text for people."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from stateflow.quantities import size_text, time_text
from stateflow.restore.digest import digest
from stateflow.restore.parameters import SOURCES
from stateflow.restore.visible import quoted, visible

if TYPE_CHECKING:
    from stateflow.pipelines.code.bound_code import BoundCode
    from stateflow.restore.plan import Plan
    from stateflow.restore.readers import Reader


_MOST_NAMES = 12


def code_parts(code: BoundCode) -> tuple[str, str]:
    """Sentences about the code: which part of it an approval binds, and which not."""
    if not code.files:
        return "not bound by the digest: the pipeline was not loaded from a file", ""
    unbound = f"not bound: {_listed(code.elsewhere)}" if code.elsewhere else ""
    return f"bound by the digest: {_listed(code.files)}", unbound


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(quoted(name) for name in list(names)[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"


def text(plan: Plan) -> str:
    return "\n".join(map(visible, _lines(plan)))


def _lines(plan: Plan) -> Iterator[str]:
    request, origin = plan.request, plan.request.origin
    record = origin.record
    what = f"{origin.savepoint.kind} savepoint" if origin.savepoint else "checkpoint"
    yield f"Restore job {quoted(request.job.name)} from {quoted(origin.label)}"
    yield f"  snapshot    {what} {record.slot} of job {quoted(origin.job)}, taken {time_text(record.at)}"
    if origin.savepoint is not None:
        yield f"  savepoint   {quoted(origin.savepoint.id)}"
    yield f"  record      {quoted(record.writer)} of job {quoted(record.job)}"
    yield f"  timeline    {plan.timeline}{' (a new job)' if plan.new_job else ''}"
    if origin.savepoint is not None:
        yield f"  claim mode  {request.claim_mode.replace('_', '-')}"
    mark = None if request.reset_watermark else record.watermark
    yield f"  watermark   {time_text(mark) if mark is not None else 'none yet'}"
    files = f"{plan.files} files, {size_text(plan.bytes)}"
    yield f"  state       {files}{', copied' if plan.copies else ', nothing is copied'}"
    for parameter in plan.parameters:
        value = "unset" if parameter.value is None else quoted(parameter.masked_text(parameter.value))
        note = f"; {parameter.note}" if parameter.note else ""
        yield f"  parameter   {quoted(parameter.name)} = {value} ({SOURCES[parameter.origin]}{note})"
    for operator in plan.check.operators:
        states = ", ".join(f"{quoted(name)} {verdict}" for name, verdict in operator.states.items())
        yield f"  operator    {quoted(operator.uid)}: {operator.verdict} ({states}){_key_groups(plan, operator.uid)}"
        if operator.conversion:
            yield f"              {operator.conversion}"
    for source in plan.sources:
        now = f" (now at {quoted(source.now)})" if source.now and source.now != source.position else ""
        of = " ".join(quoted(part) for part in (source.kind, source.reads) if part)
        # A source without a position begins where it likes, and the plan says that in words of its own.
        position = source.position if source.verdict == "new" else quoted(source.position)
        yield f"  source      {quoted(source.uid)}{f' ({of})' if of else ''}: {source.verdict} at {position}{now}"
    for sink in plan.sinks:
        where = sink.kind if sink.target == sink.kind else f"{sink.kind} {quoted(sink.target)}"
        before = f"; so far it wrote to {quoted(sink.before)}" if sink.before else ""
        yield f"  sink        {quoted(sink.uid)} ({where}{before}): {sink.note}"
    bound, unbound = code_parts(request.pipeline.code)
    yield f"  code        {bound}"
    if unbound:
        yield f"              {unbound}"
    for reader in plan.readers:
        yield f"  reader      {reader_sentence(reader, goes_along=request.with_readers)}"
    for warning in plan.warnings:
        yield f"  note        {warning}"
    yield f"  digest      {digest(plan)}"


def reader_sentence(reader: Reader, *, goes_along: bool) -> str:
    return (
        f"job {quoted(reader.job)} has read {quoted(reader.table)} of job {quoted(reader.of)} (source {quoted(reader.source)}), from "
        f"version {reader.first} on of what would be undone: {next_step(reader, goes_along=goes_along)}"
    )


def next_step(reader: Reader, *, goes_along: bool) -> str:
    """What happens to a reader, and what to do about it. `goes_along`: the restore takes it back, too."""
    if goes_along:
        return f"it goes back with it, to its checkpoint {reader.back_to}"
    if reader.back_to is None:
        return "its next run is refused, and none of its checkpoints is from before that: restore a savepoint of it, or let it begin anew"
    return (
        f"its next run is refused until it is back at its checkpoint {reader.back_to}, with its outputs: take it along with "
        f"`--with-readers --reader {quoted(reader.job)}=FILE` (in Airflow's recovery form the field `with_readers`)"
    )


def _key_groups(plan: Plan, uid: str) -> str:
    before, max_parallelism = plan.request.origin.record.operators.get(uid), plan.request.max_parallelism
    if before is None or max_parallelism in (0, before.max_parallelism):
        return ""
    return f", key groups {before.max_parallelism} -> {max_parallelism}"
