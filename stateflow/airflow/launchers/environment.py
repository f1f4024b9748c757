"""The environment of a driver: what it takes over from the task that starts it, and what users give it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NO_DATABASE = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite://"}
"""An empty database in memory. Airflow reads this setting when it is imported, and a DAG's file imports it. A task has an
address there that no SQLAlchemy can read, so that nobody uses it; without the variable Airflow would take the true one from its
file."""
_OF_AIRFLOWS_OWN = (
    "AIRFLOW__API_AUTH__",
    "AIRFLOW__API__SECRET_KEY",
    "AIRFLOW__CELERY_",
    "AIRFLOW__CORE__FERNET_KEY",
    "AIRFLOW__CORE__INTERNAL_API_SECRET_KEY",
    "AIRFLOW__CORE__SQL_ALCHEMY_",
    "AIRFLOW__DATABASE__",
    "AIRFLOW__WEBSERVER__SECRET_KEY",
)
"""The database, the keys and the broker of Airflow's own processes, under older names as well. With `_CMD` and `_SECRET` behind them, too.
The secrets backend is not theirs alone: a DAG's file that a driver loads may ask it for variables and connections."""


def inherited(task: Mapping[str, str]) -> dict[str, str]:
    """What a driver takes over from its task: all that worker and host set for their programs.

    The driver outlives its task. So it gets nothing that names the task's own process (`_AIRFLOW...`, `__AIRFLOW...`: the descriptor
    of its supervisor's socket among them), and neither address nor keys of Airflow itself.
    """
    kept = {
        name: value
        for name, value in task.items()
        if not name.startswith(("_AIRFLOW", "__AIRFLOW", *_OF_AIRFLOWS_OWN))
    }
    return {**kept, **NO_DATABASE}


def checked(env: Any) -> dict[str, Any]:
    """The variables that a user gives a launcher. Raises ValueError, without a value in its text: they may be secrets."""
    if env is None:
        return {}
    if not isinstance(env, Mapping) or not all(isinstance(name, str) for name in env):
        raise ValueError('env takes a dict of names and values: env={"AWS_PROFILE": "lake"}')
    if wrong := sorted(name for name in env if not name or "=" in name or "\0" in name):
        raise ValueError(f"env: {wrong[0]!r} cannot be the name of an environment variable")
    return dict(env)


def shown(env: Mapping[str, Any]) -> dict[str, str]:
    """For people to read: names alone."""
    return dict.fromkeys(sorted(env), "***")
