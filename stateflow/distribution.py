"""The name that pip knows the library by: `stateflow` alone is another project on the package index."""

from __future__ import annotations

from importlib import metadata

DISTRIBUTION = "stateflow-spark"


def installed_version() -> str:
    return metadata.version(DISTRIBUTION)
