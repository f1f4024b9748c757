"""The versions that the library is tested with, as its distribution says, and whether what is installed fits them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import metadata

from packaging.requirements import Requirement
from packaging.version import Version

from stateflow.distribution import DISTRIBUTION
from stateflow.errors import StateflowError


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


_NEWEST_CLIENTS = {"4.0": "4.0.4", "4.1": "4.1.3", "4.2": "4.2.0"}
"""Not every patch of pyspark has a pyspark-client on the index."""


def minor(version: str) -> str:
    """A version without its patch: 4.2 of 4.2.0."""
    return ".".join(version.split(".")[:2])


def with_client(spark: str) -> str:
    """The version to take of both pyspark and pyspark-client: this one, or the newest before it that both have."""
    newest = _NEWEST_CLIENTS.get(minor(spark), spark)
    return min(spark, newest, key=Version)


def refuse_mixed_spark() -> None:
    """StateflowError where pyspark-client has written files of another version into pyspark's folder."""
    import pyspark

    found = installed(("pyspark", "pyspark-client"))
    spark = found.get("pyspark", pyspark.__version__)
    if "pyspark-client" in found and pyspark.__version__ != spark:
        both = with_client(spark)
        raise StateflowError(
            f"pyspark {spark} is installed, and pyspark-client has written files of {pyspark.__version__} into its folder: "
            f"pip install --force-reinstall --no-deps 'pyspark-client=={both}' 'pyspark=={both}'"
        )


def misfit(name: str, versions: Mapping[str, str], asked: Mapping[str, Requirement]) -> str:
    """The version to install in place of the present one; empty if that fits, or if any version does."""
    if name == "pyspark-client":
        # It writes into pyspark's own folder.
        fits = versions[name] == versions.get("pyspark", versions[name])
        return "" if fits else f"pyspark-client=={with_client(versions['pyspark'])}"
    requirement = asked.get(name)
    if requirement is None or requirement.specifier.contains(versions[name], prereleases=True):
        return ""
    return f"{name}{requirement.specifier}"


def tested(*names: str) -> str:
    """What to type after `pip install` for the tested versions of these packages."""
    asked = requirements()
    return " ".join(f"'{name}{asked[name].specifier if name in asked else ''}'" for name in names)
