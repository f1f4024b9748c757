"""Keeping a warm host on a worker, for those who have only Airflow to keep services."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException

from stateflow.airflow.connections.failures import spoken
from stateflow.airflow.launchers.environment import inherited
from stateflow.airflow.operators.arguments import (
    Count,
    DeclaredArguments,
    Deferrable,
    Name,
    SomeTime,
    Table,
    Text,
)
from stateflow.errors import BusyError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from stateflow.hosts.settings import HostSettings

LOOKS = 3
"""Looks at a host within its lease: two of them may fail."""
DRAINED = 600.0
"""Seconds that a host with other settings, or one that drains, gets to end its runs."""


class StateflowHostOperator(DeclaredArguments, BaseOperator):
    """Starts the warm host on this worker, and keeps it: a host that has died is started again, as long as the task lives.

    The task ends when somebody has ended the host (`stateflow host drain`), or when `keep` is over. A task that is killed
    drains its host: runs on it end by themselves, and new ones have a driver of their own. When Airflow itself is gone,
    nobody renews the lease, and the host drains.
    """

    ui_color = "#e3f0f4"
    _at_work = False

    def __init__(
        self,
        *,
        host: Annotated[Name, "the name that `WarmHost(...)` names"],
        master: Annotated[Text, "Spark's master; else that of the worker's installation"] = "",
        conf: Annotated[Table, "settings that Spark's start needs"] = None,
        runs: Annotated[Count, "runs at once; others wait"] = 4,
        memory: Annotated[Text, "memory of Spark's driver, such as `2g`"] = "",
        lease: Annotated[
            SomeTime, "how long the host stays when nobody keeps it; it is looked at three times as often"
        ] = timedelta(minutes=15),
        keep: Annotated[
            SomeTime | None, "how long the host is kept; then it drains, and the task ends"
        ] = None,
        deferrable: Annotated[
            Deferrable,
            "wait in the triggerer, which frees the worker's slot; by default what `[operators] default_deferrable` says",
        ] = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.accept(locals())

    def execute(self, context: Context) -> dict[str, Any]:
        since = time.time()
        with spoken():
            self._begin()
        return self._kept(context, since)

    def resume(self, context: Context, event: dict[str, Any], since: float) -> dict[str, Any]:
        """Called by Airflow when the host has to be looked at, or the task's time is over."""
        from stateflow.airflow.triggers.overdue import refuse_overdue  # a DAG file loads what declares

        refuse_overdue(self, event)
        return self._kept(context, since)

    def on_kill(self) -> None:
        from stateflow.hosts.starting import drain  # a DAG file loads what declares, not what works

        if drain(self._folder()):
            self.log.info("the host %s drains", self.given("host"))
        if self._at_work:
            self._at_work = False
            raise AirflowException(f"task {self.task_id!r} was killed: its host drains")

    def _kept(self, context: Context, since: float) -> dict[str, Any]:
        """Renews the lease and looks at the host again and again, here or in the triggerer."""
        from stateflow.hosts import lease, starting

        keep, folder, name = self.given("keep"), self._folder(), self.given("host")
        until = since + keep.total_seconds() if keep is not None else None
        self._at_work = True
        try:
            while until is None or time.time() < until:
                if starting.has_died(folder):
                    self.log.info("the host %s has died, and is started again", name)
                    with spoken():
                        self._start()
                elif starting.keeper_of(folder) is None:
                    self.log.info("somebody has ended the host %s", name)
                    return {"host": name, "ended": "stopped"}
                lease.renew(folder)
                pause = self.given("lease").total_seconds() / LOOKS
                if self.given("deferrable"):
                    self._defer(context, since, until, pause)
                time.sleep(pause if until is None else max(0.0, min(pause, until - time.time())))
            starting.drain(folder)
            self.log.info("the host %s was kept for its time, and drains", name)
            return {"host": name, "ended": "time"}
        finally:
            self._at_work = False

    def _defer(self, context: Context, since: float, until: float | None, pause: float) -> None:
        from stateflow.airflow.triggers.host import StateflowHostTrigger
        from stateflow.airflow.triggers.overdue import deadline_of

        trigger = StateflowHostTrigger(
            host=self.given("host"),
            interval=pause,
            until=until,
            deadline=deadline_of(self, context),
            machine=socket.gethostname(),
        )
        self.defer(trigger=trigger, method_name="resume", kwargs={"since": since})

    def _begin(self) -> None:
        """Starts the host, or goes on with one that has these settings. One that has others, or drains, is replaced."""
        from stateflow.hosts import starting
        from stateflow.hosts.settings import differences, read_settings

        folder, name = self._folder(), self.given("host")
        if starting.keeper_of(folder) is not None:
            running = read_settings(folder)
            if not running.lease:
                raise BusyError(
                    f"the host {name!r} runs already, and whoever has started it keeps it: stop it with "
                    f"`stateflow host stop {name}`, or give this task's host another name"
                )
            others, draining = differences(running, self._settings()), starting.drains(folder)
            if not others and not draining:
                self.log.info("the host %s runs already", name)
                return
            why = "drains" if draining else f"has other settings ({'; '.join(others)}) and drains"
            self.log.info("the host %s %s: it is started anew when its runs have ended", name, why)
            starting.drain(folder)
            until = time.monotonic() + DRAINED
            while starting.keeper_of(folder) is not None:
                if time.monotonic() > until:
                    raise AirflowException(
                        f"the host {name!r} drains, and still has runs after {DRAINED:.0f} s: it ends with "
                        f"them, or with `stateflow host stop {name}`, and a retry starts the new one"
                    )
                time.sleep(0.5)
        self._start()

    def _start(self) -> None:
        from stateflow.hosts import starting

        shown = starting.start(self._folder(), self._settings(), inherited(os.environ))
        self.log.info(
            "the host %s takes runs: %d at once, master %s",
            self.given("host"),
            shown["places"],
            shown["master"],
        )

    def _settings(self) -> HostSettings:
        from stateflow.hosts.settings import HostSettings, driver_memory

        memory = driver_memory(self.given("memory"), "memory")
        return HostSettings(
            master=self.given("master") or None,
            conf={**{name: str(value) for name, value in self.given("conf").items()}, **memory},
            places=self.given("runs"),
            lease=self.given("lease").total_seconds(),
        )

    def _folder(self) -> Path:
        from stateflow.hosts.settings import folder_of

        with spoken():
            return folder_of(self.given("host"))
