"""Stateflow in Airflow: a connection, operators, sensors and what follows a run.

Everything is imported when it is asked for: a DAG file that names one operator loads that operator, and neither Spark nor
any library that reads state.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "CheckpointFreshnessSensor": "sensors",
    "CheckpointFreshnessTrigger": "triggers",
    "CheckpointLink": "links",
    "InProcess": "launchers",
    "SparkSubmit": "launchers",
    "StaleJobs": "staleness",
    "StateflowCleanupOperator": "operators.cleanup",
    "StateflowHook": "connection",
    "StateflowOperator": "operators.base",
    "StateflowRescaleOperator": "operators.rescale",
    "StateflowRestoreOperator": "operators.restore",
    "StateflowRunOperator": "operators.run",
    "StateflowRunTrigger": "run_trigger",
    "StateflowSavepointOperator": "operators.savepoint",
    "StateflowStopOperator": "operators.stop",
    "StateflowVerifyOperator": "operators.verify",
    "WatermarkSensor": "sensors",
    "WatermarkTrigger": "triggers",
    "checkpoint_asset": "assets",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
