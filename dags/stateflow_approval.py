"""The step in which a person says yes or no, for the DAGs that have one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.exceptions import AirflowFailException
from stateflow_settings import SETTINGS

from stateflow.airflow.operators.approvals import asked_by, refusal

if TYPE_CHECKING:
    from airflow.sdk import Context


def refuse_unapproved(answer: Any, dag_run: Any, what: str) -> None:
    """Raises unless the answer is an approval that suffices for the settings."""
    if sentence := refusal(
        answer,
        asked_by=asked_by(dag_run),
        four_eyes=SETTINGS.four_eyes,
        approvers=SETTINGS.approvers,
        what=what,
    ):
        raise AirflowFailException(sentence)


class Approval(ApprovalOperator):
    """One whose time can run out with a sentence, and that fails before anything is stopped when its answer is no approval."""

    what = "restore"

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        answer = super().execute_complete(context, event)
        if answer["chosen_options"] == [self.APPROVE]:
            refuse_unapproved(answer, context["dag_run"], self.what)
        return answer

    def process_trigger_event_error(self, event: dict[str, Any]) -> None:
        if event.get("error_type") == "timeout":
            raise AirflowFailException(
                f"nobody approved within {self.response_timeout}, so nothing was changed: trigger this DAG again when "
                "somebody is there to approve"
            )
        super().process_trigger_event_error(event)
