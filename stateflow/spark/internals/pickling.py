"""PySpark's copy of cloudpickle, with what it gives nobody a way into: how a class is known again in a worker."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from pyspark import cloudpickle
from pyspark.cloudpickle import cloudpickle as inner

from stateflow.internals import internal


@internal("pyspark.cloudpickle.cloudpickle.CloudPickler.reducer_override(obj)")
class Pickler(inner.CloudPickler):
    """PySpark's own way to pickle user code, to be changed for some classes."""


@internal("pyspark.cloudpickle.register_pickle_by_value(module)")
def pickle_by_value(module: ModuleType) -> None:
    """Classes and functions of the module travel as code, because no worker can import it."""
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


@internal("pyspark.cloudpickle.cloudpickle._should_pickle_by_reference(obj)")
def goes_by_name(value: Any) -> bool:
    """Whether workers import a class or function instead of getting its code."""
    return bool(inner._should_pickle_by_reference(value))  # type: ignore[no-untyped-call]


@internal("pyspark.cloudpickle.cloudpickle._get_or_create_tracker_id(class_def)")
def tracking_number(cls: type) -> str:
    """What a worker knows a class by that has come to it before, so that one class does not become two."""
    return str(inner._get_or_create_tracker_id(cls))  # type: ignore[no-untyped-call]


@internal("pyspark.cloudpickle.cloudpickle._lookup_class_or_track(class_tracker_id, class_def)")
def tracked_as(number: str, cls: type) -> type:
    """The class that came under this number before; else this one, which has the number from here on."""
    return inner._lookup_class_or_track(number, cls)  # type: ignore[no-any-return, no-untyped-call]
