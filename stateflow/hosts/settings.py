"""What a host was started with, and what lies in its folder."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import msgspec

from stateflow.errors import NotFoundError, UsageError
from stateflow.hosts.client import CURRENT, KEEPER, NAME, hosts_folder, not_a_name
from stateflow.private_folders import make_private
from stateflow.quantities import size, written_duration

SETTINGS = "settings.json"


class HostSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The choices of who started a host. A replacement begins with the same."""

    master: str | None = None
    conf: dict[str, str] = {}
    places: int = 4
    warms: bool = True
    """Whether an application carries out a small pipeline before it takes runs."""
    recycle_runs: int = 2000
    """Runs after which the host replaces its Spark application."""
    recycle_growth: float = 1.0
    """Growth of its memory since it was warm, as a part of what it was, after which it does so."""
    drain_timeout: float = 600.0
    """Seconds that the runs of an application that drains have to end by themselves, and then to end their batch."""
    lease: float = 0.0
    """Seconds after which the host drains if nobody has renewed its lease; 0: it stays until it is told to end."""


def differences(running: HostSettings, asked: HostSettings) -> list[str]:
    """How a host that runs is another one than what is asked for, as the command line says it: `--runs 4, not 8`. Pure.

    How it was started is none of that: whether it was warm at once says nothing of it now. Values of Spark's settings may be secrets.
    """
    memory = "spark.driver.memory"
    pairs = (
        ("--master", running.master, asked.master),
        ("--runs", running.places, asked.places),
        ("--memory", running.conf.get(memory), asked.conf.get(memory)),
        ("--recycle-runs", running.recycle_runs, asked.recycle_runs),
        ("--recycle-growth", running.recycle_growth, asked.recycle_growth),
        ("--lease", _lease(running), _lease(asked)),
    )
    found = [
        f"{flag} {there or 'none'}, not {here or 'none'}" for flag, there, here in pairs if there != here
    ]
    others = {name for name, _ in running.conf.items() ^ asked.conf.items()} - {memory}
    return found + [f"{_how(name, running, asked)} --conf {name}" for name in sorted(others)]


def _how(name: str, running: HostSettings, asked: HostSettings) -> str:
    if name not in asked.conf:
        return "beside what is asked for"
    return "another" if name in running.conf else "no"


def _lease(settings: HostSettings) -> str:
    return written_duration(timedelta(seconds=settings.lease)) if settings.lease else ""


LEAST_MEMORY = 512 << 20
"""What Spark's driver starts with: 450 MiB, and what Java keeps of its heap for itself."""


def driver_memory(text: str, where: str) -> dict[str, str]:
    """The setting for a host's memory, written as Spark's `2g` or as '2 GB'. Empty for no text. `where`: how the user gives it."""
    if not text:
        return {}
    try:
        count = 0 if text.strip().isdecimal() else size(text)
    except ValueError:
        count = 0
    if not count:
        raise UsageError(
            f"{where} {text!r} is no amount of memory: write it with its unit, such as 2g or '2 GB'"
        )
    if count < LEAST_MEMORY:
        raise UsageError(f"{where} {text!r} is too little for Spark, which needs 512m at least: such as 2g")
    gib, rest = divmod(count, 1 << 30)
    written = f"{count >> 20}m" if rest else f"{gib}g"
    # As it is given, if Spark takes it so: a run that asks for the same finds the same.
    return {"spark.driver.memory": text if re.fullmatch(r"\d+[kmgt]", text) else written}


class Current(msgspec.Struct, frozen=True):
    """The Spark application of a host that takes runs now."""

    socket: str
    pid: int
    number: int
    since: float


class KeeperProcess(msgspec.Struct, frozen=True):
    """A process of this machine, told from a later one with the same number."""

    pid: int
    started: str


def folder_of(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of a host of this user, whether there is one or not."""
    if not NAME.fullmatch(name):
        raise UsageError(not_a_name(name))
    return hosts_folder(environ) / name


def names(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The hosts of this user that have a folder."""
    folder = hosts_folder(environ)
    return sorted(each.parent.name for each in folder.glob(f"*/{SETTINGS}")) if folder.is_dir() else []


def write(folder: Path, file: str, body: msgspec.Struct) -> None:
    """Writes the whole file or none of it, for this user alone: settings of Spark may be secrets."""
    make_private(folder)
    part = folder / f"{file}.part"
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(msgspec.json.encode(body))
    part.rename(folder / file)


def read_settings(folder: Path) -> HostSettings:
    try:
        return msgspec.json.decode((folder / SETTINGS).read_bytes(), type=HostSettings)
    except FileNotFoundError:
        raise NotFoundError(
            f"there is no host {folder.name!r}: see `stateflow host list`, or start it with `stateflow host start {folder.name}`"
        ) from None


def read_keeper(folder: Path) -> KeeperProcess | None:
    try:
        return msgspec.json.decode((folder / KEEPER).read_bytes(), type=KeeperProcess)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def forget(folder: Path) -> None:
    """Removes what a host that has ended has left, apart from its log and its settings."""
    for file in (CURRENT, KEEPER):
        (folder / file).unlink(missing_ok=True)
    for each in folder.glob("application-*"):
        shutil.rmtree(each, ignore_errors=True)
