"""An XCom of another task instance, outside of a running task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey


def xcom_of(ti_key: TaskInstanceKey, key: str) -> Any:
    """For links, which the API server makes. Imported when it is asked: the module loads a part of Airflow's runtime."""
    from airflow.sdk.execution_time.xcom import XCom

    return XCom.get_value(ti_key=ti_key, key=key)
