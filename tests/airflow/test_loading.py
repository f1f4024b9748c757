"""What a DAG file loads: operators and Airflow, never Spark nor a library that reads state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

NAMES = ("StateflowRunOperator", "SparkSubmit", "checkpoint_asset")
TEN = """
from airflow.sdk import DAG
from stateflow.airflow import SparkSubmit, StateflowRunOperator, checkpoint_asset
with DAG("ten", schedule=None):
    for n in range(10):
        StateflowRunOperator(task_id=f"t{n}", pipeline="/p/a.py:a", launcher=SparkSubmit(), options={"a": 1},
                             until="{{ data_interval_end }}", outlets=[checkpoint_asset("a")])
"""
LOADED = """
import importlib.util, json, sys
heavy, steps = json.loads(sys.argv[1])
told = {}

def note(what):
    for module in heavy:
        if module in sys.modules and module not in told:
            told[module] = what

import airflow.sdk
note("airflow itself")
import stateflow.airflow
note("stateflow.airflow")
for number, step in enumerate(steps):
    if not step.endswith(".py"):
        getattr(stateflow.airflow, step)
    else:
        sys.path.insert(0, step.rpartition("/")[0])
        spec = importlib.util.spec_from_file_location(f"parsed_{number}", step)
        sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    note(step)
print(json.dumps(told))
"""


@dataclass(frozen=True)
class Loaded:
    """Each module that was imported, and what it was that first did."""

    ten: Path
    heavy: Path
    modules: Mapping[str, str]

    def by(self, *steps: str, those: Sequence[str] = HEAVY) -> dict[str, str]:
        return {module: step for module, step in self.modules.items() if step in steps and module in those}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """One process does it all, what may load the least first: to import Airflow is what takes the time."""
    folder = tmp_path_factory.mktemp("loading")
    ten, heavy = folder / "ten.py", folder / "heavy.py"
    ten.write_text(TEN)
    heavy.write_text("import rocksdict\n")
    steps = [*NAMES, str(ten), *stateflow.airflow.__all__, *map(str, DAGS), str(heavy)]
    done = subprocess.run(
        [sys.executable, "-c", LOADED, json.dumps([(*HEAVY, *WORKING), steps])],
        env={**os.environ, "AIRFLOW_HOME": str(folder), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"},
        preexec_fn=lambda: os.nice(10),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Loaded(ten, heavy, json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
def test_a_file_that_declares_runs_loads_nothing_that_carries_them_out(loaded: Loaded) -> None:
    steps = ("airflow itself", "stateflow.airflow", *NAMES, str(loaded.ten))
    assert loaded.by(*steps, those=(*HEAVY, *WORKING)) == {}


def test_no_public_name_loads_spark_or_what_reads_state(loaded: Loaded) -> None:
    assert loaded.by(*stateflow.airflow.__all__) == {}


@pytest.mark.skipif(not DAGS, reason="no dags/ beside this checkout")
def test_no_dag_of_this_project_does(loaded: Loaded) -> None:
    assert loaded.by(*map(str, DAGS)) == {}


def test_these_tests_see_what_is_loaded(loaded: Loaded) -> None:
    assert loaded.by(str(loaded.heavy)) == {"rocksdict": str(loaded.heavy)}
