"""A package: the environment of executors, the pipeline, the lock, and a manifest that says what they are."""

from __future__ import annotations

import importlib.util
import json
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from stateflow.distribution import DISTRIBUTION, installed_version
from stateflow.errors import NotFoundError, UsageError
from stateflow.packaging.archive import Archive, ArchiveContent, archive_path, read_content, write_archive
from stateflow.packaging.closure import FROM_SPARK, NeededDistribution, closure, files_of, lock
from stateflow.packaging.entries import ArchiveEntry, file_entry
from stateflow.packaging.folder import archives_of, check_folder, checksums
from stateflow.packaging.interpreter import interpreter, launcher
from stateflow.packaging.native import Demands, demands
from stateflow.packaging.platforms import Hosts, hosts_of, refuse_others, version_text
from stateflow.packaging.trial import try_out
from stateflow.packaging.usage import settings
from stateflow.pipelines.code.own_modules import Sources, sources
from stateflow.storage.whole_files import whole_file

FORMAT = 1
LOCK = "requirements.txt"

Advance = Callable[[str, int, int], object]


@dataclass(frozen=True, slots=True)
class Request:
    """What to package, and for which hosts."""

    file: Path
    """The pipeline's file."""
    name: str
    folder: Path
    """Where the package goes."""
    include_python: bool = True
    also: Sequence[str] = ()
    """Distributions to add although no import names them."""
    platform: str = ""
    """The platform of the cluster's hosts, if it differs from this one's."""


@dataclass(frozen=True, slots=True)
class Package:
    environment: Archive
    pipeline: Archive
    manifest: Path
    document: Mapping[str, Any] = field(repr=False)
    left_out: Sequence[Path] = ()
    """What lies among the files and is none."""


def package(request: Request, advance: Advance = lambda what, done, total: None) -> Package:
    """Writes a package into the folder. An archive with the same content stays. UsageError for a package that could not work."""
    check_folder(request.folder)
    hosts = hosts_of(request.platform)
    # Before anything large is read: an environment of one system never runs on another.
    refuse_others(Demands((), (0, 0), ()), hosts)
    own = sources(request.file)
    needed = closure(_imported_distributions(own, request.also))
    left_out: list[Path] = []
    content = read_content(
        _regular(_environment(needed, include_python=request.include_python), left_out),
        lambda done, total: advance("looked at", done, total),
    )
    host_demands = demands(content.natives)
    refuse_others(host_demands, hosts)
    pipeline_content = read_content(
        _regular((file_entry(name, path) for name, path in own.files.items()), left_out)
    )
    sums = checksums(request.folder)
    place = archive_path(request.folder, "environment", content)
    environment = write_archive(
        place,
        content,
        lambda done, total: advance("packed", done, total),
        known=sums.get(place.name, ()),
    )
    place = archive_path(request.folder, request.name, pipeline_content)
    pipeline = write_archive(place, pipeline_content, known=sums.get(place.name, ()))
    document = _document(request, hosts, host_demands, needed, environment, pipeline)
    path = request.folder / f"{request.name}.json"
    # The manifest is written last: archives without it were perhaps never tried.
    if environment.made or pipeline.made or archives_of(path) != document["archives"]:
        _try_package(request, environment, pipeline, content)
    _write(request.folder / f"{request.name}.lock", lock(needed))
    _write(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    return Package(environment, pipeline, path, document, tuple(dict.fromkeys(left_out)))


def _regular(entries: Iterable[ArchiveEntry], left_out: list[Path]) -> Iterator[ArchiveEntry]:
    """The entries that are files. It notes the others."""
    for entry in entries:
        if entry.regular:
            yield entry
        elif isinstance(entry.source, Path):
            left_out.append(entry.source)


def _imported_distributions(own: Sources, also: Iterable[str]) -> dict[str, str]:
    """Names of distributions, each with the import or option that asks for it."""
    homes = dict(metadata.packages_distributions())
    requesters = {DISTRIBUTION: "stateflow package"}
    # The provider puts a folder into the library's package. Executors run no Airflow.
    homes["stateflow"] = [DISTRIBUTION]
    for module, where in {**own.optional, **own.imports}.items():
        if home := homes.get(module):
            for name in home:
                requesters.setdefault(name, f"{where}, which imports {module},")
        elif module in own.imports:
            raise _without_home(module, where)
    for name in also:
        requesters.setdefault(name, "--also")
    return requesters


def _without_home(module: str, where: str) -> Exception:
    spec = importlib.util.find_spec(module)
    if spec is None:
        return NotFoundError(
            f"{where} imports {module}, which is not installed here: install it, or put it beside the pipeline's file, "
            "then package again"
        )
    place = spec.origin or ", ".join(spec.submodule_search_locations or ())
    return UsageError(
        f"{where} imports {module} from {place}, which no installed distribution has: put it beside the pipeline's file, "
        "or install it with pip"
    )


def _environment(needed: Sequence[NeededDistribution], *, include_python: bool) -> Iterable[ArchiveEntry]:
    yield launcher(included=include_python)
    yield ArchiveEntry(LOCK, lock(needed).encode())
    for each in needed:
        yield from files_of(each)
    if include_python:
        yield from interpreter()


def _try_package(request: Request, environment: Archive, pipeline: Archive, content: ArchiveContent) -> None:
    """Tries the new archives. If they do not work, it deletes them, so that nobody uses them."""
    packed = {entry.name.split("/")[1].removesuffix(".py") for entry in content.entries if "/" in entry.name}
    try:
        spec = f"{request.file.name}:{request.name}"
        try_out(environment.path, pipeline.path, spec, sorted(packed & _modules()))
    except BaseException:  # also after an interrupted trial
        for archive in (environment, pipeline):
            if archive.made:
                archive.path.unlink()
        raise


def _modules() -> set[str]:
    return {name for name in metadata.packages_distributions() if name.isidentifier()}


def _document(
    request: Request,
    hosts: Hosts,
    host_demands: Demands,
    needed: Sequence[NeededDistribution],
    environment: Archive,
    pipeline: Archive,
) -> dict[str, Any]:
    from stateflow.spark.session.jars import packages

    return {
        "format": FORMAT,
        "pipeline": request.name,
        "file": request.file.name,
        "stateflow": installed_version(),
        "python": {
            "version": platform.python_version(),
            "implementation": sys.implementation.name,
            "included": request.include_python,
        },
        "platform": {
            "system": sys.platform,
            "machine": hosts.machine,
            "glibc": version_text(host_demands.glibc) if host_demands.glibc != (0, 0) else None,
            "libraries": list(host_demands.libraries),
        },
        "spark": metadata.version("pyspark"),
        "from_spark": sorted(FROM_SPARK),
        "packages": list(packages()),
        "requirements": {each.name: each.version for each in needed},
        "archives": {"environment": _archive_document(environment), "pipeline": _archive_document(pipeline)},
        "conf": settings(str(environment.path), str(pipeline.path)),
    }


def _archive_document(archive: Archive) -> dict[str, Any]:
    return {
        "file": archive.path.name,
        "size": archive.size,
        "sha256": archive.sha256,
        "content": archive.fingerprint,
        "files": archive.files,
        "unpacked": archive.unpacked,
    }


def _write(path: Path, text: str) -> None:
    with whole_file(path) as file:
        file.write(text.encode())
