"""The `stateflow` command's beginning: a run on a warm host goes there before anything is imported that only other runs need."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from stateflow.cli.streams import open_unfailing

if TYPE_CHECKING:
    from stateflow.config.options import Options


def main() -> None:
    """The console script."""
    open_unfailing()
    if (code := on_host(sys.argv[1:])) is not None:
        sys.exit(code)
    from stateflow.cli.main import app

    app(prog_name="stateflow")


def on_host(argv: Sequence[str]) -> int | None:
    """The exit code of a run that a host has carried out; None if none was asked to, or did not take it.

    A mistake in the arguments is none of this function's business: the command line says it in its own words.
    """
    options = _naming_a_host(argv)
    if options is None:
        return None
    return _carried_out(argv, options.host, options.host_wait.total_seconds(), only=options.host_only)


def refuse_host(argv: Sequence[str]) -> int | None:
    """For a run that spark-submit has started with a Spark of its own: the exit code if nothing but a host may carry it out. Says it
    where it was asked to go to a host."""
    options = _naming_a_host(argv)
    if options is None:
        return None
    from stateflow.hosts.client import USAGE, say

    name, instead = options.host, f"use `stateflow run`, or launcher=WarmHost({options.host!r}) in a DAG"
    if not options.host_only:
        say(
            f"the host {name} is not asked, because spark-submit starts a driver of its own: for the host {instead}"
        )
        return None
    say(
        f"stateflow: spark-submit starts a driver of its own, and host_only, set by {options.origin('host_only')}, allows nothing but the "
        f"host {name}: {instead}, or set host_only to false there"
    )
    return USAGE


def _naming_a_host(argv: Sequence[str]) -> Options | None:
    """The options of a run that is to go to a host; None for anything else."""
    if argv[:1] != ["run"] or {"--help", "-h", "--fresh"} & set(argv):
        return None
    from stateflow.config.options import load
    from stateflow.errors import StateflowError

    try:
        options = load(cli=_of_hosts(argv), untrusted="leave out")
    except (StateflowError, OSError):
        return None
    return options if options.host else None


def _carried_out(argv: Sequence[str], name: str, wait: float, *, only: bool) -> int | None:
    from stateflow.hosts.client import NAME, Refused, hosts_folder, refusal_line, run_on, say

    if not NAME.fullmatch(name):
        return None
    try:
        return run_on(hosts_folder(os.environ) / name, argv, os.environ, wait=wait, say=say)
    except Refused as refusal:
        say(refusal_line(name, refusal, only=only))
        return refusal.exit_code if only else None


def _of_hosts(argv: Sequence[str]) -> dict[str, str]:
    """The options about hosts in a command line. What has an argument of its own wins over the same in `--option`, and the last one
    over others, as where all is read."""
    found = {}
    for word in _following(argv, "--option"):
        name, equals, value = word.partition("=")
        if equals and (option := name.strip().replace("-", "_")) in ("host", "host_wait", "host_only"):
            found[option] = value
    for option in ("host", "host_wait"):
        for value in _following(argv, f"--{option.replace('_', '-')}"):
            found[option] = value
    return {**found, "host_only": "true"} if "--host-only" in argv else found


def _following(argv: Sequence[str], flag: str) -> Iterator[str]:
    for at, word in enumerate(argv):
        if word == flag and at + 1 < len(argv):
            yield argv[at + 1]
        if word.startswith(f"{flag}="):
            yield word.partition("=")[2]
