"""Waits in the triggerer until nobody else works on a job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk.exceptions import AirflowException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from stateflow.airflow.connections.stateflow import StateflowHook
from stateflow.airflow.triggers.fields import KeepsFields
from stateflow.airflow.triggers.job import LONGEST_PAUSE, in_thread
from stateflow.airflow.triggers.overdue import in_time
from stateflow.checkpoint.occupancy import Occupancy
from stateflow.errors import BusyError, StateflowError, UnavailableError
from stateflow.format.records import Owner


class StateflowIdleTrigger(KeepsFields, BaseTrigger):
    """Fires once no other run of the job lives, or when the limit is over. The task then looks for itself.

    The event is `{"since"}`: when the wait began, in seconds since 1970. When the task's own time is over, it says so.
    """

    def __init__(
        self,
        *,
        job: str,
        stateflow_conn_id: str,
        checkpoint_dir: str,
        dag_run: str,
        task: str,
        patience: float,
        since: float,
        limit: float,
        interval: float = 5.0,
        deadline: float | None = None,
    ) -> None:
        """`patience`: seconds without a heartbeat before a run counts as dead. `limit`: seconds after `since`. `deadline`: when the
        task's time is over, in seconds since 1970."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.keep(locals())
        self._occupancy: Occupancy | None = None

    async def run(self) -> AsyncIterator[TriggerEvent]:
        event = await in_time(self._idle(), self.fields["deadline"], since=self.fields["since"])
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def _idle(self) -> dict[str, Any]:
        """Looks in threads, because stores block. What goes wrong is left to the task, which says so in its own words."""
        end, interval = self.fields["since"] + self.fields["limit"], self.fields["interval"]
        said, pause = "", interval
        while time.time() < end:
            try:
                busy = await in_thread(self._look)
            except UnavailableError as error:
                self._occupancy = None  # by the next look the connection may hold other credentials
                self.log.warning("the store is out of reach, looking again: %s", error)
                pause = min(2 * pause, LONGEST_PAUSE)
            except (StateflowError, AirflowException) as error:
                self.log.warning("%s", error)
                break
            else:
                if busy is None:
                    break
                if str(busy) != said:
                    said = str(busy)
                    self.log.info("%s", said)
                pause = interval
            await asyncio.sleep(max(0.0, min(pause, end - time.time())))
        return {"since": self.fields["since"]}

    def _look(self) -> BusyError | None:
        of = self.fields
        if self._occupancy is None:
            job = StateflowHook(of["stateflow_conn_id"], of["checkpoint_dir"]).job(of["job"])
            owner = Owner(run="", dag_run=of["dag_run"], task=of["task"])
            self._occupancy = Occupancy(
                job.store, job.layout, owner, patience=of["patience"], monotonic=time.monotonic
            )
        return self._occupancy.look()
