"""Azurite, the emulator of Azure's object store that some tests start: a pinned copy in the cache folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from scripts import npm

# The last one that runs on Node.js 18, which Debian 12 has.
VERSION = "3.35.0"
ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    cache = Path(os.environ.get("STATEFLOW_CACHE_DIR") or ROOT / ".cache").expanduser().absolute()
    target = cache / "azurite"
    stamp = target / f"version-{VERSION}"
    if stamp.is_file():
        return
    npm.ensure("azurite")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    print(f"-- azurite {VERSION} ...", flush=True)
    command = [
        "npm",
        "install",
        "--no-audit",
        "--no-fund",
        "--loglevel=error",
        "--prefix",
        str(target),
        f"azurite@{VERSION}",
    ]
    if subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode:
        shutil.rmtree(target, ignore_errors=True)
        sys.exit("azurite: npm could not install it: check npm's configuration, then run make azurite again")
    stamp.touch()


if __name__ == "__main__":
    main()
