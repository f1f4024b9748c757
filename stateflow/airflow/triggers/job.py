"""Waiting for a job in the triggerer: looks at it now and then, from a thread, so that no other trigger waits."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import cache
from typing import Any, Literal, TypeVar

from airflow.sdk.exceptions import AirflowException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from stateflow.airflow.connections.failures import may_pass
from stateflow.airflow.connections.stateflow import StateflowHook
from stateflow.airflow.triggers.freshness import Answer, has_passed, is_fresh
from stateflow.airflow.triggers.overdue import in_time
from stateflow.errors import NotFoundError, StateflowError, UnavailableError

T = TypeVar("T")
Missing = Literal["wait", "fail"]

STORE_PATIENCE = 600.0
"""Seconds that a store may be out of reach before a sensor fails."""
LONGEST_PAUSE = 300.0
"""Seconds between two tries to reach a store that is away, at most."""
_THREADS = 8


async def in_thread(work: Callable[[], T]) -> T:
    """Runs the work in a thread pool of these triggers: a store that hangs blocks no other trigger."""
    from asgiref.sync import (
        sync_to_async,  # DAG files with alerts load this module, and the import takes 10 ms
    )

    return await sync_to_async(work, thread_sensitive=False, executor=_threads())()


async def followed(
    look: Callable[[], Awaitable[Answer]],
    *,
    interval: float,
    patience: float,
    say: Callable[[str], object],
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> dict[str, Any]:
    """Looks until the condition holds or cannot hold any more. The result is the event: `done` or `failed`.

    A store that is out of reach is tried again with growing pauses, for at most `patience` seconds.
    """
    away_since: float | None = None
    pause = interval
    while True:
        try:
            answer = await look()
        except UnavailableError as error:
            now = monotonic()
            away_since = now if away_since is None else away_since
            if now - away_since >= patience:
                return failed(error)
            pause = min(max(1.0, pause * 2), max(LONGEST_PAUSE, interval))
            say(f"the store is out of reach, trying again in {pause:g} s: {error}")
        except StateflowError as error:
            return failed(error)
        except AirflowException as error:
            return {"failed": str(error), "retry": True}
        else:
            say(answer.text)
            if answer.done:
                return {"done": answer.text, **answer.document()}
            away_since, pause = None, interval
        await sleep(pause)


def failed(error: StateflowError) -> dict[str, Any]:
    return {"failed": str(error), "retry": may_pass(error.exit_code)}


class JobTrigger(BaseTrigger):
    """Fires one event when something is true of a job: `{"done": sentence, "checkpoint", "watermark", "age"}`, or
    `{"failed": sentence, "retry"}`; or one that says that the task's time is over."""

    def __init__(
        self,
        *,
        job: str,
        stateflow_conn_id: str = StateflowHook.default_conn_name,
        checkpoint_dir: str = "",
        missing: Missing = "wait",
        poke_interval: float = 60.0,
        store_patience: float = STORE_PATIENCE,
        deadline: float | None = None,
    ) -> None:
        """`deadline`: when the task's time is over, in seconds since 1970."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.job = job
        self.stateflow_conn_id = stateflow_conn_id
        self.checkpoint_dir = checkpoint_dir
        self.missing = missing
        self.poke_interval = poke_interval
        self.store_patience = store_patience
        self.deadline = deadline
        self._hook: StateflowHook | None = None

    @abstractmethod
    def judge(self, status: Any, now: int) -> Answer:
        """Decides from a job's status. `now`: microseconds."""

    @abstractmethod
    def condition(self) -> dict[str, Any]:
        """The arguments that a subclass adds."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = (
            "job", "stateflow_conn_id", "checkpoint_dir", "missing", "poke_interval", "store_patience", "deadline",
        )  # fmt: skip
        own = {name: getattr(self, name) for name in names}
        return f"{type(self).__module__}.{type(self).__qualname__}", {**own, **self.condition()}

    def look(self) -> Answer:
        """One look, which takes as long as the store does. Raises StateflowError."""
        hook = self._hook = self._hook or StateflowHook(self.stateflow_conn_id, self.checkpoint_dir)
        try:
            job = hook.job(self.job)  # an error in the connection is raised whatever `missing` says
            try:
                hook.require_root()
                status = job.glance()
            except NotFoundError as error:
                if self.missing == "fail":
                    raise
                return Answer(False, f"waiting for a first run: {error}")
        except UnavailableError:
            self._hook = None  # by the next look the connection may hold other credentials
            raise
        return self.judge(status, job.clock())

    async def run(self) -> AsyncIterator[TriggerEvent]:
        seen = followed(
            lambda: in_thread(self.look),
            interval=self.poke_interval,
            patience=self.store_patience,
            say=self.log.info,
        )
        event = await in_time(seen, self.deadline)
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]


class CheckpointFreshnessTrigger(JobTrigger):
    """Fires when the job is fresh: no older than `max_age` seconds."""

    def __init__(self, *, max_age: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_age = max_age

    def judge(self, status: Any, now: int) -> Answer:
        return is_fresh(status, now, timedelta(seconds=self.max_age))

    def condition(self) -> dict[str, Any]:
        return {"max_age": self.max_age}


class WatermarkTrigger(JobTrigger):
    """Fires when the job's watermark has reached a time, in microseconds since 1970."""

    def __init__(self, *, watermark: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.watermark = watermark

    def judge(self, status: Any, now: int) -> Answer:
        return has_passed(status, now, self.watermark)

    def condition(self) -> dict[str, Any]:
        return {"watermark": self.watermark}


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="stateflow-trigger")
