"""Postgres for the story of Airflow with a real database: the one that the machine has, or Debian's package.

Its programs are enough: the test makes a database of its own. So the package makes none, and starts nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

from scripts import debian

PROGRAMS = Path("/usr/lib/postgresql")
SETTINGS = Path("/etc/postgresql-common/createcluster.conf")
OWN_DATABASE = "create_main_cluster"


def main() -> None:
    if find():
        return
    if not debian.can_install():
        without("it is not installed (Debian: apt-get install postgresql)")
    print("-- postgresql ...", flush=True)
    if reason := debian.install("postgresql-common"):
        without(reason)
    if SETTINGS.is_file():
        SETTINGS.write_text(without_database(SETTINGS.read_text(encoding="utf-8")), encoding="utf-8")
    if reason := debian.install("postgresql", update=False):
        without(reason)


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
