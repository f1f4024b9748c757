"""Packages that a connector needs and the library does not: imported when a run needs them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from stateflow.distribution import DISTRIBUTION
from stateflow.errors import UsageError


def required(module: str, extra: str, what: str) -> ModuleType:
    """A module of another package. UsageError with the command that installs it, where it is not there; `what` needs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise UsageError(
            f"{what} needs the package {module.partition('.')[0]}, which cannot be imported ({error}): pip install "
            f"'{DISTRIBUTION}[{extra}]'"
        ) from error
