"""Declared arguments: what a signature says once is read, templated, assigned and explained."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from airflow.sdk import DAG

import stateflow.airflow
from stateflow.airflow import (
    StaleJobs,
    StateflowCleanupOperator,
    StateflowRescaleOperator,
    StateflowRunOperator,
    StateflowStopOperator,
    StateflowVerifyOperator,
)
from stateflow.airflow.launchers import InProcess, SparkSubmit
from stateflow.airflow.operators.arguments import (
    Argument,
    Count,
    DeclaredArguments,
    Flag,
    Name,
    Table,
    Text,
    number,
)
from tests.airflow.tasks import task

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]

PUBLIC = [getattr(stateflow.airflow, name) for name in stateflow.airflow.__all__]
DECLARING = [kind for kind in PUBLIC if isinstance(kind, type) and issubclass(kind, DeclaredArguments)]
AIRFLOWS_OWN = {"self", "kwargs", "context"}


class Example(DeclaredArguments):
    """Holds arguments."""

    def __init__(
        self,
        *,
        name: Annotated[Name, "who it is"],
        retained: Annotated[Count | None, "how many"] = None,
        limit: Annotated[int, Argument(number(5), template=False)] = 5,
        options: Table = None,
        plain: int = 0,
    ) -> None:
        self.accept(locals())


class Nearer(Example):
    """Holds one more, and its name may be empty."""

    def __init__(self, *, name: Text = "", deep: Flag = False, **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.accept(locals())


def test_the_signature_says_what_is_an_argument_and_what_is_a_template() -> None:
    assert list(Example.arguments) == ["name", "retained", "limit", "options"]
    assert Example.template_fields == ("name", "retained", "options")


def test_a_subclass_adds_arguments_and_may_read_one_in_another_way() -> None:
    assert list(Nearer.arguments) == [*Example.arguments, "deep"]
    assert Nearer.template_fields == (*Example.template_fields, "deep")
    assert Nearer(deep="yes").read("name") == ""
    assert Nearer(deep="yes").read("deep") is True
    with pytest.raises(ValueError, match=r"^Example: name='' names nothing: give a name$"):
        Example(name="")


def test_none_is_read_as_none_only_where_the_signature_says_so() -> None:
    made: Any = Example(name="it")
    assert made.read("retained") is None
    assert made.options == {}
    with pytest.raises(TypeError, match=r"Example: limit=None has to be a whole number of 5 or more"):
        Example(name="it", limit=None)  # type: ignore[arg-type]


def test_a_template_is_kept_until_it_is_rendered() -> None:
    made: Any = Example(name="{{ a }}", retained="{{ b }}")
    assert (made.name, made.retained) == ("{{ a }}", "{{ b }}")
    made.retained = "7"
    assert made.read("retained") == 7


def test_a_flag_whose_template_renders_to_nothing_is_refused() -> None:
    """As False, an empty dry_run would do what was only to be reported."""
    made: Any = Nearer(deep="{{ dag_run.conf.deep }}")
    made.deep = ""
    with pytest.raises(ValueError, match="deep='' has to be true or false"):
        made.read("deep")


def test_help_explains_each_argument() -> None:
    assert (
        inspect.getdoc(Example) == "Holds arguments.\n\n:param name: who it is.\n:param retained: how many."
    )
    for kind in DECLARING:
        for name, argument in kind.arguments.items():
            if argument.doc and name in inspect.signature(kind.__init__).parameters:
                assert f":param {name}: {argument.doc}." in (kind.__doc__ or "")
    assert ":param grace: how long the driver" in (StateflowRunOperator.__doc__ or "")


@pytest.mark.parametrize("kind", DECLARING, ids=lambda kind: kind.__name__)
def test_every_argument_of_every_public_class_is_declared(kind: type[DeclaredArguments]) -> None:
    assert DECLARING
    own = set(inspect.signature(kind.__init__).parameters) - AIRFLOWS_OWN
    assert own <= set(kind.arguments)


def test_only_objects_and_what_shapes_the_task_are_no_templates() -> None:
    plain = {kind.__name__: set(kind.arguments) - set(kind.template_fields) for kind in DECLARING}
    sensor = {"deferrable", "store_patience"}
    assert {name: arguments for name, arguments in plain.items() if arguments} == {
        "StateflowRunOperator": {
            "deferrable",
            "table_assets",
            "partition_events",
            "openlineage_inject_parent_job_info",
            "openlineage_inject_transport_info",
        },
        "StateflowHostOperator": {"deferrable"},
        "CheckpointFreshnessSensor": sensor,
        "WatermarkSensor": sensor,
        "StaleJobs": {"send"},
    }


def test_default_args_of_a_dag_reach_declared_arguments() -> None:
    with DAG("upkeep", schedule=None, default_args={"job": "orders", "drain": True, "wait": "5 minutes"}):
        stop = StateflowStopOperator(task_id="stop", wait="1 minute")
        run = StateflowRunOperator(task_id="run", pipeline="orders.py:payments")
        verify = StateflowVerifyOperator(task_id="verify")
    assert (stop.given("drain"), stop.given("wait")) == (True, timedelta(minutes=1))
    assert (run.given("job"), verify.given("job")) == ("orders", "orders")


def test_a_wrong_default_of_a_dag_is_refused_in_the_name_of_its_task() -> None:
    with (
        DAG("upkeep", schedule=None, default_args={"retained": 0}),
        pytest.raises(ValueError, match=r"task 'clean': retained=0 has to be a whole number of 1 or more"),
    ):
        StateflowCleanupOperator(task_id="clean")


def test_tasks_are_mapped_over_declared_arguments() -> None:
    with DAG("upkeep", schedule=None) as dag:
        mapped = StateflowRescaleOperator.partial(task_id="rescale", job="orders").expand(parallelism=[2, 4])
    with pytest.raises(TypeError, match="unexpected keyword argument 'parallel'"):
        StateflowRescaleOperator.partial(task_id="wrong", job="orders", parallel=2)
    made: Any = mapped.unmap({"parallelism": "4"})
    assert (made.given("job"), made.given("parallelism")) == ("orders", 4)
    assert dag.task_ids == ["rescale"]


def test_a_subclass_of_a_user_assigns_its_own_arguments() -> None:
    class Mine(StateflowStopOperator):
        template_fields = (*StateflowStopOperator.template_fields, "mine")

        def __init__(self, *, mine: Unknown, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.mine = mine

    made = task(Mine, mine="{{ ds }}", job="orders")
    assert made.template_fields == (*StateflowStopOperator.template_fields, "mine")
    assert (made.mine, made.given("job")) == ("{{ ds }}", "orders")
    assert set(made.arguments) == set(StateflowStopOperator.arguments)


def test_a_launcher_is_taken_as_it_is() -> None:
    inside = InProcess()
    assert task(StateflowRunOperator, pipeline="a.py:b", launcher=inside).given("launcher") is inside
    assert isinstance(task(StateflowRunOperator, pipeline="a.py:b").given("launcher"), SparkSubmit)


def test_a_notifier_names_itself_in_an_error() -> None:
    with pytest.raises(ValueError, match=r"^StaleJobs: older_than='soon' "):
        StaleJobs("soon")
