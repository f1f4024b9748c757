"""A client of Airflow's REST API, for the demo and the tests: it does what a person does in the UI."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import httpx
import psutil

from stateflow.errors import StateflowError

RUN_OVER = frozenset({"success", "failed"})
TASK_OVER = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


class UnreachableError(StateflowError):
    """Airflow's API server does not answer."""


class RefusedError(StateflowError):
    """Airflow answered a call with an error."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class RunOf:
    """A DAG run: what most calls are about."""

    dag_id: str
    run_id: str

    @property
    def path(self) -> str:
        return f"/api/v2/dags/{self.dag_id}/dagRuns/{self.run_id}"

    def task(self, task_id: str) -> str:
        return f"{self.path}/taskInstances/{task_id}"


@dataclass
class AirflowClient:
    """Calls as one user. The first call fetches the token. Without a user, only the health page answers."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    patience: float = 180
    """The most seconds to wait, by default."""
    _token: str = field(init=False, default="", repr=False)
    _http: httpx.Client = field(init=False, repr=False)
    """One for all calls: each new one reads all certificates that this machine trusts."""

    def __post_init__(self) -> None:
        # A connection of its own for each call: Airflow is ended and started again between two. A busy machine may take long to
        # answer, and the environment's proxies are not for loopback.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.Client(base_url=self.url, timeout=90, trust_env=False, limits=limits)

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """The JSON of the answer. RefusedError when Airflow refuses, UnreachableError when it does not answer."""
        answer = self.ask(method, path, body, **query)
        if answer.status_code >= 400:
            raise RefusedError(
                f"Airflow refused {method} {path} ({answer.status_code}): {answer.text[:500]}",
                answer.status_code,
            )
        return answer.json() if answer.content else None

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **query: Any
    ) -> httpx.Response:
        """The answer as it is, with its code and headers."""
        if self.user and not self._token:
            self._token = str(
                self._send(
                    "POST", "/auth/token", {"username": self.user, "password": self.password}, {}, {}
                ).json()["access_token"]
            )
        authorization = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        return self._send(method, path, body, {**authorization, **(headers or {})}, query)

    def _send(
        self, method: str, path: str, body: Any, headers: Mapping[str, str], query: Mapping[str, Any]
    ) -> httpx.Response:
        try:
            return self._http.request(method, path, json=body, headers=dict(headers), params=dict(query))
        except httpx.TransportError as error:
            raise UnreachableError(
                f"Airflow at {self.url} does not answer ({error or type(error).__name__})"
            ) from None

    def alive_since(self, moment: float) -> set[str]:
        """Healthy components with a heartbeat after `moment` (seconds since 1970)."""
        return {name for name, at in self._signs().items() if at > moment}

    def _signs(self) -> dict[str, float]:
        """The last heartbeat of each healthy component."""
        health = self.call("GET", "/api/v2/monitor/health")
        return {
            name: _seconds(component.get(f"latest_{name}_heartbeat"))
            for name, component in health.items()
            if component.get("status") == "healthy"
        }

    # DAGs

    def parse(self, dag_id: str) -> None:
        """Has the DAG's file read again, soon and not when it is due."""
        token = self.call("GET", f"/api/v2/dags/{dag_id}")["file_token"]
        self.call("PUT", f"/api/v2/parseDagFile/{token}")

    def dags(self) -> list[str]:
        return sorted(each["dag_id"] for each in self.call("GET", "/api/v2/dags", limit=100)["dags"])

    def import_errors(self) -> list[str]:
        errors = self.call("GET", "/api/v2/importErrors")["import_errors"]
        return [f"{each['filename']}: {each['stack_trace']}" for each in errors]

    def await_dags(self, *dag_ids: str, patience: float | None = None) -> None:
        """Waits until the DAG processor has found them."""

        def missing() -> bool:
            if errors := self.import_errors():
                raise StateflowError(f"a DAG cannot be imported: {errors[0]}")
            return not set(dag_ids) <= set(self.dags())

        self._until(lambda: not missing(), f"DAGs {', '.join(dag_ids)} to be found", patience)

    def unscheduled(self) -> list[str]:
        """DAGs that run only when they are triggered."""
        dags = self.call("GET", "/api/v2/dags", limit=100)["dags"]
        return sorted(each["dag_id"] for each in dags if each["timetable_summary"] in (None, "None"))

    def unpause(self, dag_id: str) -> None:
        self.call("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": False}, update_mask="is_paused")

    # Runs

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None, **more: Any) -> RunOf:
        """Unpauses the DAG and starts a new run."""
        self.unpause(dag_id)
        answer = self.call(
            "POST",
            f"/api/v2/dags/{dag_id}/dagRuns",
            {"logical_date": None, "conf": dict(conf or {}), **more},
        )
        return RunOf(dag_id, str(answer["dag_run_id"]))

    def newest_run(self, dag_id: str) -> RunOf:
        """The DAG's newest run, however it was started."""
        runs = self.call("GET", f"/api/v2/dags/{dag_id}/dagRuns", order_by="-run_after", limit=1)["dag_runs"]
        if not runs:
            raise StateflowError(f"DAG {dag_id} has not run yet")
        return RunOf(dag_id, str(runs[0]["dag_run_id"]))

    def state(self, run: RunOf) -> str:
        return str(self.call("GET", run.path)["state"])

    def await_run(
        self,
        run: RunOf,
        *,
        states: Collection[str] = RUN_OVER,
        patience: float | None = None,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> str:
        """The state once it is one of `states`. An error after the patience, with what each task is doing."""
        state = ""

        def there() -> bool:
            nonlocal state
            meanwhile()
            state = self.state(run)
            return state in states

        self._until(there, f"run {run.run_id} of {run.dag_id}", patience, lambda: self.described(run))
        return state

    def described(self, run: RunOf) -> str:
        """The run with a line per task, and the last lines of failed tasks' logs."""
        lines = []
        for task in self.tasks(run):
            lines.append(f"{task['task_id']}: {task['state']} (try {task['try_number']})")
            if task["state"] in ("failed", "up_for_retry", "running"):
                lines += [f"    {line}" for line in self.log(run, task["task_id"]).splitlines()[-12:]]
        return "\n".join(lines)

    def seconds_of(self, run: RunOf) -> float:
        """How long a DAG run took from queued to its end."""
        told = self.call("GET", run.path)
        began, ended = (datetime.fromisoformat(str(told[name])) for name in ("queued_at", "end_date"))
        return (ended - began).total_seconds()

    # Tasks

    def tasks(self, run: RunOf) -> list[dict[str, Any]]:
        return list(self.call("GET", f"{run.path}/taskInstances", limit=100)["task_instances"])

    def task(self, run: RunOf, task_id: str) -> dict[str, Any]:
        return dict(self.call("GET", run.task(task_id)))

    def await_task(
        self,
        run: RunOf,
        task_id: str,
        *,
        states: Collection[str] = TASK_OVER,
        attempt: int = 0,
        patience: float | None = None,
    ) -> str:
        """The task's state once it is one of `states`, in a try not before `attempt`."""
        state = ""

        def there() -> bool:
            nonlocal state
            task = self.task(run, task_id)
            state = str(task["state"])
            return state in states and int(task["try_number"]) >= attempt

        what = f"task {task_id} of {run.dag_id} to be {' or '.join(sorted(states))}"
        self._until(there, what, patience, lambda: self.described(run))
        return state

    def log(self, run: RunOf, task_id: str, attempt: int = 0) -> str:
        """The log of a task's try, as text; by default of its newest try."""
        attempt = attempt or max(1, int(self.task(run, task_id)["try_number"]))
        answer = self.ask(
            "GET",
            f"{run.task(task_id)}/logs/{attempt}",
            headers={"Accept": "application/json"},
            full_content="true",
        )
        if answer.status_code == 404:
            return ""
        return "\n".join(_log_line(line) for line in answer.json()["content"])

    def tries(self, run: RunOf, task_id: str) -> list[str]:
        """How each try of a task ended, the first one first."""
        instances = self.call("GET", f"{run.task(task_id)}/tries")["task_instances"]
        return [str(each["state"]) for each in sorted(instances, key=lambda each: int(each["try_number"]))]

    def xcom(self, run: RunOf, task_id: str, key: str = "return_value") -> Any:
        answer = self.ask("GET", f"{run.task(task_id)}/xcomEntries/{key}", deserialize="true")
        if answer.status_code == 404:
            return None
        value = answer.json()["value"]
        with_json = isinstance(value, str) and value[:1] in "[{"
        return json.loads(value) if with_json else value

    def links(self, run: RunOf, task_id: str) -> dict[str, str]:
        return dict(self.call("GET", f"{run.task(task_id)}/links")["extra_links"])

    def mark(self, run: RunOf, task_id: str, state: str) -> None:
        """Sets a task's state, like "Mark as failed" and "Mark as success"."""
        self.call("PATCH", run.task(task_id), {"new_state": state})

    def clear(self, run: RunOf, *task_ids: str) -> None:
        """Clears tasks of a run, so that they start again; by default all of them."""
        body: dict[str, Any] = {"dry_run": False, "dag_run_id": run.run_id, "only_failed": False}
        if task_ids:
            body["task_ids"] = list(task_ids)
        self.call("POST", f"/api/v2/dags/{run.dag_id}/clearTaskInstances", body)

    # A person is asked

    def question(self, run: RunOf, task_id: str) -> dict[str, Any] | None:
        """Subject, body, options of what a task asks a person; None while it does not."""
        answer = self.ask("GET", f"{run.task(task_id)}/-1/hitlDetails")
        return dict(answer.json()) if answer.status_code == 200 else None

    def await_question(self, run: RunOf, task_id: str, patience: float | None = None) -> dict[str, Any]:
        question: dict[str, Any] | None = None

        def is_asking() -> bool:
            nonlocal question
            question = self.question(run, task_id)
            if question is None and self.state(run) in RUN_OVER:
                raise StateflowError(
                    f"run {run.run_id} of {run.dag_id} ended before it asked:\n{self.described(run)}"
                )
            return question is not None and self.task(run, task_id)["state"] == "awaiting_input"

        self._until(
            is_asking, f"task {task_id} of {run.dag_id} to ask", patience, lambda: self.described(run)
        )
        self._let_the_scheduler_notice(int(self.task(run, task_id)["pid"] or 0))
        assert question is not None
        return question

    def answer(self, run: RunOf, task_id: str, *options: str, **values: Any) -> None:
        """Chooses options of the question ("Approve"), with the form's values."""
        body = {"chosen_options": list(options), "params_input": values}
        self.call("PATCH", f"{run.task(task_id)}/-1/hitlDetails", body)

    def _let_the_scheduler_notice(self, pid: int) -> None:
        """Airflow 3.3.2 fails a task that is answered before the scheduler has heard that its worker went.

        People take longer. The second sign of life after the end of its process comes after a round that began after it.
        """
        self._until(lambda: not (pid and psutil.pid_exists(pid)), f"process {pid} to end", None)
        for _ in range(2):
            last = self._signs().get("scheduler", 0.0)
            self._until(
                lambda last=last: self._signs().get("scheduler", 0.0) > last,  # type: ignore[misc]
                "the scheduler",
                None,
            )

    def _until(
        self,
        there: Callable[[], bool],
        what: str,
        patience: float | None,
        described: Callable[[], str] = lambda: "",
    ) -> None:
        limit = self.patience if patience is None else patience
        deadline = time.monotonic() + limit
        while True:
            # A machine that is busy enough lets a request time out; only the deadline ends the wait.
            with suppress(UnreachableError):
                if there():
                    return
            if time.monotonic() > deadline:
                raise StateflowError(f"waited {limit:g} s for {what}\n{described()}".rstrip())
            time.sleep(0.5)


def _seconds(timestamp: str | None) -> float:
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else -1.0


def _log_line(line: Any) -> str:
    if isinstance(line, str):
        return line
    text = str(line.get("event", ""))
    if line.get("level") in ("error", "warning", "critical"):
        text = f"{str(line['level']).upper()} {text}"
    for detail in line.get("error_detail") or ():
        text += f"\n{detail.get('exc_type')}: {detail.get('exc_value')}"
    return text
