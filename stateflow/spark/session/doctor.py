"""Checks what a run needs. Each finding names the check, what it found, and what to do."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from stateflow.config.file import FILE_VARIABLE, configuration_file
from stateflow.config.options import DECLARATIONS, GUARDED, Options, cache_of, scratch_parent
from stateflow.distribution import DISTRIBUTION
from stateflow.errors import StateflowError
from stateflow.spark.session.jars import packages, recorded_jars
from stateflow.spark.session.java import SUPPORTED, find_java
from stateflow.spark.session.lacking import felt
from stateflow.spark.session.versions import (
    installed,
    misfit,
    requirements,
    supported_pythons,
    tested,
    with_client,
)
from stateflow.storage.local import no_folder
from stateflow.storage.probe import probe_root
from stateflow.storage.roots import open_store

Verdict = Literal["ok", "warn", "fail"]

PACKAGES = (DISTRIBUTION, "pyspark", "delta-spark", "pyarrow", "rocksdict", "obstore", "msgspec")
CONNECTORS = {
    "psycopg": ("postgres", "sf.postgres"),
    "confluent-kafka": ("kafka", "sf.kafka as a target"),
    "pyiceberg": ("iceberg", "sf.iceberg"),
}
"""Packages that only a connector needs: the extra that has each, and what needs it."""
TIGHT, LITTLE = 1 << 30, 5 << 30
CREDENTIALS: Mapping[str, tuple[str, ...]] = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE",
           "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY"),
    "az": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE"),
}  # fmt: skip
_FAMILY = {"s3a": "s3", "s3n": "s3", "azure": "az", "abfs": "az", "abfss": "az", "adl": "az"}


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    check: str
    verdict: Verdict
    found: str
    next_step: str = ""


def examine(
    options: Options,
    *,
    ids: Callable[[], str],
    env: Mapping[str, str] = os.environ,
    mounts: Path = Path("/proc/mounts"),
) -> Iterator[DoctorFinding]:
    """All checks that need no Spark."""
    # Where a run looks, `~` and all; STATEFLOW_CACHE_DIR counts if no layer has set the option.
    cache, scratch = cache_of(options, env), scratch_parent(options, env)
    yield _python(platform.python_version(), supported_pythons())
    yield from _packages()
    yield from _connectors()
    yield _java(cache, env)
    yield _jars(cache)
    yield _space("cache folder", cache)
    yield _space("scratch folder", scratch)
    yield from _root(options, ids, env, mounts)


def configuration(env: Mapping[str, str], folder: Path) -> Iterator[DoctorFinding]:
    """Which file of options a command in `folder` reads, and whether its guarded options count."""
    file = configuration_file(env, folder, GUARDED)
    if file is None:
        return
    check = "configuration file"
    names = ", ".join(name for name, _ in file.guarded)
    if file.standing == "named":
        yield DoctorFinding(check, "ok", f"{file.path}, named by {FILE_VARIABLE}")
    elif not names:
        yield DoctorFinding(check, "ok", f"{file.path}, which decides nothing that needs trust")
    elif not file.untrusted:
        yield DoctorFinding(check, "ok", f"{file.path}, trusted for its {names}")
    else:
        what, _, step = str(
            file.refusal([name for name in DECLARATIONS if name in file.untrusted])
        ).partition(": ")
        yield DoctorFinding(check, "warn", f"{what}; doctor leaves that out", step)


def _python(version: str, tested: Sequence[str]) -> DoctorFinding:
    summary = f"{version} ({sys.executable})"
    if version.rpartition(".")[0] in tested:
        return DoctorFinding("python", "ok", summary)
    return DoctorFinding("python", "warn", summary, f"tested with {', '.join(tested)}: take one of these")


def _packages() -> Iterator[DoctorFinding]:
    """A line for each package that a run rests on, and for every other one that does not fit."""
    asked = requirements()
    versions = installed((*PACKAGES, *asked, "pyspark-client"))
    for name in dict.fromkeys((*PACKAGES, *asked, *versions)):
        if name not in versions:
            yield DoctorFinding(name, "fail", "not installed", f"pip install {tested(name)}")
        elif instead := misfit(name, versions, asked):
            # A client of another version has overwritten files of pyspark.
            verdict: Verdict = "fail" if name == "pyspark-client" else "warn"
            advice = f"pip install '{instead}', or test before you rely on it"
            if verdict == "fail":
                spark = f"pyspark=={with_client(versions['pyspark'])}"
                advice = f"pip install --force-reinstall --no-deps '{instead}' '{spark}'"
            yield DoctorFinding(name, verdict, versions[name], advice)
        elif name in PACKAGES:
            yield DoctorFinding(name, "ok", versions[name])
            if name == "pyspark":
                # Most pipelines need none of it.
                yield from (
                    DoctorFinding(f"spark before {lack.since}", "ok", f"without {lack.what}", lack.instead)
                    for lack in felt(versions[name])
                )


def _connectors() -> Iterator[DoctorFinding]:
    """A line for each package of a connector. That one is missing is no fault: no pipeline may need it."""
    versions = installed(CONNECTORS)
    for name, (extra, user) in CONNECTORS.items():
        if name in versions:
            yield DoctorFinding(name, "ok", versions[name])
        else:
            step = f"if a pipeline writes there: pip install '{DISTRIBUTION}[{extra}]'"
            yield DoctorFinding(name, "ok", f"not installed, and only {user} needs it", step)


def _java(cache: Path, env: Mapping[str, str]) -> DoctorFinding:
    home = find_java(cache, env)
    if home is None:
        versions = " or ".join(map(str, SUPPORTED))
        return DoctorFinding(
            "java",
            "fail",
            "none that Spark runs on",
            f"install Java {versions}, or run `python -m stateflow.spark.session.java`",
        )
    return DoctorFinding("java", "ok", f"{_java_version(home)} ({home})")


def _java_version(home: Path) -> str:
    try:
        text = (home / "release").read_text(encoding="utf-8")
    except OSError:
        return "found"
    lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return lines.get("JAVA_VERSION", "found").strip('"')


def _jars(cache: Path) -> DoctorFinding:
    jars = recorded_jars(cache)
    names = ", ".join(packages())
    if not jars:
        return DoctorFinding(
            "jars",
            "warn",
            f"{names} not resolved yet",
            "the first run does it; `python -m stateflow.spark.session.jars` at once",
        )
    return DoctorFinding("jars", "ok", f"{names}: {len(jars)} files in {jars[0].parent}")


def _space(check: str, folder: Path) -> DoctorFinding:
    there = folder
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    summary = f"{folder}, {free / (1 << 30):.1f} GB free"
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        return DoctorFinding(
            check, "fail", f"{folder} cannot be written to ({error.strerror})", f"set {check.split()[0]}_dir"
        )
    if free < TIGHT:
        return DoctorFinding(
            check, "fail", summary, f"free space there, or set {check.split()[0]}_dir to another disk"
        )
    if free < LITTLE:
        return DoctorFinding(
            check, "warn", summary, "state that a task has open, and what is cached, has to fit"
        )
    return DoctorFinding(check, "ok", summary)


def _root(
    options: Options, ids: Callable[[], str], env: Mapping[str, str], mounts: Path
) -> Iterator[DoctorFinding]:
    url = options.checkpoint_dir
    if not url:
        yield DoctorFinding(
            "checkpoint root", "warn", "not set",
            "give --checkpoint-dir, set STATEFLOW_CHECKPOINT_DIR, or write checkpoint_dir into stateflow.toml",
        )  # fmt: skip
        return
    scheme = urlsplit(url).scheme if "://" in url else ""
    family = _FAMILY.get(scheme, scheme)
    if family in CREDENTIALS:
        yield _credentials(family, options, env)
    try:
        store = open_store(url, options.storage_options, fsync=options.local_fsync)
        folder = store.local_root
        if folder is not None:
            yield from _nfs(folder, mounts, shared=options.shared_filesystem)
        if folder is not None and not folder.is_dir():
            yield _absent(folder)
            return
        store.list("probe-")
        yield DoctorFinding("checkpoint root", "ok", f"{store.url} can be reached")
        probe_root(store, ids)
    except StateflowError as error:
        advice = (
            "check the address, the network and storage_options"
            if error.exit_code == 9
            else "see the message"
        )
        yield DoctorFinding("checkpoint root", "fail", str(error), advice)
        return
    yield DoctorFinding(
        "conditional writes", "ok", "a second create of one path is refused, one after another and at once"
    )


def _nfs(folder: Path, mounts: Path, *, shared: bool) -> Iterator[DoctorFinding]:
    """An NFS mount that holds the root and shows a folder as it was up to a minute ago. Then a collection of one host misses the pin that
    another one has just made."""
    if not mounts.exists():
        return
    place, kind, cached = Path("/"), "", ""
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        _, point, its_kind, its_options, *_ = line.split()
        its_place = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point))
        if folder.resolve().is_relative_to(its_place) and its_place.is_relative_to(place):
            place, kind, cached = its_place, its_kind, its_options
    if kind.startswith("nfs") and not {"noac", "acdirmax=0"} & set(cached.split(",")):
        yield DoctorFinding(
            "nfs", "fail" if shared else "warn",
            f"{place} is an NFS mount that caches folders, so hosts that share {folder} may collect a checkpoint that another one has just tagged",
            "mount it with actimeo=0 on every host",
        )  # fmt: skip


def _absent(folder: Path) -> DoctorFinding:
    """The folder of a root that is none yet, and whether a run can make it."""
    if (standing := no_folder(folder)) is not None:
        leads = f", and leads to {os.path.realpath(standing)}, which is none" if standing.is_symlink() else ""
        return DoctorFinding(
            "checkpoint root", "fail", f"{standing} is no folder{leads}", "make it one, or set checkpoint_dir to another folder"
        )  # fmt: skip
    above = next(each for each in folder.parents if each.is_dir())
    if not os.access(above, os.W_OK | os.X_OK):
        return DoctorFinding(
            "checkpoint root", "fail", f"{folder} does not exist, and nothing may be made in {above}",
            f"grant the right to write into {above}, or set checkpoint_dir to another folder",
        )  # fmt: skip
    return DoctorFinding("checkpoint root", "warn", f"{folder} does not exist", "the first run creates it")


def _credentials(family: str, options: Options, env: Mapping[str, str]) -> DoctorFinding:
    """Shows names only: values never leave the configuration."""
    names = sorted(options.storage_options)
    variables = [name for name in CREDENTIALS[family] if env.get(name)]
    parts = [f"storage_options: {', '.join(names)}"] if names else []
    parts += [f"environment: {', '.join(variables)}"] if variables else []
    if parts:
        return DoctorFinding("credentials", "ok", "; ".join(parts) + " (values not shown)")
    return DoctorFinding(
        "credentials",
        "warn",
        "none set",
        "fine on a machine with a role of its own; else set storage_options",
    )
