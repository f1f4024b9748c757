"""The Spark context of a task's process. `SparkContext.getOrCreate` would start one."""

from __future__ import annotations

import sys
from typing import Any


def active_context() -> Any:
    """None where there is none. Spark is not imported to find that out."""
    module = sys.modules.get("pyspark.core.context")
    return module.SparkContext._active_spark_context if module is not None else None
