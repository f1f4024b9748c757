"""`@task.stateflow`: a pipeline in the DAG's own file. The decorated function is the pipeline, and its task runs it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from airflow.sdk.bases.decorator import TaskDecorator, get_unique_task_id, task_decorator_factory

from stateflow.airflow.operators.run import StateflowRunOperator
from stateflow.format.layout import checked_name

NAMED = "stateflow_pipeline"
"""By this attribute of the decorated function the driver finds the pipeline: `stateflow.pipelines.loading.NAMED`, which a DAG
file must not load."""


class DecoratedRunOperator(StateflowRunOperator):
    """A run of the function that `@task.stateflow` decorates. The call's arguments are the pipeline's parameters."""

    custom_operator_name = "@task.stateflow"
    way_to_follow = ""  # its pipeline is the function

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        task_id: str,
        op_args: Collection[Any] = (),
        op_kwargs: Mapping[str, Any] | None = None,
        multiple_outputs: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            task_id=get_unique_task_id(task_id, kwargs.get("dag"), kwargs.get("task_group")),
            pipeline=f"{python_callable.__code__.co_filename}:{python_callable.__name__}",
            parameters=_parameters(python_callable, op_args, op_kwargs or {}),
            **kwargs,
        )


def stateflow_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """`@task.stateflow` or `@task.stateflow(spark_conn_id=..., until=...)`: takes what `StateflowRunOperator` takes, apart from
    `pipeline` and `parameters`.

    The driver loads the DAG's file to find the function, so the driver's host needs Airflow.
    """
    if python_callable is None:

        def decorate(function: Callable[..., Any]) -> TaskDecorator:
            return stateflow_task(function, **kwargs)

        return decorate  # type: ignore[return-value]
    for wrong in sorted({"pipeline", "parameters"} & set(kwargs)):
        raise TypeError(
            f"@task.stateflow takes no {wrong}=: the function is the pipeline, and its call gives the parameters"
        )
    # A pipeline of @sf.pipeline, beneath this decorator, has its function in it.
    function = getattr(python_callable, "function", python_callable)
    name = checked_name("pipeline", function.__name__)
    if function.__qualname__ != function.__name__:
        raise TypeError(
            f"@task.stateflow: pipeline {name!r} is defined inside {function.__qualname__.partition('.')[0]!r}, where no driver "
            "finds it: define it at the top of the DAG's file"
        )
    decorated = task_decorator_factory(
        function, multiple_outputs=False, decorated_operator_class=DecoratedRunOperator, **kwargs
    )
    setattr(decorated, NAMED, name)
    return decorated


def _parameters(
    function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """By name. A parameter that is left out has its default, or the value of the job's last run."""
    signature = inspect.signature(function)
    first = next(iter(signature.parameters))
    bound = signature.bind_partial(None, *args, **kwargs)
    named = {name: value for name, value in bound.arguments.items() if name != first}
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named.update(named.pop(parameter.name, {}))
    return named
