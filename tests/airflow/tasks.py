"""Tasks as Airflow's task runner runs them: rendered, executed, killed, tried again."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

from airflow.sdk import DAG, BaseOperator
from airflow.triggers.base import BaseTrigger

from stateflow.storage.local import LocalStore
from tests.airflow.task_state import TaskState

WHEN = datetime(2026, 1, 31, tzinfo=UTC)
WRITES = ("create", "put", "upload", "write", "copy", "take", "delete")


@dataclass
class Try:
    """One try of a task. `clears`: how often somebody has cleared tasks of its DAG run."""

    task_id: str
    try_number: int = 1
    clears: int = 0
    dag_id: str = "upkeep"
    run_id: str = "manual__1"
    map_index: int = -1
    max_tries: int = 2
    """Raised when somebody clears this very task."""
    pushed: dict[str, Any] = field(default_factory=dict)
    id: UUID = field(default_factory=uuid4)

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


def task(operator: type[BaseOperator], /, **arguments: Any) -> Any:
    """An operator in a DAG, with two retries, as a worker has it after parsing."""
    with DAG("upkeep", schedule=None):
        return operator(**{"task_id": "it", "job": "orders", "retries": 2, **arguments})


def context_of(attempt: Try, *, user: str | None = "ann", params: dict[str, Any] | None = None) -> Any:
    dag_run = SimpleNamespace(
        run_id=attempt.run_id,
        logical_date=None,
        run_after=WHEN,
        triggering_user_name=user,
        clear_number=attempt.clears,
    )
    state = TaskState(attempt.dag_id, attempt.run_id, attempt.task_id, attempt.map_index)
    dag = SimpleNamespace(folder=str(Path(__file__).parent))
    return {
        "ti": attempt,
        "dag_run": dag_run,
        "dag": dag,
        "params": params or {},
        "task_state_store": state,
        "var": {"value": {}},
    }


def ran(
    operator: type[BaseOperator],
    attempt: Try | None = None,
    /,
    params: dict[str, Any] | None = None,
    **arguments: Any,
) -> Any:
    """The result of one try of a freshly parsed task."""
    made = task(operator, **arguments)
    context = context_of(attempt or Try("it"), params=params)
    made.render_template_fields(context)
    return made.execute(context)


@contextmanager
def airflow_signals(operator: BaseOperator) -> Iterator[None]:
    """SIGTERM does what it does in Airflow's task runner: `on_kill`, and then the task goes on."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: operator.on_kill())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def killed_at_every_write(
    folder: Callable[[int], Path], work: Callable[[Path], object]
) -> Iterator[tuple[int, Path]]:
    """A folder for each write of `work`, in which a process did it and was killed by SIGKILL just before that write.

    In the last one it was killed when all was done, before anybody was told.
    """
    for at in itertools.count():
        place = folder(at)
        survived = _killed(place, work, at)
        yield at, place
        if survived:
            return


def _killed(place: Path, work: Callable[[Path], object], at: int) -> bool:
    child = os.fork()
    if child == 0:
        code = 70
        try:
            _kill_before(at)
            work(place)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return not os.WIFSIGNALED(status)


def _kill_before(at: int) -> None:
    counter = itertools.count()

    def deadly(write: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if next(counter) == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return write(*arguments, **named)

        return call

    for verb in WRITES:
        setattr(LocalStore, verb, deadly(getattr(LocalStore, verb)))


def fired(trigger: type[BaseTrigger], fields: dict[str, Any], patience: float | None = None) -> Any:
    """What a trigger of these fields says. It looks often."""

    async def first() -> Any:
        async for event in trigger(**{**fields, "interval": 0.05}).run():
            return event.payload

    return asyncio.run(asyncio.wait_for(first(), patience))
