"""A restore plan as people read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stateflow.quantities import size_text, time_text

if TYPE_CHECKING:
    from stateflow.restore.plan import RestorePlan


def told(plan: RestorePlan) -> str:
    return "\n".join(_lines(plan))


def _lines(plan: RestorePlan) -> Iterator[str]:
    request, origin = plan.request, plan.request.origin
    record = origin.record
    what = f"{origin.savepoint.kind} savepoint" if origin.savepoint else "checkpoint"
    yield f"Restore job {request.job.name} from {origin.label}"
    yield f"  snapshot    {what} {record.slot} of job {origin.job}, taken {time_text(record.at)}"
    yield f"  timeline    {plan.timeline}{' (a new job)' if plan.new_job else ''}"
    if origin.savepoint is not None:
        yield f"  claim mode  {request.claim_mode.replace('_', '-')}"
    mark = None if request.reset_watermark else record.watermark
    yield f"  watermark   {time_text(mark) if mark is not None else 'none yet'}"
    files = f"{plan.files} files, {size_text(plan.bytes)}"
    yield f"  state       {files}{', copied' if plan.copies else ', nothing is copied'}"
    for operator in plan.check.operators:
        states = ", ".join(f"{name} {verdict}" for name, verdict in operator.states.items())
        yield f"  operator    {operator.uid}: {operator.verdict} ({states}){_key_groups(plan, operator.uid)}"
    for source in plan.sources:
        now = f" (now at {source.now})" if source.now and source.now != source.position else ""
        yield f"  source      {source.uid}: {source.verdict} at {source.position}{now}"
    for sink in plan.sinks:
        yield f"  sink        {sink.uid} ({sink.target}): {sink.note}"
    for warning in plan.warnings:
        yield f"  note        {warning}"


def _key_groups(plan: RestorePlan, uid: str) -> str:
    before, wanted = plan.request.origin.record.operators.get(uid), plan.request.max_parallelism
    if before is None or wanted in (0, before.max_parallelism):
        return ""
    return f", key groups {before.max_parallelism} -> {wanted}"
