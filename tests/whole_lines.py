"""Journals of long loops: a line is whole or not there."""

from __future__ import annotations

from pathlib import Path


def whole_lines(file: Path) -> list[bytes]:
    """The lines of a journal. Takes away the one during which its writer died."""
    if not file.exists():
        return []
    whole, _, half = file.read_bytes().rpartition(b"\n")
    if half:
        file.write_bytes(whole + b"\n" * bool(whole))
    return whole.split(b"\n") if whole else []
