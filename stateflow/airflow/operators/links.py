"""The button of a task that leads to the checkpoints of its job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import attrs
from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

from stateflow.airflow.internals.xcoms import xcom_of

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

XCOM_KEY = "stateflow"
"""The XCom key for what a task is about: `{"conn_id", "job", "checkpoint"}`."""


@attrs.define()
class CheckpointLink(BaseOperatorLink):
    """Reads the task's XCom and no job: a link must not wait for a store."""

    name = "Checkpoints"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        return page_of(xcom_of(ti_key, XCOM_KEY), conf.get("api", "base_url", fallback=""))


def page_of(subject: Any, base_url: str) -> str:
    """The page in Airflow's UI, empty when there is none to show: a root without a connection is on no page."""
    if not isinstance(subject, dict) or not subject.get("conn_id"):
        return ""
    page = f"{urlsplit(base_url or '').path.rstrip('/')}/stateflow/#/jobs"
    if not subject.get("job"):
        return page
    page += f"/{quote(str(subject['conn_id']), safe='')}/{quote(str(subject['job']), safe='')}"
    checkpoint = subject.get("checkpoint")
    return page if checkpoint is None else f"{page}/checkpoints/{checkpoint}"
