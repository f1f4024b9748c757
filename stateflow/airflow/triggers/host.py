"""Waits in the triggerer while a warm host runs, and renews its lease where it sees it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from stateflow.airflow.triggers.fields import KeepsFields
from stateflow.airflow.triggers.kills import is_killed
from stateflow.airflow.triggers.overdue import in_time


class StateflowHostTrigger(KeepsFields, BaseTrigger):
    """Fires when a worker has to look at the host: it has ended, it is not on the triggerer's machine, or its time is over.

    The event is `{}`: the task looks for itself. When the task's own time is over, the event says so.
    """

    def __init__(
        self,
        *,
        host: str,
        interval: float,
        until: float | None,
        deadline: float | None = None,
        machine: str = "",
    ) -> None:
        """`interval`: seconds between two looks. `until`: when the host's time is over, in seconds since 1970; `deadline`: when the task's is.
        `machine`: where the host is."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.keep(locals())

    async def run(self) -> AsyncIterator[TriggerEvent]:
        event = await in_time(self._waited(), self.fields["deadline"])
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def _waited(self) -> dict[str, Any]:
        """A triggerer on the machine of the host keeps it by itself: no worker is needed until it ends."""
        if await asyncio.to_thread(self._renewed):
            while (pause := self._pause()) > 0 and await asyncio.to_thread(self._renewed):
                await asyncio.sleep(pause)
        else:
            await asyncio.sleep(max(0.0, self._pause()))
        return {}

    async def on_kill(self) -> None:
        """Somebody may have ended the task in Airflow's UI. A host elsewhere drains when its lease is over."""
        from stateflow.hosts.starting import drain

        if self._is_here() and await is_killed(self):
            await asyncio.to_thread(drain, self._folder())

    def _pause(self) -> float:
        until = self.fields["until"]
        interval: float = self.fields["interval"]
        return interval if until is None else min(interval, until - time.time())

    def _renewed(self) -> bool:
        """Whether the host is on this machine, and lives. Its lease is renewed then."""
        from stateflow.hosts.lease import renew
        from stateflow.hosts.starting import keeper_of

        if not self._is_here() or keeper_of(self._folder()) is None:
            return False
        renew(self._folder())
        return True

    def _is_here(self) -> bool:
        """Whether a host of this name here is the task's: a triggerer's machine may have one of its own."""
        return self.fields["machine"] in ("", socket.gethostname())

    def _folder(self) -> Any:
        from stateflow.hosts.settings import folder_of

        return folder_of(self.fields["host"])
