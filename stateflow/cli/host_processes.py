"""The two processes of a warm host besides Spark: `python -m stateflow.cli.host_processes keep FOLDER`, which reads the host's settings
from standard input and starts `... application FOLDER NUMBER`."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from stateflow.hosts import application, keeper
from stateflow.hosts.settings import HostSettings
from stateflow.hosts.starting import APPLICATION


def run(argv: list[str]) -> None:
    """The command line of a run, in the process that the host has forked for it."""
    from stateflow.cli.main import app

    app(prog_name="stateflow", args=argv)


def main() -> None:
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "keep":
        settings = msgspec.json.decode(sys.stdin.buffer.read(), type=HostSettings)
        sys.exit(keeper.keep(folder, APPLICATION, settings))
    application.serve(folder, int(sys.argv[3]), run)


if __name__ == "__main__":
    main()
