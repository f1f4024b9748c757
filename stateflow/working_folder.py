"""Keeps modules of the working folder out of `python -m stateflow`.

Python puts that folder first on the search path, so that a `json.py` in a stranger's folder would be what the command
imports. The console script has no such entry.
"""

import os
import sys

_HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  pathlib is not loaded yet


def keep_out() -> None:
    """Takes the entry away that `-m` has put there, when a module of this package is what runs."""
    if sys.flags.safe_path or not _runs_this_package():
        return
    try:
        here = os.getcwd()  # noqa: PTH109  as above
    except OSError:
        return  # a folder that is deleted holds no modules
    # Whoever runs the package from its own folder needs the entry, and trusts the folder.
    if sys.path and sys.path[0] != _HOME and sys.path[0] == here:
        del sys.path[0]


def _runs_this_package() -> bool:
    """Python looks for the module of `-m` now; later the arguments begin with its file."""
    if sys.argv[:1] != ["-m"]:
        return False
    word = sys.orig_argv[-len(sys.argv)]
    module = word.partition("m")[2] if word.startswith("-") else word
    return module.partition(".")[0] == __package__
