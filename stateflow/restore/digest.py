"""The digest of a restore plan, which an approval binds.

The digest covers everything that the restore does: which job, from which snapshot, parameters, sources, outputs, operators,
options; and the code, as far as it lies in the pipeline's file and in modules beside it. It leaves out what only informs: where a live run is at the moment, sizes, times, who asks and why.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from stateflow.errors import BusyError, UsageError
from stateflow.restore.visible import quoted

if TYPE_CHECKING:
    from stateflow.restore.plan import Plan

DIGEST = re.compile(r"[0-9a-f]{64}")


def checked_digest(text: str) -> str:
    """`text`, if it has the form of a digest."""
    if not DIGEST.fullmatch(text):
        raise UsageError(
            f"{text!r} is no digest of a restore plan: take the 64 digits that the plan ends with"
        )
    return text


def bound(plan: Plan, *, masked: bool = False) -> dict[str, Any]:
    """Every decision of the plan. `masked` hides secret parameters."""
    request, origin = plan.request, plan.request.origin
    record, savepoint = origin.record, origin.savepoint
    content = msgspec.json.encode(savepoint if savepoint is not None else record)
    return {
        "job": {"name": request.job.name, "root": request.job.store.url, "uuid": plan.job_uuid},
        "pipeline": plan.check.pipeline,
        # Each module stands below by itself.
        "code": {name: value for name, value in request.pipeline.versions.items() if name != "modules"},
        "modules": dict(request.pipeline.code.files),
        "snapshot": {
            "from": origin.label,
            "job": origin.job,
            "uuid": record.job,
            "checkpoint": record.slot,
            "record": record.writer,
            "savepoint": savepoint.id if savepoint is not None else None,
            "content": hashlib.sha256(content).hexdigest(),
        },
        "timeline": plan.timeline,
        "parameters": {
            p.name: [p.masked_text(p.value) if masked else p.value, p.origin, *([p.kind] if p.kind else [])]
            for p in plan.parameters
        },
        "sources": {
            s.uid: {"kind": s.kind, "reads": s.reads, "verdict": s.verdict, "position": s.position}
            for s in plan.sources
        },
        "sinks": {
            s.uid: {
                "kind": s.kind,
                "target": s.target,
                "before": s.before,
                "action": s.action,
                "back_to": s.back_to,
                "again": s.again,
                "copy": [s.copy_of, s.copy_version] if s.action == "copies" else None,
            }
            for s in plan.sinks
        },
        "operators": {o.uid: {"verdict": o.verdict, "states": dict(o.states)} for o in plan.check.operators},
        "options": {
            "claim_mode": request.claim_mode if savepoint is not None else None,
            "allow_non_restored_state": request.pipeline.allow_non_restored_state,
            "rewind_sinks": request.rewind_sinks,
            "reset_watermark": request.reset_watermark,
            "parallelism": request.parallelism,
            "max_parallelism": request.max_parallelism,
            "backend": request.options.backend,
        },
    }


def digest(plan: Plan) -> str:
    """SHA-256, in hex, of `bound(plan)` as canonical JSON."""
    return hashlib.sha256(json.dumps(bound(plan), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def differences_together(approved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What has changed since the approval, as parts of a sentence. Both are documents, of a plan or of several."""
    found = differences(approved["bound"], now["bound"])
    before, after = (
        {each["job"]: each for each in document.get("with_readers", ())} for document in (approved, now)
    )
    for name in sorted({*before, *after}):
        if name not in before:
            found.append(f"job {quoted(name)} has read it meanwhile and would go back, too")
        elif name not in after:
            found.append(f"job {quoted(name)} would not go back any more")
        else:
            changes = differences(before[name]["bound"], after[name]["bound"])
            found += [f"of job {quoted(name)} {change}" for change in changes]
    return found


def differences(approved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What has changed since the approval, as parts of a sentence. Both are `bound(plan, masked=True)`."""
    return list(_differences(approved, now))


def _differences(approved: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for section in sorted({*approved, *now}):
        before, after = approved.get(section), now.get(section)
        if before == after:
            continue
        if section == "timeline":
            yield "somebody has restored the job meanwhile"
        elif isinstance(before, Mapping) and isinstance(after, Mapping):
            for name in sorted({*before, *after}):
                if before.get(name) != after.get(name):
                    yield f"{_WORDS.get(section) or quoted(section)} {quoted(name)} was {_value_text(before, name)} and is {_value_text(after, name)}"
        else:
            yield f"the {quoted(section)} was {json.dumps(before)} and is {json.dumps(after)}"


_WORDS = {
    "parameters": "parameter",
    "sources": "source",
    "sinks": "sink",
    "operators": "operator",
    "options": "option",
    "snapshot": "the snapshot's",
    "job": "the job's",
    "code": "the code's",
    "modules": "the file",
}


def _value_text(section: Mapping[str, Any], name: str) -> str:
    """The value in ASCII, on one line."""
    return json.dumps(section[name]) if name in section else "not there"


def require_same(approved: str, plan: Plan, before: Plan | None = None) -> None:
    """Refuses a plan that differs from the approved one. `before` is the approved plan, when it is at hand."""
    if digest(plan) == approved:
        return
    changes = differences(bound(before, masked=True), bound(plan, masked=True)) if before is not None else []
    what = f" ({'; '.join(changes)})" if changes else ""
    raise UsageError(
        f"the restore of job {plan.request.job.name!r} from {quoted(plan.request.origin.label)} is not the one that was approved any more"
        f"{what}: its plan was {approved[:12]} and is {digest(plan)[:12]}; the job was not restored, so plan again and have that "
        "approved"
    )


def require_unmoved(planned: Plan, now: Plan) -> None:
    """Refuses to carry out a plan that nobody has approved by its digest when the job has gone on since, and its outputs would fare otherwise."""
    if changes := list(_moves(planned, now)):
        raise BusyError(
            f"job {planned.request.job.name!r} has gone on since its restore from {quoted(planned.request.origin.label)} was planned "
            f"({'; '.join(changes)}): it was not restored, so plan the restore again and look at what it says now"
        )


def _moves(planned: Plan, now: Plan) -> Iterator[str]:
    """What the job's log decides, and nothing that the pipeline's function could say otherwise when it is called again."""
    # A job whose one record is pending has no timeline to go on from, until the claim has carried that record out.
    if planned.timeline != now.timeline and planned.timeline > 1:
        yield "somebody has restored the job meanwhile"
    before = {sink.uid: sink for sink in planned.sinks}
    for sink in now.sinks:
        old = before.get(sink.uid)
        if old is None or (old.action, old.back_to, old.again) != (sink.action, sink.back_to, sink.again):
            said = (
                f"the plan says that it {quoted(old.note)}"
                if old is not None
                else "the plan does not name it"
            )
            yield f"sink {quoted(sink.uid)} now {quoted(sink.note)}, and {said}"
