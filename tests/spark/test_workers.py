"""What Python workers of this machine import, and from where."""

from __future__ import annotations

import json
import site
import subprocess
import sys
from pathlib import Path

import pytest

from stateflow.spark.session import workers
from stateflow.spark.task import daemon

HOME = str(Path(workers.__file__).resolve().parents[3])


def test_the_process_that_forks_workers_imports_the_engine_and_starts_no_thread() -> None:
    code = (
        "import sys, threading\n"
        "from stateflow.spark.task import daemon\n"
        "daemon.import_all()\n"
        "print(threading.active_count(), *(name in sys.modules for name in daemon.IMPORTED))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", *["True"] * len(daemon.IMPORTED)]


def test_a_module_that_is_missing_is_no_reason_not_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "IMPORTED", ("no_such_module_anywhere",))
    daemon.import_all()


@pytest.mark.parametrize("place", ["installed", "PYTHONPATH"])
def test_a_package_that_every_interpreter_finds_needs_no_search_path(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(site, "getsitepackages", lambda: [HOME] if place == "installed" else [])
    monkeypatch.setenv("PYTHONPATH", f"/other:{HOME}" if place == "PYTHONPATH" else "")
    assert workers.search_path({}) == {}


def test_a_package_that_only_this_process_finds_is_named_behind_the_users_folders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(site, "getsitepackages", list)
    conf = {workers.SEARCH_PATH: "/pipelines"}
    assert workers.search_path(conf) == {workers.SEARCH_PATH: f"/pipelines:{HOME}"}
    assert workers.search_path({}) == {workers.SEARCH_PATH: HOME}


def test_workers_import_from_the_working_folder_only_if_the_driver_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    elsewhere = [entry for entry in sys.path if entry and Path(entry) != tmp_path]
    monkeypatch.setattr(sys, "path", elsewhere)
    assert workers.safe_path({}) == {workers.SAFE_PATH: "1"}
    assert workers.safe_path({workers.SAFE_PATH: ""}) == {}
    (tmp_path.parent / f"{tmp_path.name}-link").symlink_to(tmp_path)
    for entry in ("", ".", str(tmp_path), f"{tmp_path}-link"):
        monkeypatch.setattr(sys, "path", [*elsewhere, entry])
        assert workers.safe_path({}) == {}, entry


STRANGE = (
    "open({marker!r}, 'a').write({name!r} + '\\n')\nraise ImportError({name!r} + ' of the working folder')\n"
)


@pytest.mark.system
def test_no_module_of_the_working_folder_runs_in_a_worker(tmp_path: Path) -> None:
    folder, marker = tmp_path / "strange", tmp_path / "ran"
    folder.mkdir()
    for name in ("pandas", "pyarrow", "rocksdict", "numpy", "cloudpickle"):
        (folder / f"{name}.py").write_text(STRANGE.format(marker=str(marker), name=name))
    # As the script starts it: its own folder, not the working folder, is on the search path.
    command = [
        sys.executable,
        "-P",
        "-m",
        "stateflow",
        "doctor",
        "--spark",
        "--master",
        "local[2]",
        "-o",
        "json",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert not marker.exists(), marker.read_text()
    checks = {each["check"]: each["verdict"] for each in json.loads(done.stdout)["checks"]}
    executors = {name: verdict for name, verdict in checks.items() if name.startswith("executor on")}
    assert executors
    assert set(executors.values()) == {"ok"}
