"""The versions that the library is tested with, as its distribution says, and whether what is installed fits them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import metadata

from packaging.requirements import Requirement

from stateflow.distribution import DISTRIBUTION


def requirements(lines: Iterable[str] | None = None) -> dict[str, Requirement]:
    """The packages that the distribution needs, by name."""
    lines = (metadata.requires(DISTRIBUTION) or ()) if lines is None else lines
    asked = [Requirement(line) for line in lines]
    return {each.name: each for each in asked if each.marker is None or each.marker.evaluate({"extra": ""})}


def supported_pythons(classifiers: Iterable[str] | None = None) -> list[str]:
    """Python's versions that the distribution names, such as 3.11."""
    if classifiers is None:
        classifiers = metadata.metadata(DISTRIBUTION).get_all("Classifier") or ()
    found = (re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each) for each in classifiers)
    return [match[1] for match in found if match]


def installed(names: Iterable[str]) -> dict[str, str]:
    """The versions of those that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def misfit(name: str, versions: Mapping[str, str], asked: Mapping[str, Requirement]) -> str:
    """The version to install in place of the present one; empty if that fits, or if any version does."""
    if name == "pyspark-client":
        # It writes into pyspark's own folder.
        fits = versions[name] == versions.get("pyspark", versions[name])
        return "" if fits else f"pyspark-client=={versions['pyspark']}"
    requirement = asked.get(name)
    if requirement is None or requirement.specifier.contains(versions[name], prereleases=True):
        return ""
    return f"{name}{requirement.specifier}"


def tested(*names: str) -> str:
    """What to type after `pip install` for the tested versions of these packages."""
    asked = requirements()
    return " ".join(f"'{name}{asked[name].specifier if name in asked else ''}'" for name in names)
