"""The command line that the Spark provider's hook would start. The hook has no public method that gives it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

_SILENT = logging.getLogger(f"{__name__}.silent")
_SILENT.disabled = True


def submit_command(hook: SparkSubmitHook, application: str, *, quietly: bool = False) -> list[str]:
    """The hook logs the command, with secrets masked, unless it is only looked at."""
    if quietly:
        hook._log = _SILENT  # type: ignore[assignment]
    command: list[str] = hook._build_spark_submit_command(application)
    return command
