"""How Spark starts its Python workers on this machine: from a process that has imported what they need.

It imports no Spark, because launchers read it, too.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

DAEMON = "spark.python.daemon.module"
SEARCH_PATH = "spark.executorEnv.PYTHONPATH"
_MODULE = "stateflow.spark.task.daemon"
_HOME = Path(__file__).resolve().parents[3]
"""The folder that the package is imported from."""


def settings(conf: Mapping[str, str]) -> dict[str, str]:
    """For a driver whose workers are processes of this machine, with this interpreter. What `conf` chooses stays."""
    if DAEMON in conf:
        return {}
    if _installed() or _is_in(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        return {DAEMON: _MODULE}
    # Last, so that it hides none of the user's modules.
    path = ":".join(filter(None, (conf.get(SEARCH_PATH), str(_HOME))))
    return {DAEMON: _MODULE, SEARCH_PATH: path}


def submit_settings(conf: Mapping[str, str], python: str) -> dict[str, str]:
    """The same for spark-submit, whose workers run `python`: only if that is this one and the package is installed in it."""
    if DAEMON in conf or "spark.pyspark.python" in conf or python != sys.executable or not _installed():
        return {}
    return {DAEMON: _MODULE}


def _installed() -> bool:
    return _is_in([*site.getsitepackages(), site.getusersitepackages()])


def _is_in(folders: Iterable[str]) -> bool:
    return any(Path(folder).resolve() == _HOME for folder in folders if folder)
