"""What the provider declares to Airflow: its connection type, its operators, the classes of its links."""

from __future__ import annotations

from typing import Any

from stateflow.airflow import HOME

PROVIDER = "airflow-provider-stateflow"
"""The name that pip knows the provider by."""
_NAME = "Stateflow"


def get_provider_info() -> dict[str, Any]:
    """Read by Airflow through the entry point `apache_airflow_provider`."""
    return {
        "package-name": PROVIDER,
        "name": _NAME,
        "description": "Keyed state, checkpoints and exactly-once output for PySpark pipelines.",
        "integrations": [{"integration-name": _NAME, "tags": ["service"]}],
        "hooks": [{"integration-name": _NAME, "python-modules": ["stateflow.airflow.connections.stateflow"]}],
        "operators": _modules("Operator"),
        "sensors": _modules("Sensor"),
        "triggers": _modules("Trigger"),
        "connection-types": [
            {
                "connection-type": "stateflow",
                "hook-class-name": "stateflow.airflow.connections.stateflow.StateflowHook",
                "hook-name": _NAME,
                "ui-field-behaviour": {
                    "hidden-fields": ["login", "password", "port", "schema"],
                    "relabeling": {"host": "Checkpoint root"},
                    "placeholders": {"host": "s3://bucket/checkpoints or /data/checkpoints"},
                },
                "conn-fields": {
                    "checkpoint_dir": {
                        "label": "Checkpoint root",
                        "description": "Instead of the field above: a path, or an s3://, gs://, az:// or hdfs:// URL",
                        "schema": {"type": ["string", "null"]},
                    },
                    "storage_options": {
                        "label": "Storage options",
                        "description": "Settings and credentials of the object store, as JSON",
                        "schema": {"type": ["string", "null"], "format": "password"},
                    },
                    "options": {
                        "label": "Options",
                        "description": "Options of docs/configuration.md, as JSON",
                        "schema": {"type": ["string", "null"]},
                    },
                },
            }
        ],
        "task-decorators": [
            {"name": "stateflow", "class-name": "stateflow.airflow.operators.decorated.stateflow_task"}
        ],
        "notifications": ["stateflow.airflow.staleness.StaleJobs"],
        "asset-uris": [{"schemes": ["stateflow"], "handler": None}],
        "config": {"stateflow": {"description": "The pages of Stateflow.", "options": _options()}},
        "extra-links": [
            f"stateflow.airflow.operators.links.{link}"
            for link in ("CheckpointLink", "DriverLogLink", "SparkLink")
        ],
    }


def _modules(kind: str) -> list[dict[str, Any]]:
    """Where the classes of a kind are that DAG files import; that of operators has the class that all of them extend as well."""
    homes = {home for name, home in HOME.items() if name.endswith(kind)} - {"operators.base"}
    return [
        {
            "integration-name": _NAME,
            "python-modules": [f"stateflow.airflow.{home}" for home in sorted(homes)],
        }
    ]


def _options() -> dict[str, Any]:
    """For `airflow config list`: section `[stateflow]`, which the pages read."""
    options = {
        "conn_ids": ("Connections that Airflow cannot list, with commas between.", "", "lake,other_lake"),
        "stale_after": (
            "How long a job may be without a fresh checkpoint, with exceptions by job.",
            "26 hours",
            "26 hours, orders=15 minutes, replay=never",
        ),
        "visible_to": (
            "Who sees a root: `team` (members of its connection's team; all, if it has none), or `connection` (who may read it).",
            "team",
            "connection",
        ),
    }
    for name, page in (("spark_page", "Spark's pages of a run"), ("driver_log", "the log of a run's driver")):
        options[name] = (
            f"The address of {page}, with {{application}}, {{host}}, {{job}} and {{epoch}}.",
            "",
            "https://history.example.com/history/{application}/jobs/",
        )
    for button in ("savepoint", "recovery", "stop", "cleanup"):
        dag = f"stateflow_{button}"
        options[f"{button}_dag"] = (
            f"The DAG that the button {button} starts, with exceptions by connection.",
            dag,
            f"our_{button}, lake=lake_{button}",
        )
    return {
        name: {
            "description": description,
            "version_added": None,
            "type": "string",
            "example": example,
            "default": default,
        }
        for name, (description, default, example) in options.items()
    }
