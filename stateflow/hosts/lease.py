"""The lease of a host: it drains when nobody has renewed it for so long. Whoever keeps a host may be gone for ever.

The time of the last renewal is that of a file in the host's folder.
"""

from __future__ import annotations

from pathlib import Path

RENEWED = "renewed"


def renew(folder: Path) -> None:
    (folder / RENEWED).touch(mode=0o600)


def has_lapsed(folder: Path, lease: float, now: float) -> bool:
    """`lease`: in seconds; 0 never lapses. `now`: in seconds since 1970, by the clock of the folder's disk."""
    if not lease:
        return False
    try:
        return now - (folder / RENEWED).stat().st_mtime > lease
    except OSError:
        return True
