"""Jobs that somebody has to look at: found in a checkpoint root, told in one sentence each, and sent where people read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import BaseNotifier

from stateflow.airflow.connections.stateflow import StateflowHook
from stateflow.airflow.operators.arguments import Reader, is_late, named, span, text
from stateflow.errors import NotFoundError, StateflowError, UnavailableError
from stateflow.observe.health import health_of

if TYPE_CHECKING:
    from airflow.sdk import Context

T = TypeVar("T")
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
    found = (_looked_at(hook, name, older_than) for name in jobs or hook.jobs())
    return [one for one in found if one is not None]


class StaleJobs(BaseNotifier):
    """Tells of stale jobs: as a callback of a DAG or a task, or of a DeadlineAlert.

    Sentences go to the log, and all together to `send`: a function of one text, or the name under which it is imported (a
    DeadlineAlert needs the name). Nothing is sent while all jobs are well.
    """

    template_fields: Sequence[str] = ("older_than", "jobs", "stateflow_conn_id", "checkpoint_dir")

    def __init__(
        self,
        older_than: timedelta | str,
        jobs: Sequence[str] | str = (),
        *,
        send: Send | str = "",
        stateflow_conn_id: str = StateflowHook.default_conn_name,
        checkpoint_dir: str = "",
        context: Context | None = None,
    ) -> None:
        super().__init__(context)
        self.older_than = older_than
        self.jobs = jobs
        self.send = send
        self.stateflow_conn_id = stateflow_conn_id
        self.checkpoint_dir = checkpoint_dir
        for name, value, reader in (
            ("older_than", older_than, span),
            ("jobs", jobs, _names),
            ("stateflow_conn_id", stateflow_conn_id, named),
            ("checkpoint_dir", checkpoint_dir, text),
            ("send", send, _sender),
        ):
            if not is_late(value):
                _given(name, value, reader)

    def notify(self, context: Context) -> None:
        message = self.message()
        if message is None:
            self.log.info("no job is stale")
            return
        self.log.warning("%s", message)
        if self.send:
            send = self.send if callable(self.send) else resolve_name(self.send)
            send(message)

    async def async_notify(self, context: Context) -> None:
        from stateflow.airflow.triggers.job import in_thread

        await in_thread(lambda: self.notify(context))

    def message(self) -> str | None:
        """What there is to tell; a root that cannot be read is worth telling, too."""
        older_than = _given("older_than", self.older_than, span)
        try:
            found = stale_jobs(
                older_than,
                _given("jobs", self.jobs, _names),
                stateflow_conn_id=self.stateflow_conn_id,
                checkpoint_dir=self.checkpoint_dir,
            )
        except StateflowError as error:
            return f"whether any job is stale is not known: {error}"
        if not found:
            return None
        if len(found) == 1:
            return found[0].reason
        return "\n".join([f"{len(found)} jobs need somebody:", *(f"- {one.reason}" for one in found)])


def _looked_at(hook: StateflowHook, name: str, older_than: timedelta) -> StaleJob | None:
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
    return None if health.well else StaleJob(name, health.state, health.reason)


def _names(value: Any) -> tuple[str, ...]:
    """Several names, or one text with commas in it, as templates give."""
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
        raise TypeError("has to be names of jobs")
    return tuple(name.strip() for name in given if name.strip())


def _sender(value: Any) -> Any:
    if inspect.iscoroutinefunction(value):
        raise TypeError("has to be a plain function: nobody awaits it")
    if not callable(value) and not isinstance(value, str):
        raise TypeError("has to be a function of one text, or the name under which it is imported")
    return value


def _given(name: str, value: Any, reader: Reader[T]) -> T:
    try:
        return reader(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"StaleJobs: {name}={value!r} {error}") from None
