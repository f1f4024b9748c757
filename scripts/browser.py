"""Chromium for the tests of the pages: the one that the machine has, or Debian's package. Playwright's own is not fetched."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from pathlib import Path

from scripts import debian

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
# Without a font every letter is the same box, and no width is what it would be.
PACKAGES = ("chromium", "fonts-dejavu-core")


class NoBrowser(Exception):
    """One sentence: why there is none, and what to do."""


def main() -> None:
    try:
        print(ensure())
    except NoBrowser as reason:
        sys.exit(f"browser: {reason}")


def find() -> Path | None:
    named_program = os.environ.get("STATEFLOW_CHROMIUM")
    program = (
        shutil.which(named_program) if named_program else next(filter(None, map(shutil.which, NAMES)), None)
    )
    if named_program and not program:
        raise NoBrowser(f"STATEFLOW_CHROMIUM={named_program} is no program: correct it, or leave it out")
    return Path(program) if program else None


def ensure() -> Path:
    """The browser's program; installs it where that can be done without asking anybody."""
    return find() or _installed()


def _installed() -> Path:
    if not debian.can_install():
        raise NoBrowser(
            "no Chromium was found: install it (Debian: apt-get install chromium), or name one in STATEFLOW_CHROMIUM"
        )
    cache = Path(os.environ.get("STATEFLOW_CACHE_DIR") or ROOT / ".cache").expanduser().absolute()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "browser.lock").open("w") as lock:
        # Tests run in several processes, and apt is used by one at a time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program := find():
            return program
        print("-- chromium ...", file=sys.stderr, flush=True)
        if reason := debian.install(*PACKAGES):
            raise NoBrowser(f"{reason}: install chromium by hand, or try again later")
    if program := find():
        return program
    raise NoBrowser(
        "Debian's package chromium was installed and brings no program chromium: name one in STATEFLOW_CHROMIUM"
    )


if __name__ == "__main__":
    main()
