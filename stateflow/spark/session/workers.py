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
SAFE_PATH = "spark.executorEnv.PYTHONSAFEPATH"
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


def safe_path(conf: Mapping[str, str]) -> dict[str, str]:
    """Keeps modules of the working folder out of workers of this machine, unless the driver itself imports from there.

    Spark starts them by `python -m`, which puts the working folder first on the search path: a `pandas.py` in a stranger's
    folder would be what the workers import. What the driver imports they have to find, such as modules beside a script.
    """
    return {} if SAFE_PATH in conf or imports_from_working_folder() else {SAFE_PATH: "1"}


def imports_from_working_folder() -> bool:
    """Whether the working folder is on this process's search path."""
    try:
        here = Path.cwd().resolve()
    except FileNotFoundError:
        return False
    return any(Path(entry).resolve() == here for entry in sys.path)


def submit_settings(conf: Mapping[str, str], python: str) -> dict[str, str]:
    """The same for spark-submit, whose workers run `python`: only if that is this one and the package is installed in it."""
    if DAEMON in conf or "spark.pyspark.python" in conf or python != sys.executable or not _installed():
        return {}
    return {DAEMON: _MODULE}


def _installed() -> bool:
    return _is_in([*site.getsitepackages(), site.getusersitepackages()])


def _is_in(folders: Iterable[str]) -> bool:
    return any(Path(folder).resolve() == _HOME for folder in folders if folder)
