"""Azurite, the emulator of Azure's object store that some tests start: what the lock names, in the cache folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from scripts import npm

ROOT = Path(__file__).resolve().parents[1]
# Version 3.35.0 is the last one that runs on Node.js 18, which Debian 12 has. For another one, change package.json and run
# `npm install --package-lock-only --omit-lockfile-registry-resolved` in that folder.
LOCK = ROOT / "scripts/npm_locks/azurite"
FILES = ("package.json", "package-lock.json")


def main() -> None:
    # npm takes a folder that is reached through a link for another one, in which the lock does not count.
    cache = Path(os.environ.get("STATEFLOW_CACHE_DIR") or ROOT / ".cache").expanduser().resolve()
    target = cache / "azurite"
    stamp = target / f"lock-{hashlib.sha256((LOCK / FILES[1]).read_bytes()).hexdigest()[:16]}"
    if stamp.is_file():
        return
    npm.ensure("azurite")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for file in FILES:
        shutil.copyfile(LOCK / file, target / file)
    print("-- azurite ...", flush=True)
    if subprocess.run(command(target), check=False, stdin=subprocess.DEVNULL).returncode:
        shutil.rmtree(target, ignore_errors=True)
        sys.exit("azurite: npm could not install it: check npm's configuration, then run make azurite again")
    stamp.touch()


def command(folder: Path) -> list[str]:
    """`ci` installs what the lock names, compares each archive with its hash, and changes no lock. A package's own scripts
    do not run."""
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    return ["npm", "ci", *options, "--prefix", str(folder)]


if __name__ == "__main__":
    main()
