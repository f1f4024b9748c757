"""Whether a trigger is told to end its work because somebody has ended the task."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from stateflow.airflow.internals.task_instances import state_of

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

PATIENCE = 10.0
"""Seconds that Airflow may take to answer. It gives all of `on_kill` thirty."""


async def is_killed(trigger: BaseTrigger) -> bool:
    """Airflow also calls `on_kill` in a triggerer that was silent for so long that another one has taken its triggers over: the task is still
    deferred then. When Airflow does not answer, the task counts as killed."""
    ti = trigger.task_instance
    if ti is None:
        return True
    try:
        deferred = await asyncio.wait_for(asyncio.to_thread(state_of, ti), PATIENCE) == "deferred"
    except Exception as error:
        trigger.log.warning("whether somebody has ended the task is not known, so its work ends: %r", error)
        return True
    if deferred:
        trigger.log.info("the task is still deferred, so another triggerer waits for it: its work goes on")
    return not deferred
