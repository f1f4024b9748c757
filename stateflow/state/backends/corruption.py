"""Turns RocksDB's words about a failing disk or file into an error that says what to do."""

from __future__ import annotations

import re
from pathlib import Path

from stateflow.errors import CorruptError, StateflowError, UnavailableError

_FILE = re.compile(r"(?:\S*/)?((?:\d{6,}\.(?:sst|blob|ldb))|MANIFEST-\d+|CURRENT)")
_DAMAGE = (
    "corruption",
    "no such file",
    "not an sstable",
    "bad table magic",
    "checksum mismatch",
    "truncated",
)
_FULL = ("no space left", "disk quota exceeded")


def translated(error: Exception, directory: Path) -> StateflowError:
    """The error to raise instead of `error`, which RocksDB raised over `directory`."""
    if isinstance(error, StateflowError):
        return error
    text = str(error)
    lower = text.lower()
    if any(sign in lower for sign in _FULL):
        return UnavailableError(
            f"the disk of the scratch folder {directory} is full: free space there or choose another folder"
        )
    if any(sign in lower for sign in _DAMAGE):
        match = _FILE.search(text)
        name = match.group(1) if match else "a file"
        return CorruptError(
            f"the state file {name} is damaged or missing ({text}): run `stateflow verify` and restore an "
            "intact checkpoint"
        )
    return UnavailableError(f"the state database in {directory} failed: {text}; a retry may help")
