"""The plan of a restore in the caller's hands: to print, to have approved, and to apply."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stateflow.restore.apply import RestoreRun
from stateflow.restore.description import describe
from stateflow.restore.digest import digest
from stateflow.restore.plan import Plan, Progress, Restored, RestoreRequest
from stateflow.restore.planning import make_plan
from stateflow.restore.printing import document, markdown, text
from stateflow.spark.inputs.lost_messages import lost_messages


def plan_restore(request: RestoreRequest) -> RestorePlan:
    """Compares snapshot, pipeline and job. Raises the first misfit."""
    plan = make_plan(request)
    recorded = request.origin.record.sources
    if any(state.kind == "kafka" for state in recorded.values()):
        # Here, and not where the plan is made once more when the restore owns the job: brokers may take their time.
        lost = lost_messages(request.pipeline.build(plan.values).sources, recorded)
        plan = replace(plan, warnings=(*plan.warnings, *lost))
    return RestorePlan(**vars(plan))


class RestorePlan(Plan):
    """What `apply` would do. `print(plan)` shows it."""

    @property
    def plans(self) -> tuple[RestorePlan, ...]:
        """This plan alone. A restore together with readers has a plan for each job."""
        return (self,)

    @property
    def digest(self) -> str:
        """What an approval names. Two plans that do different things have different digests."""
        return digest(self)

    def apply(self, progress: Progress = lambda what, done, total: None) -> Restored:
        """Restores the job. A crash leaves it as it was, or restored. Repeating is safe."""
        return RestoreRun(self, progress).run()

    def document(self) -> dict[str, Any]:
        """The plan for programs."""
        return document(describe(self))

    def markdown(self) -> str:
        """The plan for the person who approves it."""
        return markdown(describe(self))

    def __str__(self) -> str:
        return text(describe(self))
