"""Waits in the triggerer for the end of a run, by its heartbeat and, on the driver's own host, by its process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from stateflow.airflow.connections.stateflow import StateflowHook
from stateflow.airflow.triggers.fields import KeepsFields
from stateflow.airflow.triggers.kills import is_killed
from stateflow.airflow.triggers.overdue import in_time
from stateflow.driver.handover import Handover
from stateflow.driver.processes import DriverProcess
from stateflow.driver.run_spec import RunSpec
from stateflow.driver.run_state import Lost, Running, RunState
from stateflow.driver.supervision import Supervision
from stateflow.format.records import Owner

if TYPE_CHECKING:
    from stateflow.airflow.launchers.driver_pods import DriverPod

ASK_AGAIN = 20.0
"""Seconds between two questions to Kubernetes about one pod."""


class StateflowRunTrigger(KeepsFields, BaseTrigger):
    """Fires once the run is over, or the task's time. The task then reads the outcome, or has the run stopped."""

    def __init__(
        self,
        *,
        job: str,
        stateflow_conn_id: str,
        checkpoint_dir: str,
        dag_run: str,
        task: str,
        patience: float,
        grace: float,
        handover: dict[str, Any],
        interval: float = 2.0,
        kubernetes_conn_id: str = "",
        deadline: float | None = None,
    ) -> None:
        """`kubernetes_conn_id`: for a driver that is a pod. `deadline`: when the task's time is over, in seconds since 1970."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.keep(locals())
        self.interval = interval
        self._supervision: Supervision | None = None
        self._pod: DriverPod | None = None
        self._asked_at = time.monotonic()

    async def run(self) -> AsyncIterator[TriggerEvent]:
        event = await in_time(self._over(), self.fields["deadline"], **self.fields["handover"])
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def _over(self) -> dict[str, Any]:
        """Waits for the end of the run. Looks in threads, because stores block."""
        supervision = await asyncio.to_thread(self._supervise)
        while isinstance(state := await asyncio.to_thread(self._look, supervision), Running):
            await asyncio.sleep(self.interval)
        return supervision.handover(state).plain()

    async def on_kill(self) -> None:
        """Somebody may have ended the task in Airflow's UI."""
        if not await is_killed(self):
            return
        supervision = self._supervision
        if supervision is None:
            supervision = await asyncio.to_thread(self._supervise)
        await asyncio.to_thread(supervision.stop, grace=self.fields["grace"])
        if self.fields["kubernetes_conn_id"]:
            # Its node kills the pod then, whoever is alive to ask for it.
            await asyncio.to_thread(self._driver_pod().stop, self.fields["grace"])

    def _look(self, supervision: Supervision) -> RunState:
        state = supervision.look()
        if not isinstance(state, Running) or state.epoch is not None or not self.fields["kubernetes_conn_id"]:
            return state
        # Before its first heartbeat a run shows no sign of death either, and may wait for minutes in a queue.
        if time.monotonic() - self._asked_at < ASK_AGAIN:
            return state
        self._asked_at = time.monotonic()
        try:
            status = self._driver_pod().look()
        except Exception as error:  # whatever it is, the heartbeat is still followed
            self.log.warning("whether the driver's pod lives is not known: %s", error)
            return state
        return state if status.running else Lost(status.reason or "its pod has ended")

    def _driver_pod(self) -> DriverPod:
        if self._pod is None:
            from stateflow.airflow.launchers.kubernetes import pod_of  # loads the client of Kubernetes

            self._pod = pod_of(Handover.of(self.fields["handover"]).folder, self.fields["kubernetes_conn_id"])
        return self._pod

    def _supervise(self) -> Supervision:
        of = self.fields
        handover = Handover.of(of["handover"])
        hook = StateflowHook(of["stateflow_conn_id"], of["checkpoint_dir"])
        spec = RunSpec("", of["job"], of["dag_run"], of["task"])
        owner = Owner(run="", dag_run=of["dag_run"], task=of["task"])
        supervision = Supervision(
            hook.job(of["job"]), spec, _Known(handover.folder), owner,
            patience=of["patience"], say=lambda line: self.log.info("%s", line),
        )  # fmt: skip
        supervision.rejoin(handover)
        self._supervision = supervision
        return supervision


class _Known:
    """Finds the driver of one folder. On another host than the driver's there is none."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find(self, spec: Any) -> Any:
        return DriverProcess.find(Path(self._folder)) if self._folder else None

    def launch(self, spec: Any) -> Any:
        raise NotImplementedError("a trigger starts nothing")
