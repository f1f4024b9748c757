"""The entries under each of many prefixes, by one iterator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


def under(at: Any, begins: Sequence[bytes]) -> Iterator[list[tuple[bytes, bytes]]]:
    """The entries under each prefix; the prefixes are sorted, and none begins another."""
    step, key_of, value_of, seek = at.next, at.key, at.value, at.seek
    current: bytes | None = b""
    for begin in begins:
        if current is not None and current < begin:
            seek(begin)
            current = key_of()
        entries = []
        while current is not None and current.startswith(begin):
            entries.append((current, value_of()))
            step()
            current = key_of()
        yield entries
    # An iterator ends silently at a damaged block; its status reports it.
    at.status()
