"""How the Python workers of this machine find this package, and modules of the working folder only where the driver does.

It imports no Spark, because the command line asks it, too.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

SEARCH_PATH = "spark.executorEnv.PYTHONPATH"
SAFE_PATH = "spark.executorEnv.PYTHONSAFEPATH"
_HOME = Path(__file__).resolve().parents[3]
"""The folder that the package is imported from."""


def search_path(conf: Mapping[str, str]) -> dict[str, str]:
    """For a driver whose workers are processes of this machine: they find this package, also where only the driver does."""
    installed = [*site.getsitepackages(), site.getusersitepackages()]
    if _is_in([*installed, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]):
        return {}
    # Last, so that it hides none of the user's modules.
    return {SEARCH_PATH: ":".join(filter(None, (conf.get(SEARCH_PATH), str(_HOME))))}


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


def _is_in(folders: Iterable[str]) -> bool:
    return any(Path(folder).resolve() == _HOME for folder in folders if folder)
