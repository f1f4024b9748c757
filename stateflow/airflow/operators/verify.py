"""Whether everything is there that a job needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stateflow.airflow.operators.arguments import Reader, flag
from stateflow.airflow.operators.base import StateflowOperator
from stateflow.errors import CorruptError

if TYPE_CHECKING:
    from airflow.sdk import Context

_TOLD = 50
"""Findings that go into XCom; the log has all of them."""


class StateflowVerifyOperator(StateflowOperator):
    """Fails when something that the job needs is missing or damaged. Reads only, beside a run too.

    :param deep: read every file and compare its checksum.
    """

    template_fields: Sequence[str] = (*StateflowOperator.template_fields, "deep")
    readers: Mapping[str, Reader[Any]] = {**StateflowOperator.readers, "deep": flag}

    def __init__(self, *, deep: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deep = deep
        self.check("deep")

    def execute(self, context: Context) -> dict[str, Any]:
        with self.at_work():
            job = self.job_for(context)
            self.linked(context)
            deep = self.given("deep")
            findings = job.verify(deep=deep)
            for finding in findings:
                tell = self.log.error if finding.severity == "error" else self.log.warning
                tell("%s", finding.text)
            errors = [finding for finding in findings if finding.severity == "error"]
            head = job.log().head
            told = self.result(
                head.slot if head else None,
                sound=not errors,
                deep=deep,
                errors=len(errors),
                warnings=len(findings) - len(errors),
                findings=[{"severity": f.severity, "text": f.text} for f in findings[:_TOLD]],
            )
            if errors:
                # A task that fails has no result, but what follows may want to know.
                context["ti"].xcom_push("findings", told)
                rest = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
                raise CorruptError(f"{errors[0].text}{rest}")
            self.log.info("job %s is sound", job.name)
            return told
