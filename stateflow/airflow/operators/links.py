"""The buttons of a task: to the checkpoints of its job, to Spark's pages of its run, and to the driver's log."""

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
"""The XCom key for what a task is about: `{"conn_id", "job", "checkpoint"}`, of a run's driver `{"driver": {...}}`, and of a replay
the name of its report `{"replay"}`."""


@attrs.define()
class CheckpointLink(BaseOperatorLink):
    """Reads the task's XCom and no job: a link must not wait for a store."""

    name = "Checkpoints"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        return page_of(xcom_of(ti_key, XCOM_KEY), conf.get("api", "base_url", fallback=""))


@attrs.define()
class SparkLink(BaseOperatorLink):
    """The address that `[stateflow] spark_page` gives, such as a history server; else Spark's own pages, which are off by
    default."""

    name = "Spark"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        return spark_page(xcom_of(ti_key, XCOM_KEY))


@attrs.define()
class DriverLogLink(BaseOperatorLink):
    """To where `[stateflow] driver_log` says: whatever collects the logs of a cluster's or a worker's processes."""

    name = "Driver log"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        return driver_log(xcom_of(ti_key, XCOM_KEY))


def spark_page(subject: Any) -> str:
    driver = _driver_of(subject)
    return _filled("spark_page", driver) or _web_address(driver.get("pages", ""))


def driver_log(subject: Any) -> str:
    return _filled("driver_log", _driver_of(subject))


def _driver_of(subject: Any) -> dict[str, str]:
    driver = subject.get("driver") if isinstance(subject, dict) else None
    return {str(name): str(value) for name, value in driver.items()} if isinstance(driver, dict) else {}


def _filled(setting: str, driver: dict[str, str]) -> str:
    """The setting with the driver's facts in the place of `{application}`, `{host}` and so on."""
    address = conf.get("stateflow", setting, fallback="") or ""
    if not address or not driver.get("application"):
        return ""
    for name, value in driver.items():
        address = address.replace(f"{{{name}}}", quote(value, safe=""))
    return address


def _web_address(text: str) -> str:
    """Whoever may write into a root has written the text: no other kind of address becomes a link."""
    return text if urlsplit(text).scheme in ("http", "https") else ""


def page_of(subject: Any, base_url: str) -> str:
    """The page in Airflow's UI, empty when there is none to show: a root without a connection is on no page."""
    if not isinstance(subject, dict) or not subject.get("conn_id"):
        return ""
    page = f"{urlsplit(base_url or '').path.rstrip('/')}/stateflow/#/jobs"
    if not subject.get("job"):
        return page
    page += f"/{quote(str(subject['conn_id']), safe='')}/{quote(str(subject['job']), safe='')}"
    if subject.get("replay"):
        return f"{page}/replays/{quote(str(subject['replay']), safe='')}"
    checkpoint = subject.get("checkpoint")
    return page if checkpoint is None else f"{page}/checkpoints/{checkpoint}"
