"""MariaDB for the test of the recipe for MySQL: the one that the machine has, or Debian's package.

Its programs are enough, and this package has nothing else: no service, and no database.
"""

from __future__ import annotations

import sys
from pathlib import Path

from scripts import debian

SERVER = Path("/usr/sbin/mariadbd")
PACKAGES = ("mariadb-server-core", "mariadb-client-core")


def main() -> None:
    if SERVER.is_file():
        return
    if not debian.can_install():
        without("it is not installed (Debian: apt-get install mariadb-server-core mariadb-client-core)")
    print("-- mariadb ...", flush=True)
    if reason := debian.install(*PACKAGES):
        without(reason)


def without(reason: str) -> None:
    """Nobody needs it but one test, which is skipped then."""
    print(f"mysql: {reason}: the recipe for MySQL is going to be skipped", file=sys.stderr)
    sys.exit(0)


if __name__ == "__main__":
    main()
