"""How many kills each commit of the library has seen: a file beside this one, for the rounds themselves stay on a machine."""

from __future__ import annotations

from pathlib import Path

import msgspec

FILE = Path(__file__).with_name("commits.json")


class Seen(msgspec.Struct, frozen=True):
    kills: int
    found: int
    """What was lost, doubled or left behind."""


def seen(file: Path = FILE) -> dict[str, Seen]:
    """By commit, the oldest first."""
    return msgspec.json.decode(file.read_bytes(), type=dict[str, Seen]) if file.exists() else {}


def keep(commit: str, now: Seen, file: Path = FILE) -> dict[str, Seen]:
    """The same with today's figures of one commit, which never shrink: another machine may have played more of it."""
    every = seen(file)
    before = every.pop(commit, Seen(0, 0))
    every[commit] = Seen(max(before.kills, now.kills), max(before.found, now.found))
    file.write_bytes(msgspec.json.format(msgspec.json.encode(every), indent=2) + b"\n")
    return every
