"""What all operators share: arguments that are checked, names that are there, failures that are told, an import that is light."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

import stateflow.airflow
from stateflow import errors
from stateflow.airflow import (
    StaleJobs,
    StateflowCleanupOperator,
    StateflowOperator,
    StateflowRescaleOperator,
    StateflowRestoreOperator,
    StateflowRunOperator,
    StateflowSavepointOperator,
    StateflowStopOperator,
    StateflowVerifyOperator,
    checkpoint_asset,
)
from stateflow.airflow.connections.failures import may_pass, spoken
from stateflow.airflow.provider_info import get_provider_info
from tests.airflow.conftest import Connect
from tests.airflow.tasks import Try, context_of, ran, task
from tests.jobs.made import made_job
from tests.refusals.refusal import refused

FROZEN = """
CheckpointFreshnessSensor CheckpointFreshnessTrigger CheckpointLink InProcess Kubernetes NewRowsTrigger SparkSubmit StaleJobs
StateflowCleanupOperator
StateflowHook StateflowHostOperator StateflowHostTrigger StateflowIdleTrigger StateflowOperator StateflowReplayOperator StateflowRescaleOperator
StateflowRestoreOperator StateflowRunOperator StateflowRunTrigger StateflowSavepointOperator
StateflowStopOperator StateflowVerifyOperator WarmHost WatermarkSensor WatermarkTrigger checkpoint_asset
"""
OPERATORS: dict[type[StateflowOperator], dict[str, Any]] = {
    StateflowSavepointOperator: {"job": "orders"},
    StateflowCleanupOperator: {},
    StateflowRestoreOperator: {"job": "orders", "pipeline": "orders.py:orders"},
    StateflowRescaleOperator: {"job": "orders", "parallelism": 2},
    StateflowStopOperator: {"job": "orders"},
    StateflowVerifyOperator: {"job": "orders"},
}
every = pytest.mark.parametrize("kind", OPERATORS, ids=lambda kind: kind.__name__)


def test_the_public_names_are_these_and_each_is_there() -> None:
    assert sorted(FROZEN.split()) == stateflow.airflow.__all__
    assert all(getattr(stateflow.airflow, name) for name in stateflow.airflow.__all__)
    assert dir(stateflow.airflow) == stateflow.airflow.__all__
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        _ = stateflow.airflow.Nonsense


@pytest.mark.slow
def test_parsing_a_dag_loads_neither_spark_nor_what_reads_state() -> None:
    names = ", ".join(stateflow.airflow.__all__)
    arguments = ", ".join(
        f"stateflow.airflow.{kind.__name__}(task_id='it', **{values!r})" for kind, values in OPERATORS.items()
    )
    code = f"""if True:
        import json, sys
        import airflow.sdk, airflow.providers.apache.spark.operators.spark_submit
        before = set(sys.modules)
        import stateflow.airflow
        assert not [name for name in sys.modules if name.startswith("stateflow.airflow.") and name not in before]
        from stateflow.airflow import {names}
        {arguments}
        heavy = ("pyspark", "py4j", "delta", "rocksdict", "pyarrow", "pandas", "obstore", "typer", "rich")
        print(json.dumps(sorted(set(heavy) & {{name.partition(".")[0] for name in sys.modules if name not in before}})))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


@every
def test_every_argument_is_templated_and_read(kind: type[StateflowOperator]) -> None:
    operator = task(kind, **OPERATORS[kind])
    assert set(operator.template_fields) <= set(operator.arguments)
    assert set(operator.arguments) == set(operator.template_fields)
    assert all(hasattr(operator, name) for name in operator.template_fields)


@every
def test_templates_pass_and_nonsense_does_not(kind: type[StateflowOperator]) -> None:
    readers = kind.arguments
    late = dict.fromkeys(readers, "{{ params.it }}")
    assert getattr(task(kind, **late), next(iter(readers))) == "{{ params.it }}"
    for name in readers:
        with pytest.raises((TypeError, ValueError), match=rf"task 'it': {name}=\[\] ") as failure:
            task(kind, **{**OPERATORS[kind], name: []})
        assert "\n" not in str(failure.value)


@every
def test_a_result_of_another_task_is_an_argument(kind: type[StateflowOperator]) -> None:
    with DAG("upkeep", schedule=None):
        first = StateflowSavepointOperator(task_id="first", job="orders")
        kind(**{"task_id": "second", **OPERATORS[kind], "job": first.output["job"]})
    assert first.downstream_task_ids == {"second"}


@every
def test_an_operator_survives_the_way_through_airflows_database(kind: type[StateflowOperator]) -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    with DAG("upkeep", schedule=None) as dag:
        kind(task_id="it", **OPERATORS[kind])
    back = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag)))).get_task("it")
    assert {link.name for link in back.operator_extra_links} == {"Checkpoints"}
    assert tuple(back.template_fields) == tuple(kind.template_fields)


def test_a_long_argument_makes_no_long_sentence() -> None:
    with pytest.raises(TypeError, match=r"parameters='x{79}\.\.\. has to be a mapping") as failure:
        task(StateflowRestoreOperator, pipeline="orders.py:orders", parameters="x" * 5000)
    assert len(str(failure.value)) < 200


def test_an_argument_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="nonsense"):
        task(StateflowStopOperator, nonsense=1)


