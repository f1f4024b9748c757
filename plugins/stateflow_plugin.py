"""For a plugins folder: makes the package beside this file importable and hands its plugin to Airflow.

Where stateflow is installed as a package, Airflow finds the plugin by its entry point; then there is none here, so that it
is not registered twice.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path

if not entry_points(group="airflow.plugins", name="stateflow"):
    if (folder := str(Path(__file__).parent)) not in sys.path:
        sys.path.append(folder)
    from stateflow_ui.plugin import StateflowPlugin

    __all__ = ["StateflowPlugin"]
