"""Watches in the triggerer for rows that a job has not read, so that a run begins when there is something to read."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from stateflow.airflow.connections.stateflow import StateflowHook
from stateflow.airflow.triggers.fields import KeepsFields
from stateflow.airflow.triggers.job import LONGEST_PAUSE, in_thread
from stateflow.errors import StateflowError

if TYPE_CHECKING:
    from stateflow.jobs.unread import Looks, Unread

CALL_AGAIN = 600.0
"""Seconds after which rows call for a run once more if none has begun since the call before."""


@dataclass(frozen=True, slots=True)
class Called:
    """The look that has last called for a run."""

    position: str
    newest: str
    epoch: int
    at: float
    """Seconds since 1970."""


def calls(seen: Unread, before: Unread | None, last: Called | None, now: float) -> bool:
    """Whether a run has to begin. `before`: the look before this one; `last`: the one that has called for a run. Pure.

    Never twice for the same rows from the same position, unless nobody has heard it. A run that lives takes what it finds and is not disturbed: rows that are there
    when it has ended call for the next one.
    """
    if not seen.newest:
        return False
    if seen.beats is not None and (
        before is None or (before.epoch, before.beats) != (seen.epoch, seen.beats)
    ):
        return (
            False  # it lives, or nobody can tell yet: the next look knows whether its counter has stood still
        )
    if last is None:
        return True
    if (seen.position, seen.epoch) == (last.position, last.epoch):
        # The run that was called for waits its turn, and will read what has come since. But a DAG that was paused never heard the call.
        return now - last.at >= CALL_AGAIN
    return (seen.position, seen.newest) != (last.position, last.newest)


class NewRowsTrigger(KeepsFields, BaseEventTrigger):
    """For an `AssetWatcher`: an event when a source of the job has rows that the job has not read.

    `interval`: between two looks. `sources`: uids, all of the job's by default. `places` says where a source is of which no run of
    Airflow's has noted it; `kafka_connection` is the `connection=` of `sf.kafka`. A job or a source that is not there, and a place that
    cannot be looked at, is an error in the trigger's log, at growing intervals.
    """

    def __init__(
        self,
        *,
        job: str,
        sources: Sequence[str] = (),
        interval: float | timedelta = 30.0,
        places: Mapping[str, str] | None = None,
        kafka_connection: str = "",
        stateflow_conn_id: str = StateflowHook.default_conn_name,
        checkpoint_dir: str = "",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        seconds = interval.total_seconds() if isinstance(interval, timedelta) else float(interval)
        if seconds < 1:
            raise ValueError(
                f"interval={interval!r} is less than a second: say how many seconds lie between two looks"
            )
        if isinstance(sources, str):
            raise ValueError(f"sources={sources!r} is no list: write sources=[{sources!r}]")
        plain = {"sources": list(sources), "interval": seconds, "places": dict(places or {})}
        self.keep(locals() | plain)
        self._looks: Looks | None = None

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Looks in threads, because stores block. It never ends by itself: Airflow would not start it again."""
        last = await self._remembered()
        before: Unread | None = None
        interval: float = self.fields["interval"]
        pause, noted = interval, True
        while True:
            if not noted:
                # Only now: had this process died at once, the event might not have reached Airflow's database.
                await self._remember(last)
                noted = True
            try:
                seen = await in_thread(self._look)
            except (StateflowError, AirflowException) as error:
                self._looks, before = None, None
                pause = min(2 * pause, max(LONGEST_PAUSE, interval))
                self.log.error("no run can be called for, looking again in %g s: %s", pause, error)
            else:
                if calls(seen, before, last, time.time()):
                    last, noted = Called(seen.position, seen.newest, seen.epoch, time.time()), False
                    self.log.info("job %r has rows to read: %s", self.fields["job"], seen.text)
                    yield TriggerEvent({"job": self.fields["job"], "found": seen.text})  # type: ignore[no-untyped-call]
                before, pause = seen, interval
            await asyncio.sleep(pause)

    def _look(self) -> Unread:
        """One look, which takes as long as the store does."""
        if self._looks is None:
            from stateflow.jobs.unread import Looks  # DAG files name this trigger, and must not load stores

            of = self.fields
            hook = StateflowHook(of["stateflow_conn_id"], of["checkpoint_dir"])
            hook.require_root()
            self._looks = Looks(hook.job(of["job"]), of["sources"], of["places"], self._topic_ends)
        return self._looks.look()

    def _topic_ends(self, topics: Sequence[str], servers: str) -> Mapping[str, Mapping[int, int]]:
        from stateflow.connectors.kafka.ends import ends_of

        return ends_of(topics, servers, self.fields["kafka_connection"])

    @property
    def _memory(self) -> str:
        """The name under which the asset keeps the last call. Airflow takes no more than 512 characters."""
        of = self.fields
        watched = json.dumps([of["stateflow_conn_id"], of["checkpoint_dir"], of["job"], list(of["sources"])])
        return f"stateflow/{hashlib.sha256(watched.encode()).hexdigest()}"

    async def _remembered(self) -> Called | None:
        if self.asset_state_store is None:
            return None
        try:
            kept: Any = await self.asset_state_store.aget(self._memory)
            return Called(**kept) if kept else None
        except Exception as error:
            self.log.warning(
                "what was called for last is not known, and may be called for once more: %s", error
            )
            return None

    async def _remember(self, last: Called | None) -> None:
        if last is not None and self.asset_state_store is not None:
            try:
                await self.asset_state_store.aset(self._memory, asdict(last))
            except Exception as error:
                self.log.warning("a restart of the triggerer will call for this run again: %s", error)
