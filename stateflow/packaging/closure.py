"""Which installed distributions an environment needs, and which files of them."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from stateflow.errors import NotFoundError, UsageError
from stateflow.packaging.entries import ArchiveEntry, file_entry
from stateflow.pipelines.code.own_modules import files_below

FROM_SPARK = frozenset(("pyspark", "pyspark-client", "py4j"))
"""Every Spark installation brings these for its executors, in its own version."""
ROOM = "site-packages"
# Large, and only the libraries' own developers use them.
_PRUNED: Mapping[str, re.Pattern[str]] = {
    "numpy": re.compile(r"numpy/(.+/)?tests/"),
    "pandas": re.compile(r"pandas/tests/"),
    "pyarrow": re.compile(r"pyarrow/(tests|include|includes|src)/"),
}
_OF_THE_INSTALLER = frozenset(("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"))

Find = Callable[[str], metadata.Distribution]


@dataclass(frozen=True, slots=True)
class NeededDistribution:
    """A distribution that goes into the environment."""

    name: str
    version: str
    distribution: metadata.Distribution


def closure(requesters: Mapping[str, str], find: Find = metadata.distribution) -> list[NeededDistribution]:
    """The distributions and everything they require, by name. A value of `requesters` says what asks for a distribution.

    NotFoundError when a distribution is not installed, UsageError when its version does not fit.
    """
    by_name: dict[str, NeededDistribution] = {}
    seen: set[tuple[str, str]] = set()
    queue = [(Requirement(name), by) for name, by in requesters.items()]
    while queue:
        requirement, by = queue.pop()
        name = canonicalize_name(requirement.name)
        if name in FROM_SPARK:
            continue
        if name not in by_name:
            by_name[name] = _installed(requirement, name, by, find)
        needed = by_name[name]
        if requirement.specifier and not requirement.specifier.contains(needed.version, prereleases=True):
            raise UsageError(
                f"{by} needs {requirement}, but {needed.version} is installed: pip install '{requirement}'"
            )
        for extra in ("", *sorted(requirement.extras)):
            if (name, extra) not in seen:
                seen.add((name, extra))
                queue += [(each, name) for each in _requirements(needed.distribution, extra)]
    return [by_name[name] for name in sorted(by_name)]


def lock(needed: Iterable[NeededDistribution]) -> str:
    """Exact versions, as pip reads them."""
    return "".join(f"{each.name}=={each.version}\n" for each in needed)


def files_of(needed: NeededDistribution) -> Iterator[ArchiveEntry]:
    """The files of a distribution that an executor needs. If it is installed editable, they come from its project folder."""
    distribution = needed.distribution
    if distribution.read_text("RECORD") is None and distribution.read_text("SOURCES.txt") is not None:
        # Setuptools writes these notes into a project's own folder, and Python finds them first when it starts there.
        yield from _own_modules(needed)
        place = f"{ROOM}/{needed.name.replace('-', '_')}-{needed.version}.dist-info/METADATA"
        yield ArchiveEntry(place, (distribution.read_text("PKG-INFO") or "").encode())
        return
    if distribution.files is None:
        raise UsageError(
            f"{needed.name} {needed.version} has no list of its files, so it cannot be packaged: install it with "
            "pip into a virtual environment"
        )
    editable = _is_editable(distribution)
    if editable:
        yield from _own_modules(needed)
    pruned = _PRUNED.get(needed.name)
    for file in distribution.files:
        name = PurePosixPath(file.as_posix())
        if _is_left_out(name) or (pruned is not None and pruned.match(str(name))):
            continue
        if editable and not name.parts[0].endswith(".dist-info"):
            continue
        path = Path(str(distribution.locate_file(file)))
        if not path.is_file():
            raise UsageError(
                f"{path} belongs to {needed.name} {needed.version} and is not there: pip install --force-reinstall "
                f"{needed.name}=={needed.version}"
            )
        yield file_entry(f"{ROOM}/{name}", path)


def _installed(requirement: Requirement, name: str, by: str, find: Find) -> NeededDistribution:
    try:
        distribution = find(name)
    except metadata.PackageNotFoundError:
        raise NotFoundError(
            f"{by} needs {requirement}, which is not installed here: pip install '{requirement}', then package again"
        ) from None
    return NeededDistribution(name, distribution.version, distribution)


def _requirements(distribution: metadata.Distribution, extra: str) -> Iterator[Requirement]:
    for text in distribution.requires or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise UsageError(
                f"{distribution.name} {distribution.version} has a requirement that cannot be read: {error}"
            ) from error
        if requirement.marker is None:
            if not extra:
                yield requirement
        elif requirement.marker.evaluate({"extra": extra}) and (
            not extra or not requirement.marker.evaluate({"extra": ""})
        ):
            yield requirement


def _is_editable(distribution: metadata.Distribution) -> bool:
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return False
    return bool(origin.get("dir_info", {}).get("editable"))


def _own_modules(needed: NeededDistribution) -> Iterator[ArchiveEntry]:
    names = (needed.distribution.read_text("top_level.txt") or "").split()
    if not names:
        raise UsageError(
            f"{needed.name} is installed editable and has no list of its modules: pip install it without -e"
        )
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise NotFoundError(
                f"module {name} of {needed.name}, which is installed editable, cannot be found: install it again"
            )
        for folder in spec.submodule_search_locations or ():
            for path in files_below(Path(folder)):
                yield file_entry(f"{ROOM}/{name}/{path.relative_to(folder).as_posix()}", path)
        if not spec.submodule_search_locations and spec.origin:
            yield file_entry(f"{ROOM}/{Path(spec.origin).name}", Path(spec.origin))


def _is_left_out(name: PurePosixPath) -> bool:
    """Whether the file is a program, data outside of the packages, compiled here, or an installer's note about this machine."""
    if name.is_absolute() or ".." in name.parts or "__pycache__" in name.parts:
        return True
    if name.suffix in (".pyc", ".pth"):
        return True
    return name.parts[0].endswith(".dist-info") and name.name in _OF_THE_INSTALLER
