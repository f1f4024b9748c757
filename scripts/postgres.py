"""Postgres for the story of Airflow with a real database: the one that the machine has, or Debian's package.

Its programs are enough: the test makes a database of its own. So the package makes none, and starts nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAMS = Path("/usr/lib/postgresql")
SETTINGS = Path("/etc/postgresql-common/createcluster.conf")
OWN_DATABASE = "create_main_cluster"


def main() -> None:
    if find():
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        without("it is not installed (Debian: apt-get install postgresql)")
    print("-- postgresql ...", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["install", "-y", "-qq", "--no-install-recommends"]
    for command in (["update", "-qq"], [*install, "postgresql-common"], [*install, "postgresql"]):
        if command[-1] == "postgresql" and SETTINGS.is_file():
            SETTINGS.write_text(without_database(SETTINGS.read_text(encoding="utf-8")), encoding="utf-8")
        process = subprocess.run(
            ["apt-get", *command],
            env=environment,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        if process.returncode:
            without(f"apt-get {command[0]} failed")


def find() -> Path | None:
    """The folder of the newest version's programs."""
    programs = sorted(PROGRAMS.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return programs[-1].parent if programs else None


def without_database(settings: str) -> str:
    """The package's settings, in which somebody may have decided already."""
    lines = settings.splitlines()
    if any(line.strip().startswith(OWN_DATABASE) for line in lines):
        return settings
    return "\n".join([*lines, f"{OWN_DATABASE} = false", ""])


def without(reason: str) -> None:
    """Nobody needs it but one test, which is skipped then."""
    print(f"postgres: {reason}: the story with Postgres is going to be skipped", file=sys.stderr)
    sys.exit(0)


if __name__ == "__main__":
    main()
