"""Who has approved, and whether that is enough. Pure: it judges what Airflow's approval task has returned."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

APPROVE = "Approve"
"""What Airflow's ApprovalOperator calls a yes."""


def person_of(approval: Any) -> tuple[str, str]:
    """Id and name of whoever answered, both empty when nobody did."""
    by = approval.get("responded_by_user") if isinstance(approval, Mapping) else None
    if not isinstance(by, Mapping):
        return "", ""
    return str(by.get("id") or ""), str(by.get("name") or "")


def asked_by(dag_run: Any) -> str:
    """Who wants what the DAG run does, as far as Airflow tells: it keeps who triggered it, and not who has cleared a task of it since."""
    return "" if dag_run.clear_number else getattr(dag_run, "triggering_user_name", None) or ""


def refusal(
    approval: Any, *, asked_by: str, four_eyes: bool, approvers: Collection[str], what: str = "restore"
) -> str:
    """Why the approval does not suffice, in one sentence; empty when it does. `asked_by`: what the function of
    that name says."""
    if not four_eyes and not approvers:
        return ""
    id_, name = person_of(approval)
    shown = name or id_
    if not shown or not isinstance(approval, Mapping) or approval.get("chosen_options") != [APPROVE]:
        return f"nobody has approved this {what}: let a person answer the approval task, whose result is `approval`"
    if approvers and not {id_, name} & set(approvers):
        return (
            f"{shown!r} has approved this {what}, and is none of its approvers ({', '.join(sorted(approvers))}): trigger the "
            "DAG again and let one of them answer"
        )
    if four_eyes and not asked_by:
        return (
            f"nobody knows who asked for this {what}, so nobody can be somebody else (four_eyes): let a person trigger the DAG "
            "again, since a DAG run with a task that was cleared does not say who wanted that"
        )
    # Some auth managers take a name in any case.
    if four_eyes and asked_by.casefold() in (id_.casefold(), name.casefold()):
        return (
            f"{shown!r} has asked for this {what} and approved it: four_eyes needs two people, so trigger the DAG again and let "
            "somebody else answer"
        )
    return ""
