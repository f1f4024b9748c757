"""MariaDB for the test of the recipe for MySQL: the one that the machine has, or Debian's package.

Its programs are enough, and this package has nothing else: no service, and no database.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SERVER = Path("/usr/sbin/mariadbd")
PACKAGES = ("mariadb-server-core", "mariadb-client-core")


def main() -> None:
    if SERVER.is_file():
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        without("it is not installed (Debian: apt-get install mariadb-server-core mariadb-client-core)")
    print("-- mariadb ...", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *PACKAGES]):
        process = subprocess.run(
            ["apt-get", *command],
            env=environment,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        if process.returncode:
            without(f"apt-get {command[0]} failed")


def without(reason: str) -> None:
    """Nobody needs it but one test, which is skipped then."""
    print(f"mysql: {reason}: the recipe for MySQL is going to be skipped", file=sys.stderr)
    sys.exit(0)


if __name__ == "__main__":
    main()
