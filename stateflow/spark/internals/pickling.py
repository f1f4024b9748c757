"""PySpark's copy of cloudpickle, and the register by which a worker recognises a class, to which cloudpickle gives no public
way."""

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
    """The number by which a worker recognises a class that has come before, so that one class does not become two."""
    return str(inner._get_or_create_tracker_id(cls))  # type: ignore[no-untyped-call]


@internal("pyspark.cloudpickle.cloudpickle._lookup_class_or_track(class_tracker_id, class_def)")
def tracked_as(number: str, cls: type) -> type:
    """The class that came under this number before; otherwise this class, which then gets the number."""
    return inner._lookup_class_or_track(number, cls)  # type: ignore[no-any-return, no-untyped-call]