def test_a_try_is_named_by_its_dag_run_and_task() -> None:
    operator = task(StateflowVerifyOperator, note="why")
    first, mapped = (operator.acts_as(context_of(Try("it", map_index=index))) for index in (-1, 3))
    assert (first.dag_run, first.task, first.user, first.note) == ("upkeep/manual__1", "it", "ann", "why")
    assert (mapped.task, mapped.run == first.run) == ("it[3]", False)
    scheduled = operator.acts_as(context_of(Try("it"), user=None))
    assert scheduled.user  # whom the process belongs to


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (errors.StateflowError, True),
        (errors.UsageError, False),
        (errors.NotFoundError, False),
        (errors.IncompatibleError, False),
        (errors.FencedError, False),
        (errors.CorruptError, False),
        (errors.DisagreementError, False),
        (errors.BusyError, True),
        (errors.UnavailableError, True),
        (errors.StateTypeError, False),
    ],
)
def test_only_what_may_pass_is_tried_again(error: type[errors.StateflowError], again: bool) -> None:
    with pytest.raises(AirflowException, match=r"^the sentence$") as failure, spoken():
        raise error("the sentence")
    assert isinstance(failure.value, AirflowFailException) is not again
    assert failure.value.__cause__ is None
    assert failure.value.__suppress_context__
    assert may_pass(error.exit_code) is again


def test_a_process_that_was_ended_is_tried_again() -> None:
    assert may_pass(-9)
    assert may_pass(137)


def test_what_spark_says_is_told_in_its_first_words() -> None:
    from py4j.protocol import Py4JNetworkError

    with refused(AirflowException, "Answer from Java side is empty") as failure, spoken():
        raise Py4JNetworkError("Answer from Java side is empty")
    assert not isinstance(failure.value, AirflowFailException)


def test_a_bug_keeps_its_trace() -> None:
    with pytest.raises(ZeroDivisionError), spoken():
        _ = 1 / 0


def test_airflow_takes_what_the_package_says_of_itself() -> None:
    import jsonschema
    from airflow.providers_manager import _create_provider_info_schema_validator

    info = get_provider_info()
    _create_provider_info_schema_validator().validate(info)
    assert jsonschema  # what the validator is made of
    [connection] = info["connection-types"]
    hook: Any = stateflow.airflow.StateflowHook
    assert connection["hook-class-name"] == f"{hook.__module__}.{hook.__name__}"
    assert connection["connection-type"] == hook.conn_type
    base = stateflow.airflow.StateflowOperator
    for kinds, suffix in (("operators", "Operator"), ("sensors", "Sensor"), ("triggers", "Trigger")):
        classes = [
            getattr(stateflow.airflow, name) for name in stateflow.airflow.__all__ if name.endswith(suffix)
        ]
        assert {each.__module__ for each in classes if each is not base} == set(
            info[kinds][0]["python-modules"]
        )
    assert {stateflow.airflow.StateflowHostOperator.__module__, StateflowRunOperator.__module__} <= set(
        info["operators"][0]["python-modules"]
    )
    assert info["notifications"] == [f"{StaleJobs.__module__}.{StaleJobs.__name__}"]
    assert info["asset-uris"][0]["schemes"] == [checkpoint_asset("orders").uri.partition(":")[0]]
    links = {type(link) for kind in (*OPERATORS, StateflowRunOperator) for link in kind.operator_extra_links}
    assert set(info["extra-links"]) == {f"{link.__module__}.{link.__name__}" for link in links}


def test_airflow_lists_the_settings_that_the_pages_read() -> None:
    from stateflow_ui import settings
    from stateflow_ui.stale_after import StaleAfter

    options = get_provider_info()["config"][settings.SECTION]["options"]
    assert {name: options[f"{name}_dag"]["default"] for name in settings.ACTIONS} == settings.ACTIONS
    assert set(options) == {
        "conn_ids",
        "stale_after",
        "visible_to",
        "spark_page",
        "driver_log",
        *(f"{name}_dag" for name in settings.ACTIONS),
    }
    assert StaleAfter(options["stale_after"]["default"]).of("orders") == StaleAfter("").of("orders")


def test_airflow_finds_the_package() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "provider" / "pyproject.toml").read_text())[
        "project"
    ]
    entry = project["entry-points"]["apache_airflow_provider"]["provider_info"]
    module, _, function = entry.partition(":")
    assert (module, function) == (get_provider_info.__module__, get_provider_info.__name__)
    assert {"apache-airflow", "apache-airflow-providers-apache-spark"} <= {
        requirement.partition(">")[0] for requirement in project["dependencies"]
    }


def test_a_length_of_time_may_be_written() -> None:
    operator = task(StateflowStopOperator, wait="90 seconds")
    assert operator.given("wait") == timedelta(seconds=90)
    assert isinstance(operator, BaseOperator)


def test_the_pipelines_own_frames_are_in_the_tasks_log(
    tmp_path: Path, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    broken = tmp_path / "broken.py"
    broken.write_text("def rate():\n    return 1 / 0\n\nrate()\n")
    with refused(AirflowFailException, "broken.py", "line 2", "ZeroDivisionError"):
        ran(StateflowRestoreOperator, pipeline=f"{broken}:orders", origin="latest", dry_run=True)
    assert f'File "{broken}", line 2, in rate\n    return 1 / 0' in caplog.text
    assert "site-packages" not in caplog.text
