"""A task under Airflow's own task runner, with a supervisor that only takes down what it is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import structlog
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.api.datamodels._generated import (
    DagRun,
    DagRunState,
    DagRunType,
    TaskInstanceState,
    TIRunContext,
)
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time import comms, task_runner

from tests.airflow.task_state import TaskState

WHEN = datetime(2026, 1, 31, tzinfo=UTC)


@dataclass
class Supervisor:
    """What the task runner sent, and answers to what it asks."""

    rescheduled_at: datetime | None = None
    state: TaskState | None = None
    results: Mapping[str, Any] = field(default_factory=dict)
    """Of other tasks, by their ids."""
    variables: dict[str, str] = field(default_factory=dict)
    """Airflow's, which the task may change."""
    states: dict[str, Any] = field(default_factory=dict)
    """Of task instances, by DAG run and task."""
    told: list[Any] = field(default_factory=list)

    def send(self, msg: Any) -> Any:
        self.told.append(msg)
        if isinstance(msg, comms.GetTaskRescheduleStartDate):
            return comms.TaskRescheduleStartDate(start_date=self.rescheduled_at)
        if isinstance(msg, comms.GetTaskStateStore) and self.state is not None:
            stored = self.state.get(msg.key)
            return comms.TaskStateStoreResult(value=stored) if stored is not None else None
        if isinstance(msg, comms.SetTaskStateStore) and self.state is not None:
            self.state.set(msg.key, msg.value)
        if isinstance(msg, comms.GetVariable):
            if msg.key in self.variables:
                return comms.VariableResult(key=msg.key, value=self.variables[msg.key])
            return comms.ErrorResponse(error=ErrorType.VARIABLE_NOT_FOUND)
        if isinstance(msg, comms.PutVariable):
            self.variables[msg.key] = msg.value or ""
        if isinstance(msg, comms.DeleteVariable):
            del self.variables[msg.key]
            return comms.OKResponse(ok=True)
        if isinstance(msg, comms.GetXCom):
            return comms.XComResult(key=msg.key, value=self.results.get(msg.task_id))
        if isinstance(msg, comms.GetXComSequenceSlice):
            return comms.XComSequenceSliceResult(
                root=[each for name, each in self.results.items() if name == msg.task_id]
            )
        if isinstance(msg, comms.GetTaskStates):
            return comms.TaskStatesResult(task_states=self.states)
        if isinstance(msg, comms.ValidateInletsAndOutlets):
            return comms.InactiveAssetsResult(inactive_assets=[])
        return None


@dataclass(frozen=True)
class Outcome:
    """What became of one try."""

    state: TaskInstanceState
    message: Any
    """The last word to the supervisor."""
    error: BaseException | None
    xcoms: Mapping[str, Any]


@contextmanager
def supervised(supervisor: Supervisor) -> Iterator[None]:
    # Airflow takes this very attribute for the sign that code runs in a task.
    assert not hasattr(task_runner, "SUPERVISOR_COMMS")
    task_runner.SUPERVISOR_COMMS = supervisor  # type: ignore[assignment]
    try:
        yield
    finally:
        del task_runner.SUPERVISOR_COMMS


def run_task(
    operator: BaseOperator,
    *,
    run_id: str = "scheduled__2026-01-31",
    rescheduled_at: datetime | None = None,
    resumed: tuple[str, Mapping[str, Any]] | None = None,
    max_tries: int = 0,
    interval_end: datetime | None = None,
    listener: Any = None,
    started_at: datetime = WHEN,
    kept: Mapping[str, Any] | None = None,
    results: Mapping[str, Any] | None = None,
) -> Outcome:
    """One try of the task. `resumed`: the method that a deferral names, and the trigger's event; `kept`: what it gets beside the event. `results`: of other tasks. `listener` is told of its
    beginning and its end, as Airflow tells one."""
    with DAG("orders_dag", schedule=None) as dag:
        if not operator.has_dag():
            dag.add_task(operator)
    dag_run = DagRun(
        dag_id="orders_dag", run_id=run_id, logical_date=interval_end, data_interval_start=interval_end,
        data_interval_end=interval_end, run_after=WHEN, start_date=WHEN, end_date=None, run_type=DagRunType.SCHEDULED,
        state=DagRunState.RUNNING, consumed_asset_events=[], partition_key=None,
    )  # fmt: skip
    of_server = TIRunContext(
        dag_run=dag_run,
        max_tries=max_tries,
        task_reschedule_count=0 if rescheduled_at is None else 1,
        next_method=resumed[0] if resumed else None,
        next_kwargs={"event": dict(resumed[1]), **(kept or {})} if resumed else None,
        should_retry=True,
    )
    ti = task_runner.RuntimeTaskInstance.model_construct(
        id=uuid4(), task_id=operator.task_id, dag_id="orders_dag", run_id=run_id, try_number=1, map_index=-1,
        dag_version_id=uuid4(), task=operator, bundle_instance=SimpleNamespace(name="dags", version=None),
        _ti_context_from_server=of_server, max_tries=max_tries, start_date=started_at, state=TaskInstanceState.RUNNING,
    )  # fmt: skip
    supervisor = Supervisor(rescheduled_at, TaskState("orders_dag", run_id, operator.task_id), results or {})
    with supervised(supervisor):
        if listener is not None:
            listener.on_task_instance_running(None, ti)
        state, message, error = task_runner.run(ti, ti.get_template_context(), structlog.get_logger("task"))
        if listener is not None and state is TaskInstanceState.SUCCESS:
            listener.on_task_instance_success(TaskInstanceState.RUNNING, ti)
        elif listener is not None and state in (TaskInstanceState.FAILED, TaskInstanceState.UP_FOR_RETRY):
            listener.on_task_instance_failed(TaskInstanceState.RUNNING, ti, error)
    xcoms = {each.key: each.value for each in supervisor.told if isinstance(each, comms.SetXCom)}
    return Outcome(state, message, error, xcoms)
