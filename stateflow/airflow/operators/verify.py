"""Verification: every file that a job needs is there and sound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from stateflow.airflow.operators.arguments import Flag
from stateflow.airflow.operators.base import StateflowOperator
from stateflow.errors import CorruptError

if TYPE_CHECKING:
    from airflow.sdk import Context

_RESULT_FINDINGS = 50
"""Findings that go into XCom; the log has all of them."""


class StateflowVerifyOperator(StateflowOperator):
    """Fails when something that the job needs is missing or damaged. It only reads, so it may run beside a run."""

    def __init__(
        self, *, deep: Annotated[Flag, "read every file and compare its checksum"] = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.accept(locals())

    def execute(self, context: Context) -> dict[str, Any]:
        with self.at_work():
            job = self.job_for(context)
            self.linked(context)
            deep = self.given("deep")
            findings = job.verify(deep=deep)
            for finding in findings:
                log = self.log.error if finding.severity == "error" else self.log.warning
                log("%s", finding.text)
            errors = [finding for finding in findings if finding.severity == "error"]
            head = job.log().head
            result = self.result(
                head.slot if head else None,
                sound=not errors,
                deep=deep,
                errors=len(errors),
                warnings=len(findings) - len(errors),
                findings=[{"severity": f.severity, "text": f.text} for f in findings[:_RESULT_FINDINGS]],
            )
            if errors:
                # A task that fails has no result, and later tasks may want the findings.
                context["ti"].xcom_push("findings", result)
                rest = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
                raise CorruptError(f"{errors[0].text}{rest}")
            self.log.info("job %s is sound", job.name)
            return result
