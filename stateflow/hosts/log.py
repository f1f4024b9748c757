"""The log of a host. A disk without room for it must not end those who write there, and with them all runs."""

from __future__ import annotations

import sys
import time
import traceback
from contextlib import suppress


def log(text: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        sys.stderr.flush()


def log_exception() -> None:
    """The one that is handled now, with where it comes from."""
    with suppress(OSError):
        traceback.print_exc()
