"""The operator that keeps a warm host on its worker. The host is a process that obeys as one does."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, TaskDeferred

from stateflow.airflow import StateflowHostOperator, StateflowHostTrigger, StateflowRunOperator, WarmHost
from stateflow.driver.supervisor import started
from stateflow.hosts import lease, starting
from stateflow.hosts.client import KEEPER
from stateflow.hosts.settings import HostSettings, KeeperProcess, folder_of, read_settings, write
from tests.airflow.runner import Supervisor, run_task, supervised
from tests.hosts.hosting import Host, alive, eventually
from tests.refusals.refusal import refused

OBEDIENT = 'trap "rm -f keeper.json; exit" USR1; echo ready; while :; do sleep 0.02; done'
"""As a host that drains, it leaves its settings and no keeper."""


class Hosts:
    """What stands in for Spark: how often a host was started, and with what."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []
        self.environ: Mapping[str, str] = {}

    def start(self, folder: Path, settings: HostSettings, environ: Mapping[str, str]) -> dict[str, Any]:
        starting.prepare(folder, settings)
        self.environ = environ
        process = subprocess.Popen(["sh", "-c", OBEDIENT], cwd=folder, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        self.processes.append(process)
        write(folder, KEEPER, KeeperProcess(process.pid, started(process.pid)))
        return {"places": settings.places, "master": settings.master or "local[*]"}


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    monkeypatch.setenv("STATEFLOW_CACHE_DIR", str(tmp_path / "cache"))
    made = Hosts()
    monkeypatch.setattr(starting, "start", made.start)
    yield made
    for each in made.processes:
        with suppress(ProcessLookupError):
            each.kill()
        each.wait()


def operator(**arguments: Any) -> StateflowHostOperator:
    return StateflowHostOperator(
        **{"task_id": "keep", "host": "team", "lease": "0.3 seconds", "deferrable": True, **arguments}
    )


def deferred(work: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as left:
        work()
    return left.value


def fired(trigger: StateflowHostTrigger, within: float) -> float:
    """Seconds until it fires."""

    async def first() -> None:
        async for event in trigger.run():
            assert event.payload == {}
            return

    began = time.monotonic()
    asyncio.run(asyncio.wait_for(first(), within))
    return time.monotonic() - began


def test_it_starts_the_host_and_leaves_the_wait_to_the_triggerer(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "of Airflow alone")
    left = deferred(
        lambda: operator(
            master="local[2]", memory="2g", conf={"spark.x": 1}, runs="3", lease="15 minutes"
        ).execute({})
    )
    settings = read_settings(folder_of("team"))
    assert settings == HostSettings(
        master="local[2]", conf={"spark.x": "1", "spark.driver.memory": "2g"}, places=3, lease=900.0
    )
    assert left.trigger.serialize() == (
        "stateflow.airflow.triggers.host.StateflowHostTrigger",
        {"host": "team", "interval": 300.0, "until": None, "deadline": None, "machine": socket.gethostname()},
    )
    assert left.method_name == "resume"
    assert "AIRFLOW__CORE__FERNET_KEY" not in hosts.environ


def test_a_host_that_runs_already_is_kept_and_one_with_other_settings_is_replaced(hosts: Hosts) -> None:
    deferred(lambda: operator().execute({}))
    deferred(lambda: operator().execute({}))
    assert len(hosts.processes) == 1
    deferred(lambda: operator(runs=8).execute({}))
    assert len(hosts.processes) == 2
    assert hosts.processes[0].wait(10) == 0, "it was drained"
    assert read_settings(folder_of("team")).places == 8


def test_a_host_that_drains_is_started_anew_when_it_has_ended(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    deferred(lambda: operator().execute({}))
    monkeypatch.setattr(starting, "drains", lambda folder: True)
    deferred(lambda: operator().execute({}))
    assert len(hosts.processes) == 2
    assert hosts.processes[0].wait(10) == 0


def test_a_host_that_somebody_else_keeps_is_left_alone(hosts: Hosts) -> None:
    hosts.start(folder_of("team"), HostSettings(), {})
    with pytest.raises(
        AirflowException, match="whoever has started it keeps it: stop it with `stateflow host"
    ):
        operator().execute({})
    assert alive(hosts.processes[0].pid)


def test_a_host_that_has_died_is_started_again_and_one_that_was_ended_is_not(hosts: Hosts) -> None:
    left = deferred(lambda: operator().execute({}))
    hosts.processes[0].kill()
    hosts.processes[0].wait()
    deferred(lambda: operator().resume({}, {}, **left.kwargs))
    assert len(hosts.processes) == 2
    starting.drain(folder_of("team"))
    hosts.processes[1].wait(10)
    assert operator().resume({}, {}, **left.kwargs) == {"host": "team", "ended": "stopped"}
    assert len(hosts.processes) == 2


@pytest.mark.parametrize("deferrable", [True, False])
def test_a_host_is_kept_for_its_time_and_then_drains(hosts: Hosts, deferrable: bool) -> None:
    task = operator(keep="0.5 seconds", deferrable=deferrable)
    if deferrable:
        left = deferred(lambda: task.execute({}))
        fired(left.trigger, 20)
        while True:
            try:
                ended = task.resume({}, {}, **left.kwargs)
                break
            except TaskDeferred as again:
                fired(again.trigger, 20)
    else:
        ended = task.execute({})
    assert ended == {"host": "team", "ended": "time"}
    assert hosts.processes[0].wait(10) == 0


def test_a_task_that_is_killed_drains_its_host_at_work_and_in_the_triggerer(hosts: Hosts) -> None:
    task = operator()
    left = deferred(lambda: task.execute({}))
    asyncio.run(left.trigger.on_kill())
    assert hosts.processes[0].wait(10) == 0
    deferred(lambda: task.execute({}))
    task._at_work = True
    with refused(AirflowException, "its host drains"):
        task.on_kill()
    assert hosts.processes[1].wait(10) == 0


@pytest.mark.parametrize(("state", "drained"), [("deferred", []), ("failed", ["team"])])
def test_a_triggerer_that_another_one_stands_in_for_leaves_the_host_alone(
    monkeypatch: pytest.MonkeyPatch, state: str, drained: list[str]
) -> None:
    told: list[str] = []
    monkeypatch.setattr(starting, "drain", lambda folder: told.append(folder.name))
    trigger: Any = StateflowHostTrigger(host="team", interval=0.1, until=None)
    trigger.task_instance = SimpleNamespace(dag_id="d", run_id="one", task_id="keep", map_index=-1)
    with supervised(Supervisor(states={"one": {"keep": state}})):
        asyncio.run(trigger.on_kill())
    assert told == drained


def test_execution_timeout_ends_the_wait_in_the_triggerer_and_drains_the_host(hosts: Hosts) -> None:
    began, limit = datetime.now(UTC), timedelta(seconds=3)
    task = operator(execution_timeout=limit, lease="1 minute")
    left = run_task(task, started_at=began)
    trigger = StateflowHostTrigger(**left.message.trigger_kwargs)

    async def first() -> Any:
        return (await anext(aiter(trigger.run()))).payload

    event = asyncio.run(asyncio.wait_for(first(), 60))
    assert datetime.now(UTC) - began >= limit
    told = run_task(task, resumed=("resume", event), kept={"since": began.timestamp()}, started_at=began)
    assert "execution_timeout=3 seconds" in str(told.error)
    assert hosts.processes[0].wait(10) == 0, "it was drained"


def test_a_triggerer_beside_the_host_renews_its_lease_until_the_host_ends(hosts: Hosts) -> None:
    folder = folder_of("team")
    hosts.start(folder, HostSettings(lease=0.3), {})
    os.utime(folder / lease.RENEWED, (0, 0))
    trigger = StateflowHostTrigger(host="team", interval=0.1, until=None)

    async def watched() -> None:
        firing = asyncio.ensure_future(anext(aiter(trigger.run())))
        while (folder / lease.RENEWED).stat().st_mtime == 0:
            await asyncio.sleep(0.02)
        assert not firing.done()
        hosts.processes[0].kill()
        hosts.processes[0].wait()
        await asyncio.wait_for(firing, 30)

    asyncio.run(asyncio.wait_for(watched(), 60))


def test_a_triggerer_leaves_a_host_of_that_name_on_its_own_machine_alone(hosts: Hosts) -> None:
    folder = folder_of("team")
    hosts.start(folder, HostSettings(lease=60), {})
    os.utime(folder / lease.RENEWED, (0, 0))
    trigger = StateflowHostTrigger(host="team", interval=0.1, until=None, machine="another")
    assert fired(trigger, 20) < 10
    assert (folder / lease.RENEWED).stat().st_mtime == 0
    asyncio.run(trigger.on_kill())
    assert not starting.drains(folder)


def test_a_triggerer_elsewhere_wakes_the_task_in_time_for_the_lease(hosts: Hosts) -> None:
    assert fired(StateflowHostTrigger(host="team", interval=0.3, until=None), 20) >= 0.3
    assert fired(StateflowHostTrigger(host="team", interval=600, until=time.time() + 0.2), 20) < 10


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"host": ""}, "names nothing"),
        ({"runs": 0}, "1 or more"),
        ({"lease": 0}, "lease"),
        ({"keep": "soon"}, "keep"),
        ({"conf": "spark.x=1"}, "mapping"),
    ],
)
def test_a_wrong_argument_is_refused_while_the_dag_is_parsed(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises((TypeError, ValueError), match=named):
        operator(**arguments)


def test_a_wrong_name_fails_the_task_in_one_sentence(hosts: Hosts) -> None:
    with refused(AirflowException, "cannot be the name of a host"):
        operator(host="Team A").execute({})


@pytest.mark.system
def test_runs_go_to_the_host_that_a_task_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    team = Host(tmp_path)
    monkeypatch.setenv("STATEFLOW_CACHE_DIR", str(team.cache))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')
    monkeypatch.setenv(
        "AIRFLOW_CONN_STATEFLOW_DEFAULT",
        f'{{"conn_type": "stateflow", "extra": {{"checkpoint_dir": "{tmp_path / "root"}"}}}}',
    )
    keep = operator(host="team", master="local[2]", lease=timedelta(minutes=15))
    left = deferred(lambda: keep.execute({}))
    try:
        project = team.project("kept")
        run = StateflowRunOperator(
            task_id="run",
            pipeline=f"{project}/pipeline.py:kept",
            parameters={"input": str(project / "in"), "output": str(project / "out")},
            launcher=WarmHost("team", only=True),
            retries=0,
        )
        told = run_task(run, run_id="kept")
        assert told.xcoms["return_value"]["rows"] == 20, told.error
        eventually(lambda: team.shown("team")["served"] == 1, "the host has carried it out")
    finally:
        asyncio.run(left.trigger.on_kill())
    eventually(lambda: starting.keeper_of(folder_of("team")) is None, "the host has drained")
    assert keep.resume({}, {}, **left.kwargs) == {"host": "team", "ended": "stopped"}
