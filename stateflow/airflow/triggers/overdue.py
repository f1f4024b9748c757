"""The `execution_timeout` of a task that waits in the triggerer: Airflow itself measures only a worker's time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowTaskTimeout

from stateflow.quantities import written_duration

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

OVERDUE = "overdue"
"""The key of an event that says that the task's time was over first."""


def deadline_of(task: BaseOperator, context: Context) -> float | None:
    """When the time of this try is over, in seconds since 1970. Airflow keeps the start of a try over all its deferrals."""
    if task.execution_timeout is None:
        return None
    end = context["ti"].start_date + task.execution_timeout
    return float(end.timestamp())


async def in_time(wait: Awaitable[dict[str, Any]], deadline: float | None, **known: Any) -> dict[str, Any]:
    """The event that a wait ends with. When the deadline comes first, it is `known`, marked as overdue."""
    left = None if deadline is None else max(0.0, deadline - time.time())
    try:
        async with asyncio.timeout(left) as limit:
            return await wait
    except TimeoutError:
        if not limit.expired():
            raise
        return {**known, OVERDUE: True}


def refuse_overdue(task: BaseOperator, event: Mapping[str, Any]) -> None:
    """Raises what Airflow raises in a worker whose time is over: its task runner then calls `on_kill`, and fails the try."""
    if event.get(OVERDUE) and task.execution_timeout is not None:
        raise AirflowTaskTimeout(
            f"task {task.task_id!r} was not done within execution_timeout={written_duration(task.execution_timeout)} "
            "of the start of its try: give it longer, or retries"
        )
