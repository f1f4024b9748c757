"""User code on its way to the workers: a pipeline's file has no name under which they could import it."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

import pyspark.cloudpickle


def by_value(modules: Iterable[ModuleType]) -> None:
    """Classes and functions of these modules travel whole instead of by name."""
    for module in modules:
        pyspark.cloudpickle.register_pickle_by_value(module)
