"""The lease of a host: it drains when nobody has renewed it for so long. Whoever keeps a host may be gone for ever.

The time of a file in the host's folder changes with each renewal.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

RENEWED = "renewed"


def renew(folder: Path) -> None:
    (folder / RENEWED).touch(mode=0o600)


class Lease:
    """When it was renewed last, by the clock of who looks: the machine's may be set, and the disk's may be another machine's."""

    def __init__(self, folder: Path, length: float, now: float) -> None:
        """`length`: in seconds; 0 never lapses. `now`, here and below: in seconds, by a clock that nobody sets."""
        self._file = folder / RENEWED
        self._length = length
        self._since = now
        self._seen = self._time()

    def has_lapsed(self, now: float) -> bool:
        if (seen := self._time()) != self._seen:
            self._seen, self._since = seen, now
        return 0 < self._length < now - self._since

    def _time(self) -> int:
        with suppress(OSError):
            return self._file.stat().st_mtime_ns
        return 0
