"""Waits in the triggerer for the end of a run, by its heartbeat and, on the driver's own host, by its process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

if TYPE_CHECKING:
    from stateflow.driver.attending import Attendance


class StateflowRunTrigger(BaseTrigger):
    """Fires once the run is over, well or not; the task finds out which."""

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
        handover: dict[str, Any] | None = None,
        interval: float = 2.0,
        above: int = 0,
        reattached: bool = False,
        folder: str = "",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fields: dict[str, Any] = {
            "job": job,
            "stateflow_conn_id": stateflow_conn_id,
            "checkpoint_dir": checkpoint_dir,
            "dag_run": dag_run,
            "task": task,
            # Tasks that were deferred by an earlier version have told what a handover says one by one.
            "handover": handover or {"above": above, "reattached": reattached, "folder": folder},
            "patience": patience,
            "grace": grace,
            "interval": interval,
        }
        self.interval = interval
        self._attendance: Attendance | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", dict(self.fields)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Stores block, so they are left to threads."""
        from stateflow.driver.standing import Running

        attendance = await asyncio.to_thread(self._attend)
        while isinstance(stands := await asyncio.to_thread(attendance.look), Running):
            await asyncio.sleep(self.interval)
        yield TriggerEvent(attendance.handover(stands).plain())  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """Somebody ended the task in Airflow's UI."""
        attendance = self._attendance
        if attendance is None:
            attendance = await asyncio.to_thread(self._attend)
        await asyncio.to_thread(attendance.stop, grace=self.fields["grace"])

    def _attend(self) -> Attendance:
        from stateflow.airflow.connections.stateflow import StateflowHook
        from stateflow.driver.attending import Attendance
        from stateflow.driver.errand import Errand
        from stateflow.driver.handover import Handover
        from stateflow.format.records import Owner

        of = self.fields
        told = Handover.of(of["handover"])
        hook = StateflowHook(of["stateflow_conn_id"], of["checkpoint_dir"])
        errand = Errand("", of["job"], of["dag_run"], of["task"])
        owner = Owner(run="", dag_run=of["dag_run"], task=of["task"])
        attendance = Attendance(
            hook.job(of["job"]), errand, _Known(told.folder), owner,
            patience=of["patience"], say=lambda line: self.log.info("%s", line),
        )  # fmt: skip
        attendance.rejoin(told)
        self._attendance = attendance
        return attendance


class _Known:
    """A driver that is looked for in one folder only; elsewhere than on its host there is none."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find(self, errand: Any) -> Any:
        from stateflow.driver.keeping import KeptDriver

        there = bool(self._folder) and (Path(self._folder) / "command.json").is_file()
        return KeptDriver(Path(self._folder)) if there else None

    def launch(self, errand: Any) -> Any:
        raise NotImplementedError("a trigger starts nothing")
