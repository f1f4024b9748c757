"""Stateflow in Airflow: a connection, operators, sensors and what follows a run.

Everything is imported when it is asked for: a DAG file that names one operator loads that operator, and neither Spark nor
any library that reads state.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateflow.airflow.connections.stateflow import StateflowHook as StateflowHook
    from stateflow.airflow.launchers import InProcess as InProcess
    from stateflow.airflow.launchers import Kubernetes as Kubernetes
    from stateflow.airflow.launchers import SparkSubmit as SparkSubmit
    from stateflow.airflow.launchers import WarmHost as WarmHost
    from stateflow.airflow.operators.assets import checkpoint_asset as checkpoint_asset
    from stateflow.airflow.operators.base import StateflowOperator as StateflowOperator
    from stateflow.airflow.operators.cleanup import StateflowCleanupOperator as StateflowCleanupOperator
    from stateflow.airflow.operators.host import StateflowHostOperator as StateflowHostOperator
    from stateflow.airflow.operators.links import CheckpointLink as CheckpointLink
    from stateflow.airflow.operators.replay import StateflowReplayOperator as StateflowReplayOperator
    from stateflow.airflow.operators.rescale import StateflowRescaleOperator as StateflowRescaleOperator
    from stateflow.airflow.operators.restore import StateflowRestoreOperator as StateflowRestoreOperator
    from stateflow.airflow.operators.run import StateflowRunOperator as StateflowRunOperator
    from stateflow.airflow.operators.savepoint import StateflowSavepointOperator as StateflowSavepointOperator
    from stateflow.airflow.operators.stop import StateflowStopOperator as StateflowStopOperator
    from stateflow.airflow.operators.verify import StateflowVerifyOperator as StateflowVerifyOperator
    from stateflow.airflow.sensors import CheckpointFreshnessSensor as CheckpointFreshnessSensor
    from stateflow.airflow.sensors import WatermarkSensor as WatermarkSensor
    from stateflow.airflow.staleness import StaleJobs as StaleJobs
    from stateflow.airflow.triggers.host import StateflowHostTrigger as StateflowHostTrigger
    from stateflow.airflow.triggers.idle import StateflowIdleTrigger as StateflowIdleTrigger
    from stateflow.airflow.triggers.job import CheckpointFreshnessTrigger as CheckpointFreshnessTrigger
    from stateflow.airflow.triggers.job import WatermarkTrigger as WatermarkTrigger
    from stateflow.airflow.triggers.new_rows import NewRowsTrigger as NewRowsTrigger
    from stateflow.airflow.triggers.run import StateflowRunTrigger as StateflowRunTrigger

HOME = {
    "CheckpointFreshnessSensor": "sensors",
    "CheckpointFreshnessTrigger": "triggers.job",
    "CheckpointLink": "operators.links",
    "InProcess": "launchers",
    "Kubernetes": "launchers",
    "NewRowsTrigger": "triggers.new_rows",
    "SparkSubmit": "launchers",
    "WarmHost": "launchers",
    "StaleJobs": "staleness",
    "StateflowCleanupOperator": "operators.cleanup",
    "StateflowHook": "connections.stateflow",
    "StateflowHostOperator": "operators.host",
    "StateflowHostTrigger": "triggers.host",
    "StateflowIdleTrigger": "triggers.idle",
    "StateflowOperator": "operators.base",
    "StateflowReplayOperator": "operators.replay",
    "StateflowRescaleOperator": "operators.rescale",
    "StateflowRestoreOperator": "operators.restore",
    "StateflowRunOperator": "operators.run",
    "StateflowRunTrigger": "triggers.run",
    "StateflowSavepointOperator": "operators.savepoint",
    "StateflowStopOperator": "operators.stop",
    "StateflowVerifyOperator": "operators.verify",
    "WatermarkSensor": "sensors",
    "WatermarkTrigger": "triggers.job",
    "checkpoint_asset": "operators.assets",
}

__all__ = sorted(HOME)


def __getattr__(name: str) -> Any:
    if name not in HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
