"""Airflow parses DAG files all day: a file that names operators loads what declares them, and nothing that works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.airflow_parsing import TEN

CODE = """
import json, sys
import airflow.dag_processing.processor, airflow.sdk
import airflow.providers.apache.spark.operators.spark_submit
_ = airflow.sdk.DAG, airflow.sdk.BaseOperator, airflow.sdk.BaseSensorOperator
before = set(sys.modules)
import runpy
operators = runpy.run_path(sys.argv[1])["dag"].task_dict
print(json.dumps([len(operators), sorted(set(sys.modules) - before)]))
"""
WORK = (
    "asgiref",
    "stateflow.checkpoint.log",
    "stateflow.config",
    "stateflow.driver",
    "stateflow.format",
    "stateflow.jobs",
    "stateflow.liveness",
    "stateflow.storage",
    "stateflow.airflow.triggers",
)


@pytest.mark.slow
def test_ten_operators_load_no_log_no_trigger_and_nothing_that_reads_a_store(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", CODE, str(TEN)],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path)}, capture_output=True, text=True, check=True, timeout=280,
    )  # fmt: skip
    count, loaded = json.loads(told.stdout.splitlines()[-1])
    assert count == 10
    assert [name for name in loaded if name.startswith(WORK)] == []
    assert "stateflow.airflow.operators.run" in loaded
