"""Folders for tests that make and remove thousands of them. On a disk each takes a millisecond, often more than what is tested."""

from __future__ import annotations

import os

IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""For `dir` of `tempfile`; None is the usual place."""
