"""Alerts: the jobs of a checkpoint root that need attention, with one sentence each, sent where people read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pkgutil import resolve_name
from typing import Annotated, Any

from airflow.sdk import BaseNotifier, Context

from stateflow.airflow.connections.stateflow import StateflowHook
from stateflow.airflow.operators.arguments import Argument, DeclaredArguments, Name, Span, Text
from stateflow.airflow.triggers.job import in_thread
from stateflow.errors import NotFoundError, StateflowError, UnavailableError
from stateflow.observe.health import health_of

Send = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class StaleJob:
    """A job that is not well."""

    job: str
    state: str
    """stale, lost or blocked, as in `stateflow.observe.health`; missing or unreadable."""
    reason: str
    """One sentence, with the next step."""


def stale_jobs(
    older_than: timedelta,
    jobs: Sequence[str] = (),
    *,
    stateflow_conn_id: str = StateflowHook.default_conn_name,
    checkpoint_dir: str = "",
) -> list[StaleJob]:
    """The jobs of a root that are stale, lost or blocked; without `jobs` all are looked at.

    A job that is drained for good, or has just been made, is none of them. Raises StateflowError when the connection is
    wrong or the store is out of reach.
    """
    hook = StateflowHook(stateflow_conn_id, checkpoint_dir)
    judgements = (_judged(hook, name, older_than) for name in jobs or hook.jobs())
    return [stale for stale in judgements if stale is not None]


def _names(value: Any) -> tuple[str, ...]:
    """Several names, or one text with commas in it, as templates give."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise TypeError("has to be names of jobs")
    return tuple(name.strip() for name in names if name.strip())


def _sender(value: Any) -> Any:
    if inspect.iscoroutinefunction(value):
        raise TypeError("has to be a plain function: nobody awaits it")
    if not callable(value) and not isinstance(value, str):
        raise TypeError("has to be a function of one text, or the name under which it is imported")
    return value


Names = Annotated[Sequence[str] | str, Argument(_names)]
Sender = Annotated[Send | str, Argument(_sender, template=False)]


class StaleJobs(DeclaredArguments, BaseNotifier):
    """Reports stale jobs: as a callback of a DAG or a task, or of a DeadlineAlert.

    The sentences go to the log and, in one text, to `send`: a function of one text, or the name under which it is imported (a
    DeadlineAlert needs the name). Nothing is sent while all jobs are well.
    """

    def __init__(
        self,
        older_than: Span,
        jobs: Names = (),
        *,
        send: Sender = "",
        stateflow_conn_id: Name = StateflowHook.default_conn_name,
        checkpoint_dir: Text = "",
        context: Context | None = None,
    ) -> None:
        super().__init__(context)
        self.accept(locals())

    def notify(self, context: Context) -> None:
        message = self.message()
        if message is None:
            self.log.info("no job is stale")
            return
        self.log.warning("%s", message)
        if send := self.read("send"):
            (send if callable(send) else resolve_name(send))(message)

    async def async_notify(self, context: Context) -> None:
        await in_thread(lambda: self.notify(context))

    def message(self) -> str | None:
        """The alert, None while all jobs are well. A root that cannot be read is an alert, too."""
        older_than, names = self.read("older_than"), self.read("jobs")
        try:
            jobs = stale_jobs(
                older_than,
                names,
                stateflow_conn_id=self.read("stateflow_conn_id"),
                checkpoint_dir=self.read("checkpoint_dir"),
            )
        except StateflowError as error:
            return f"whether any job is stale is not known: {error}"
        if not jobs:
            return None
        if len(jobs) == 1:
            return jobs[0].reason
        return "\n".join([f"{len(jobs)} jobs need somebody:", *(f"- {job.reason}" for job in jobs)])


def _judged(hook: StateflowHook, name: str, older_than: timedelta) -> StaleJob | None:
    job = hook.job(name)
    try:
        status = job.glance()
    except UnavailableError:
        raise
    except NotFoundError as error:
        return StaleJob(name, "missing", str(error))
    except StateflowError as error:
        # One damaged job must not hide the others.
        return StaleJob(name, "unreadable", f"job {name!r} cannot be read: {error}")
    health = health_of(status, job.clock(), older_than)
    # Airflow tells of a task that failed, and tries it again. If that does not help, the job becomes stale.
    return None if health.well or health.state == "failed" else StaleJob(name, health.state, health.reason)
