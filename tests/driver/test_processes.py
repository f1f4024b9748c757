"""Drivers with a supervisor, with real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stateflow.driver import supervisor
from stateflow.driver.processes import LOG_DAYS, MOST_OUTPUT, STARTING, DriverFolder, DriverProcess
from stateflow.errors import UsageError
from tests.refusals.refusal import refused


@pytest.fixture
def drivers(tmp_path: Path) -> DriverFolder:
    return DriverFolder("orders", "dag/run", "task", folder=tmp_path / "cache")


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def until(happened: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end, "did not happen within 30 s"
        time.sleep(0.02)


def pid_of(driver: DriverProcess, who: str) -> int:
    until((driver.folder / who).exists)
    return int(json.loads((driver.folder / who).read_text())["pid"])


def test_output_exit_code_and_environment(drivers: DriverFolder, tmp_path: Path) -> None:
    script = "import os, sys; print('hello', os.environ['WHO'], os.getcwd()); sys.exit(4)"
    driver = drivers.start(python(script), {"WHO": "hush"}, tmp_path)
    until(lambda: driver.look().exit_code is not None)
    assert driver.look().exit_code == 4
    assert driver.output() == [f"hello hush {tmp_path}"]
    assert driver.output() == []
    assert "hush" not in (driver.folder / "command.json").read_text().split(script)[-1]


def test_how_a_driver_ended_is_known_also_where_its_starter_ignores_the_end_of_its_children(
    drivers: DriverFolder, tmp_path: Path
) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        driver = drivers.start(python("import sys; sys.exit(4)"), {}, tmp_path)
    finally:
        signal.signal(signal.SIGCHLD, before)
    until(lambda: not driver.look().running)
    assert driver.look().exit_code == 4


def test_a_driver_gets_the_variables_that_it_is_given_and_no_others(
    drivers: DriverFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_TASK", "1")
    driver = drivers.start(python("import os; print('OF_THE_TASK' in os.environ)"), {"WHO": "me"}, tmp_path)
    until(lambda: driver.look().exit_code is not None)
    assert driver.output() == ["False"]


def test_a_driver_outlives_whoever_started_it_and_is_found_again(
    drivers: DriverFolder, tmp_path: Path
) -> None:
    starter = (
        "from pathlib import Path; from stateflow.driver.processes import DriverFolder; import sys, time\n"
        f"DriverFolder('orders', 'dag/run', 'task', folder=Path({str(tmp_path / 'cache')!r}))"
        f".start([sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(60)'], {{}}, Path({str(tmp_path)!r}))\n"
        "print('started', flush=True); time.sleep(60)"
    )
    task = subprocess.Popen(python(starter), stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert task.stdout is not None
    assert task.stdout.readline() == "started\n"
    os.killpg(task.pid, signal.SIGKILL)
    task.wait()
    found = drivers.newest()
    assert found is not None
    assert found.look().running
    until(found.output)
    found.stop(0)
    until(lambda: not found.look().running)
    assert found.look().exit_code == -signal.SIGKILL


def test_nothing_of_a_driver_is_left_running_when_it_has_ended(drivers: DriverFolder, tmp_path: Path) -> None:
    script = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid)"
    driver = drivers.start(python(script), {}, tmp_path)
    until(lambda: driver.look().exit_code is not None)
    child = int(driver.output()[0])
    until(lambda: supervisor.started(child) == "")


def test_grace_is_given_before_a_driver_is_killed(drivers: DriverFolder, tmp_path: Path) -> None:
    driver = drivers.start(python("import time; time.sleep(0.4)"), {}, tmp_path)
    driver.stop(grace=60)
    until(lambda: not driver.look().running)
    assert driver.look().exit_code == 0


def test_signals_of_a_terminal_or_a_scheduler_do_not_end_the_supervisor(
    drivers: DriverFolder, tmp_path: Path
) -> None:
    driver = drivers.start(python("import time; time.sleep(1); print('through')"), {}, tmp_path)
    process = pid_of(driver, supervisor.ITSELF)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(process, number)
    until(lambda: not driver.look().running)
    assert driver.look().exit_code == 0
    assert driver.last_words() == ["through"]


def test_a_driver_whose_supervisor_was_killed_is_still_seen(drivers: DriverFolder, tmp_path: Path) -> None:
    driver = drivers.start(python("import time; time.sleep(60)"), {}, tmp_path)
    own = pid_of(driver, "driver")
    process = pid_of(driver, supervisor.ITSELF)
    os.kill(process, signal.SIGKILL)
    try:
        until(lambda: supervisor.started(process) == "")
        assert driver.look().running
    finally:
        with suppress(ProcessLookupError):
            os.kill(own, signal.SIGKILL)
    until(lambda: not driver.look().running)
    assert driver.look().exit_code is None


def test_a_process_that_was_given_the_number_of_a_dead_one_is_not_taken_for_it(
    drivers: DriverFolder, tmp_path: Path
) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    supervisor.write(folder / supervisor.ITSELF, {"pid": os.getpid(), "started": "1"})
    assert not DriverProcess(folder).look().running
    supervisor.write(
        folder / supervisor.ITSELF, {"pid": os.getpid(), "started": supervisor.started(os.getpid())}
    )
    assert DriverProcess(folder).look().running


def test_a_driver_of_an_earlier_version_of_the_package_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    supervisor.write(folder / "warden", {"pid": os.getpid(), "started": supervisor.started(os.getpid())})
    assert DriverProcess(folder).look().running


def test_a_command_that_does_not_exist_says_so(drivers: DriverFolder, tmp_path: Path) -> None:
    driver = drivers.start(["/nowhere/spark-submit"], {}, tmp_path)
    until(lambda: not driver.look().running)
    assert driver.look().exit_code == 127
    assert "/nowhere/spark-submit cannot be started" in driver.last_words()[0]


def test_each_start_has_a_folder_of_its_own_and_only_its_owner_reads_it(
    drivers: DriverFolder, tmp_path: Path
) -> None:
    first = drivers.start(python("pass"), {}, tmp_path)
    second = drivers.start(python("pass"), {}, tmp_path)
    assert first.folder != second.folder
    found = drivers.newest()
    assert found is not None
    assert found.folder == second.folder
    assert second.folder.stat().st_mode & 0o077 == 0
    until(lambda: first.look().exit_code is not None and second.look().exit_code is not None)


def test_the_driver_that_was_started_last_is_the_newest_also_when_the_clock_went_back(
    drivers: DriverFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    for hours in (0, -1, -1, -2):
        monkeypatch.setattr(time, "time_ns", lambda hours=hours: now + hours * 3_600_000_000_000)
        driver = drivers.start(python("pass"), {}, tmp_path)
        ended = driver.folder / "exit"
        found = drivers.newest()
        assert found is not None
        assert found.folder == driver.folder
        until(ended.exists)


def test_every_folder_above_a_driver_s_is_its_owner_s_alone_whatever_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        home = tmp_path / "home" / ".cache" / "stateflow" / "drivers"
        driver = DriverFolder("orders", "run", "task", folder=home).start(python("pass"), {}, tmp_path)
    finally:
        os.umask(before)
    until(lambda: driver.look().exit_code is not None)
    made = [
        folder
        for folder in (driver.folder, *driver.folder.parents)
        if folder.is_relative_to(tmp_path / "home")
    ]
    assert len(made) == 7
    assert {folder.stat().st_mode & 0o077 for folder in made} == {0}


def test_logs_of_drivers_that_ended_long_ago_go(drivers: DriverFolder, tmp_path: Path) -> None:
    old = drivers.start(python("pass"), {}, tmp_path)
    until(lambda: old.look().exit_code is not None)
    supervisor.write(old.folder / "exit", {"code": 0, "at": time.time() - (LOG_DAYS + 1) * 86_400})
    new = drivers.start(python("pass"), {}, tmp_path)
    assert not old.folder.exists()
    until(lambda: new.look().exit_code is not None)


def test_nothing_stays_of_dag_runs_whose_drivers_ended_long_ago(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    of = {run: DriverFolder("orders", run, "task", folder=cache) for run in ("swept", "kept", "cut off")}
    drivers = {run: folder.start(python("pass"), {}, tmp_path) for run, folder in of.items()}
    for run, driver in drivers.items():
        until((driver.folder / "exit").exists)
        days = LOG_DAYS + (1 if run == "swept" else -1)
        supervisor.write(driver.folder / "exit", {"code": 0, "at": time.time() - days * 86_400})
    shutil.rmtree(drivers["cut off"].folder)
    long_ago = time.time() - (LOG_DAYS + 1) * 86_400
    before, now = (drivers["cut off"].folder.with_name(f"{number:020d}") for number in (1, 2))
    for begun in (before, now):  # whose start was killed before it had written what to do
        begun.mkdir()
    os.utime(before, (long_ago, long_ago))
    (cache / "orders" / "left").mkdir()
    new = DriverFolder("orders", "new", "task", folder=cache).start(python("pass"), {}, tmp_path)
    stays = {now.parent, drivers["kept"].folder.parent, new.folder.parent}
    assert set((cache / "orders").iterdir()) == stays
    assert list(now.parent.iterdir()) == [now]
    until(lambda: new.look().exit_code is not None)


def test_a_driver_starts_although_another_start_removes_its_empty_folder(
    drivers: DriverFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = Path.mkdir

    def swept(folder: Path, **given: Any) -> None:
        if folder.name.isdigit():
            monkeypatch.setattr(Path, "mkdir", mkdir)
            folder.parent.rmdir()
        mkdir(folder, **given)

    monkeypatch.setattr(Path, "mkdir", swept)
    driver = drivers.start(python("pass"), {}, tmp_path)
    assert Path.mkdir is mkdir
    until(lambda: driver.look().exit_code is not None)


def test_a_driver_starts_while_another_start_sweeps_the_same_folders(
    drivers: DriverFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = drivers.start(python("pass"), {}, tmp_path)
    until(lambda: old.look().exit_code is not None)
    read = supervisor.read

    def swept(path: Path) -> dict[str, Any] | None:
        shutil.rmtree(old.folder, ignore_errors=True)
        return read(path)

    with monkeypatch.context() as other:
        other.setattr(supervisor, "read", swept)
        new = drivers.start(python("pass"), {}, tmp_path)
    until(lambda: new.look().exit_code is not None)


def test_two_who_stop_a_driver_at_once_are_both_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, rename = DriverProcess(tmp_path), Path.rename

    def behind_another(part: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        driver.stop(2.0)
        return rename(part, target)

    monkeypatch.setattr(Path, "rename", behind_another)
    driver.stop(1.0)
    assert [each.name for each in tmp_path.iterdir()] == ["stop"]
    assert supervisor.read(tmp_path / "stop") == {"grace": 1.0}


@pytest.mark.parametrize("job", ["../../home", "/etc", "..", ""])
def test_a_job_s_name_leads_to_no_other_folder(job: str, tmp_path: Path) -> None:
    with refused(UsageError, "job name", "is not usable"):
        DriverFolder(job, "dag/run", "task", folder=tmp_path / "cache")


def test_two_tasks_do_not_see_each_others_drivers(drivers: DriverFolder, tmp_path: Path) -> None:
    driver = drivers.start(python("pass"), {}, tmp_path)
    cache = tmp_path / "cache"
    assert DriverFolder("orders", "dag/run", "other", folder=cache).newest() is None
    assert DriverFolder("orders", "dag/other", "task", folder=cache).newest() is None
    assert DriverFolder("orders", "dag/run", "task", "s3://another/airflow", folder=cache).newest() is None
    until(lambda: driver.look().exit_code is not None)


def test_a_driver_whose_supervisor_was_killed_can_still_be_ended(
    drivers: DriverFolder, tmp_path: Path
) -> None:
    driver = drivers.start(python("import time; time.sleep(600)"), {}, tmp_path)
    until(lambda: (driver.folder / "driver").exists())
    os.kill(pid_of(driver, supervisor.ITSELF), signal.SIGKILL)
    until(lambda: supervisor.started(pid_of(driver, supervisor.ITSELF)) == "")
    assert driver.look().running
    driver.stop(0)
    until(lambda: not driver.look().running)


def test_a_driver_remembers_the_epochs_before_it(drivers: DriverFolder, tmp_path: Path) -> None:
    assert drivers.start(python(""), {}, tmp_path, above=7).above == 7
    found = drivers.newest()
    assert found is not None
    assert found.above == 7


@pytest.mark.parametrize("killed", [True, False])
def test_temporary_files_go_with_the_driver_however_it_ends(
    drivers: DriverFolder, tmp_path: Path, *, killed: bool
) -> None:
    code = "import os, pathlib, time; pathlib.Path(os.environ['ROOM'], 'spilled').touch(); print('there', flush=True)"
    code += "; time.sleep(600)" if killed else ""
    driver = drivers.start(python(code), {}, tmp_path, temporary="ROOM")
    until(lambda: driver.last_words() == ["there"])
    if killed:
        assert (driver.folder / "temporary" / "spilled").exists()
        driver.stop(0)
    until(lambda: driver.look().exit_code is not None)
    assert not (driver.folder / "temporary").exists()
    assert (driver.folder / "output.log").exists()


def test_what_a_driver_left_whose_host_was_switched_off_goes_with_the_next_start(
    drivers: DriverFolder, tmp_path: Path
) -> None:
    old = drivers.start(python("import time; time.sleep(600)"), {}, tmp_path, temporary="ROOM")
    until(lambda: (old.folder / "driver").exists())
    for who in (supervisor.ITSELF, "driver"):
        os.kill(pid_of(old, who), signal.SIGKILL)
    until(lambda: not old.look().running)
    assert (old.folder / "temporary").exists()
    fresh = old.folder.with_name("fresh")
    shutil.copytree(old.folder, fresh)  # of which nobody can know yet
    os.utime(fresh / "command.json")
    long_ago = time.time() - STARTING - 1
    elsewhere = old.folder.with_name("elsewhere")  # in a container that shares the folder, and may live
    shutil.copytree(old.folder, elsewhere)
    command = supervisor.read(elsewhere / "command.json")
    assert command is not None
    supervisor.write(elsewhere / "command.json", {**command, "host": "another"})
    os.utime(elsewhere / "command.json", (long_ago, long_ago))
    os.utime(old.folder / "command.json", (long_ago, long_ago))
    new = drivers.start(python("pass"), {}, tmp_path)
    assert not (old.folder / "temporary").exists()
    assert old.last_words() == []
    assert old.folder.exists()
    assert (fresh / "temporary").exists()
    assert (elsewhere / "temporary").exists()
    until(lambda: new.look().exit_code is not None)


def of_another_container(drivers: DriverFolder, tmp_path: Path) -> DriverProcess:
    """A driver of whose processes nothing is seen, with a folder that nobody has written to for longer than a log stays."""
    driver = drivers.start(python("pass"), {}, tmp_path)
    until((driver.folder / "exit").exists)
    command = supervisor.read(driver.folder / "command.json")
    assert command is not None
    supervisor.write(driver.folder / "command.json", {**command, "host": "another"})
    (driver.folder / "exit").unlink()
    (driver.folder / "temporary").mkdir()
    long_ago = time.time() - (LOG_DAYS + 1) * 86_400
    for each in (*driver.folder.iterdir(), driver.folder):
        os.utime(each, (long_ago, long_ago))
    return driver


@pytest.mark.parametrize(
    "place", [{"host": "another"}, {"pid_scope": "of a container with this host's name"}]
)
def test_a_driver_in_a_container_that_shares_the_folder_is_followed_by_its_heartbeat_until_it_ends(
    drivers: DriverFolder, tmp_path: Path, place: dict[str, str]
) -> None:
    driver = drivers.start(python("pass"), {}, tmp_path)
    until((driver.folder / "exit").exists)
    (driver.folder / "exit").unlink()
    command = supervisor.read(driver.folder / "command.json")
    assert command is not None
    assert drivers.newest() is not None
    supervisor.write(driver.folder / "command.json", {**command, **place})
    assert drivers.newest() is None
    supervisor.write(driver.folder / "exit", {"code": 3, "at": time.time()})
    found = drivers.newest()
    assert found is not None
    assert found.look().exit_code == 3


def test_a_driver_whose_folder_does_not_say_where_it_runs_is_looked_for_here(
    drivers: DriverFolder, tmp_path: Path
) -> None:
    driver = drivers.start(python("import time; time.sleep(60)"), {}, tmp_path)
    supervisor.write(driver.folder / "command.json", {"argv": [], "cwd": "/"})
    found = drivers.newest()
    assert found is not None
    assert found.look().running
    found.stop(0)
    until((driver.folder / "exit").exists)


@pytest.mark.parametrize("sign", ["output.log", supervisor.ITSELF, "temporary", ""])
def test_the_folder_of_a_driver_elsewhere_stays_for_as_long_as_it_gives_a_sign_of_life(
    drivers: DriverFolder, tmp_path: Path, sign: str
) -> None:
    driver = of_another_container(drivers, tmp_path)
    if sign:
        os.utime(driver.folder / sign)
    new = drivers.start(python("pass"), {}, tmp_path)
    assert driver.folder.exists() == bool(sign)
    until(lambda: new.look().exit_code is not None)


def test_the_supervisor_of_a_silent_driver_gives_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "SIGN", 0.0)
    touched = []
    monkeypatch.setattr(os, "utime", touched.append)
    supervisor.write(tmp_path / "command.json", {"argv": python("import time; time.sleep(0.5)"), "cwd": "/"})
    supervisor.supervise(tmp_path)
    assert tmp_path / supervisor.ITSELF in touched


def test_a_look_at_a_long_log_takes_its_end_alone(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_text("".join(f"checkpoint {number}\n" for number in range(500_000)))
    driver = DriverProcess(tmp_path)
    tracemalloc.start()
    try:
        assert driver.last_words(2) == ["checkpoint 499998", "checkpoint 499999"]
        assert tracemalloc.get_traced_memory()[1] < MOST_OUTPUT
    finally:
        tracemalloc.stop()
    taken = driver.output()
    assert sum(map(len, taken)) <= MOST_OUTPUT
    assert str(log) in taken[0]
    assert taken[1:] == [f"checkpoint {number}" for number in range(500_001 - len(taken), 500_000)]
    assert driver.output() == []
    with log.open("a") as more:
        more.write("the last one\nunfinished")
    assert driver.output() == ["the last one"]


@pytest.mark.parametrize("full", [False, True])
def test_who_reads_a_log_goes_on_when_it_has_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, full: bool
) -> None:
    def no_room(*paths: Path) -> None:
        raise OSError("the disk is full")

    log, driver = tmp_path / "output.log", DriverProcess(tmp_path)
    monkeypatch.setattr(supervisor, "LOG_BYTES", 20)
    if full:
        monkeypatch.setattr(shutil, "copyfile", no_room)
    with log.open("ab", buffering=0) as writer:
        writer.write(b"checkpoint 1\n")
        supervisor.bound(log)
        assert driver.output() == ["checkpoint 1"]
        writer.write(b"checkpoint 2\n")
        supervisor.bound(log)
        writer.write(b"chk 3\n")
    assert log.read_text() == "chk 3\n"
    kept = [] if full else ["checkpoint 2"]
    assert driver.output() == [*kept, "chk 3"]
    assert driver.last_words(2) == [*kept, "chk 3"]
    assert driver.output() == []


def test_a_supervisor_keeps_the_log_of_its_driver_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LOG_BYTES", 1000)
    script = "import os, time; print('x' * 1000, flush=True); end = time.monotonic() + 30\n"
    script += "while os.fstat(1).st_size and time.monotonic() < end: time.sleep(0.02)\nprint('through')"
    supervisor.write(tmp_path / "command.json", {"argv": python(script), "cwd": "/"})
    supervisor.supervise(tmp_path)
    assert (tmp_path / "output.log").read_text() == "through\n"
    assert DriverProcess(tmp_path).last_words() == ["x" * 1000, "through"]
