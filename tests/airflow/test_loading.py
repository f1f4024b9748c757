"""What a DAG file loads: operators and Airflow, never Spark nor a library that reads state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import stateflow.airflow

HEAVY = ("pyspark", "py4j", "delta", "rocksdict", "pyarrow", "pandas", "numpy", "obstore", "stateflow.spark")
WORKING = (
    "stateflow.airflow.triggers",
    "stateflow.checkpoint",
    "stateflow.config.options",
    "stateflow.driver",
    "stateflow.format.records",
)
"""What a run's task needs once it works. Airflow parses every DAG file again and again, in a fresh process each time."""
DAGS = sorted((Path(__file__).resolve().parents[2] / "dags").glob("*.py"))

LOADED = """
import importlib.util, json, sys
heavy, names, files = json.loads(sys.argv[1])
sys.path[:0] = sorted({file.rpartition("/")[0] for file in files})
told = {}

def note(what):
    for module in heavy:
        if module in sys.modules and module not in told:
            told[module] = what

import airflow.sdk
note("airflow itself")
import stateflow.airflow
note("stateflow.airflow")
for name in names:
    getattr(stateflow.airflow, name)
    note(name)
for number, file in enumerate(files):
    spec = importlib.util.spec_from_file_location(f"parsed_{number}", file)
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    note(file)
print(json.dumps(told))
"""


def loaded(
    names: list[str], files: list[Path], folder: Path, heavy: tuple[str, ...] = HEAVY
) -> Mapping[str, str]:
    """Each heavy module that was imported, and what it was that first did."""
    request = json.dumps([heavy, names, list(map(str, files))])
    done = subprocess.run(
        [sys.executable, "-c", LOADED, request],
        env={**os.environ, "AIRFLOW_HOME": str(folder), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"},
        preexec_fn=lambda: os.nice(10),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    modules: Mapping[str, str] = json.loads(done.stdout.splitlines()[-1])
    return modules


def test_no_public_name_loads_spark_or_what_reads_state(tmp_path: Path) -> None:
    assert loaded(list(stateflow.airflow.__all__), [], tmp_path) == {}


def test_a_file_that_declares_runs_loads_nothing_that_carries_them_out(tmp_path: Path) -> None:
    names = ["StateflowRunOperator", "SparkSubmit", "checkpoint_asset"]
    dag = tmp_path / "ten.py"
    dag.write_text(
        "from airflow.sdk import DAG\n"
        "from stateflow.airflow import SparkSubmit, StateflowRunOperator, checkpoint_asset\n"
        "with DAG('ten', schedule=None):\n"
        "    for n in range(10):\n"
        "        StateflowRunOperator(task_id=f't{n}', pipeline='/p/a.py:a', launcher=SparkSubmit(), options={'a': 1},\n"
        "                             until='{{ data_interval_end }}', outlets=[checkpoint_asset('a')])\n"
    )
    assert loaded(names, [dag], tmp_path, (*HEAVY, *WORKING)) == {}


@pytest.mark.skipif(not DAGS, reason="no dags/ beside this checkout")
def test_no_dag_of_this_project_does(tmp_path: Path) -> None:
    assert loaded([], DAGS, tmp_path) == {}


def test_this_test_sees_what_is_loaded(tmp_path: Path) -> None:
    heavy = tmp_path / "heavy.py"
    heavy.write_text("import rocksdict\n")
    assert loaded([], [heavy], tmp_path) == {"rocksdict": str(heavy)}
