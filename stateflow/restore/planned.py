"""The plan of a restore in the caller's hands: to print, to have approved, and to apply."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from stateflow.restore.apply import RestoreRun
from stateflow.restore.digest import bound, digest
from stateflow.restore.plan import Plan, Progress, Restored, RestoreRequest
from stateflow.restore.planning import make_plan
from stateflow.restore.text import next_step, text


def plan_restore(request: RestoreRequest) -> RestorePlan:
    """Compares snapshot, pipeline and job. Raises the first misfit."""
    return RestorePlan(**vars(make_plan(request)))


class RestorePlan(Plan):
    """What `apply` would do. `print(plan)` shows it."""

    @property
    def digest(self) -> str:
        """What an approval names. Two plans that do different things have different digests."""
        return digest(self)

    def apply(self, progress: Progress = lambda what, done, total: None) -> Restored:
        """Restores the job. A crash leaves it as it was, or restored. Repeating is safe."""
        return RestoreRun(self, progress).run()

    def document(self) -> dict[str, Any]:
        """The plan for programs."""
        request, record = self.request, self.request.origin.record
        return {
            "job": request.job.name,
            "new_job": self.new_job,
            "from": request.origin.label,
            "of_job": request.origin.job,
            "checkpoint": record.slot,
            "at": record.at,
            "kind": request.origin.savepoint.kind if request.origin.savepoint else "checkpoint",
            "savepoint": request.origin.savepoint.id if request.origin.savepoint else None,
            "record": {"job": record.job, "slot": record.slot, "writer": record.writer},
            "claim_mode": request.claim_mode if request.origin.savepoint else None,
            "timeline": self.timeline,
            "watermark": None if request.reset_watermark else record.watermark,
            "parameters": [parameter.document() for parameter in self.parameters],
            "operators": [
                {"uid": o.uid, "verdict": o.verdict, "states": dict(o.states), "counts": dict(o.counts)}
                for o in self.check.operators
            ],
            "sources": [vars(source) for source in self.sources],
            "sinks": [vars(sink) for sink in self.sinks],
            "readers": [
                {**asdict(reader), "next_step": next_step(reader, goes_along=request.with_readers)}
                for reader in self.readers
            ],
            "files": self.files,
            "bytes": self.bytes,
            "copies": self.copies,
            "warnings": list(self.warnings),
            "code": {
                "bound": dict(request.pipeline.code.files),
                "not_bound": list(request.pipeline.code.elsewhere),
            },
            "digest": self.digest,
            "bound": bound(self, masked=True),
        }

    def __str__(self) -> str:
        return text(self)
