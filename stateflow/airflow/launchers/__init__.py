"""How the driver of a run is started."""

from stateflow.airflow.launchers.in_process import InProcess
from stateflow.airflow.launchers.kubernetes import Kubernetes
from stateflow.airflow.launchers.spark_submit import SparkSubmit

__all__ = ["InProcess", "Kubernetes", "SparkSubmit"]
