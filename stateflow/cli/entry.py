"""The `stateflow` command's beginning: a run on a warm host goes there before anything is imported that only other runs need."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path


def main() -> None:
    """The console script."""
    if (code := on_host(sys.argv[1:])) is not None:
        sys.exit(code)
    from stateflow.cli.main import app

    app(prog_name="stateflow")


def on_host(argv: Sequence[str]) -> int | None:
    """The exit code of a run that a host has carried out; None if none was asked to, or did not take it.

    A mistake in the arguments is none of this function's business: the command line says it in its own words.
    """
    if argv[:1] != ["run"] or {"--help", "-h", "--fresh"} & set(argv):
        return None
    from stateflow.config.options import load
    from stateflow.errors import StateflowError

    cli = {name: _following(argv, f"--{name.replace('_', '-')}") for name in ("host", "host_wait")}
    if "--host-only" in argv:
        cli["host_only"] = "true"
    try:
        options = load(cli=cli, folder=Path.cwd(), untrusted="leave out")
    except (StateflowError, OSError):
        return None
    if not options.host:
        return None
    return _carried_out(argv, options.host, options.host_wait.total_seconds(), only=options.host_only)


def _carried_out(argv: Sequence[str], name: str, wait: float, *, only: bool) -> int | None:
    from stateflow.hosts.client import NAME, Refused, hosts_folder, run_on, say

    if not NAME.fullmatch(name):
        return None
    try:
        return run_on(hosts_folder(os.environ) / name, argv, os.environ, wait=wait, only=only, say=say)
    except Refused as refusal:
        if only:
            say(f"stateflow: the host {name} does not take the run: {refusal}")
            return refusal.exit_code
        say(f"the host {name} does not take the run ({refusal}): starting a driver of its own")
        return None


def _following(argv: Sequence[str], flag: str) -> str | None:
    for at, word in enumerate(argv):
        if word == flag and at + 1 < len(argv):
            return argv[at + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None
