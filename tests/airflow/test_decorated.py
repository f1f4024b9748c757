"""`@task.stateflow`: a pipeline in a DAG's file is a task, and the driver finds the pipeline in that file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task

from stateflow.airflow.operators import decorated
from stateflow.airflow.operators.decorated import DecoratedRunOperator, stateflow_task
from stateflow.airflow.operators.upgrades import pipeline_variable
from stateflow.errors import NotFoundError
from stateflow.pipelines import loading
from stateflow.pipelines.loading import load_pipeline
from tests.airflow.conftest import Connect
from tests.airflow.runner import run_task
from tests.airflow.test_run_operator import Method
from tests.refusals.refusal import refused

DAG_FILE = """
from airflow.sdk import DAG
from stateflow.airflow.operators.decorated import stateflow_task
import stateflow as sf


class Total(sf.KeyedProcess):
    value = sf.ValueState(float, default=0.0)

    def process(self, key, rows, ctx):
        yield {"account": key, "total": 0.0}


@stateflow_task(job="totals")
def accounts(flow, *, input: str, output: str, days: int = 7):
    rows = flow.source("input", sf.delta(input))
    rows.key_by("account").process("total", Total, output="account string, total double").append("totals", sf.delta(output))


with DAG("accounts", schedule=None) as dag:
    accounts(input="/data/in", output="/data/{{ run_id }}", days=3)
"""


def written(tmp_path: Path) -> Path:
    file = tmp_path / "accounts_dag.py"
    file.write_text(DAG_FILE)
    return file


def test_airflow_knows_the_decorator() -> None:
    assert task.stateflow is stateflow_task
    assert decorated.NAMED == loading.NAMED, "the one name that both sides go by"


def test_the_driver_finds_the_pipeline_in_the_dags_own_file(tmp_path: Path) -> None:
    file = written(tmp_path)
    loaded = load_pipeline(f"{file}:accounts", tmp_path)
    assert loaded.pipeline.name == "accounts"
    flow = loaded.pipeline.build({"input": "/in", "output": "/out", "days": "3"})
    assert [node.uid for node in flow.operators] == ["total"]
    assert load_pipeline(str(file), tmp_path).pipeline.name == "accounts", "it is the only one"
    with refused(NotFoundError, "it has: accounts"):
        load_pipeline(f"{file}:other", tmp_path)


def test_the_task_runs_that_file_with_the_calls_arguments(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path / "root")
    module = load_pipeline(str(written(tmp_path)), tmp_path).module
    operator: Any = module.dag.get_task("accounts")
    assert isinstance(operator, DecoratedRunOperator)
    operator.launcher = method = Method(tmp_path / "root")
    done = run_task(operator)
    assert done.error is None
    [spec] = method.specs
    assert spec.pipeline == f"{tmp_path / 'accounts_dag.py'}:accounts"
    assert (spec.job, spec.parameters["input"], spec.parameters["days"]) == ("totals", "/data/in", "3")


def test_a_function_that_an_upgrade_has_replaced_is_told_what_it_can_do(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(tmp_path / "root")
    variable = f"AIRFLOW_VAR_{pipeline_variable('stateflow_default', 'totals').upper()}"
    monkeypatch.setenv(variable, "/new.py:accounts")
    operator: Any = load_pipeline(str(written(tmp_path)), tmp_path).module.dag.get_task("accounts")
    operator.launcher = method = Method(tmp_path / "root")
    done = run_task(operator)
    assert (done.state, method.specs) == ("failed", [])
    assert "/new.py:accounts" in str(done.error)
    assert "so nothing was run: delete the Variable" in str(done.error)
    monkeypatch.delenv(variable)
    assert run_task(operator).error is None


def test_a_pipeline_beneath_another_decorator_is_taken_too(tmp_path: Path) -> None:
    file = written(tmp_path)
    file.write_text(file.read_text().replace("def accounts", "@sf.pipeline('ledger')\ndef accounts"))
    assert (
        load_pipeline(f"{file}:accounts", tmp_path)
        .pipeline.build({"input": "/in", "output": "/out"})
        .operators
    )


def test_what_no_driver_could_find_or_build_is_refused_while_the_dag_is_parsed() -> None:
    def inner(flow: Any) -> None: ...

    with pytest.raises(TypeError, match="'inner' is defined inside 'test_what_no_driver"):
        stateflow_task(inner)
    with pytest.raises(TypeError, match=r"takes no pipeline=: the function is the pipeline"):
        stateflow_task(outer, pipeline="x.py:y")
    with DAG("d", schedule=None), pytest.raises(TypeError, match="'count'"):
        stateflow_task(outer)(count=1)


def outer(flow: Any, *, input: str = "") -> None: ...


def test_two_calls_are_two_tasks_and_positional_arguments_have_names() -> None:
    with DAG("d", schedule=None) as dag:
        stateflow_task(job="one")(several)("in", output="out")
        stateflow_task(job="two")(several)("in", output="other", extra=1)
    assert set(dag.task_ids) == {"several", "several__1"}
    first: Any = dag.get_task("several")
    second: Any = dag.get_task("several__1")
    assert first.parameters == {"input": "in", "output": "out"}
    assert second.parameters == {"input": "in", "output": "other", "extra": 1}


def several(flow: Any, input: str, output: str, **more: Any) -> None: ...


@pytest.mark.slow
def test_a_decorated_function_that_is_parsed_loads_no_engine(tmp_path: Path) -> None:
    import subprocess

    code = (
        "import sys; from airflow.sdk import DAG; from stateflow.airflow.operators.decorated import stateflow_task\n"
        "def p(flow): ...\n"
        "with DAG('d', schedule=None): stateflow_task(p)()\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'pyarrow', 'pyspark', 'rocksdict', 'numpy'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
