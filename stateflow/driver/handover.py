"""What a process that watches a driver tells the next one, which takes up its watch: from a worker to the triggerer and back."""

from __future__ import annotations

from typing import Any

import msgspec

from stateflow.checkpoint.control import RunOutcome


class Handover(msgspec.Struct, frozen=True, omit_defaults=True):
    above: int
    """Runs up to this epoch were there before the one that is watched."""
    reattached: bool = False
    """The driver was an earlier try's."""
    folder: str = ""
    """Of the driver on its host; empty when it is followed by its heartbeat alone."""
    given_up: str = ""
    """Why the driver was taken for lost."""
    outcome: RunOutcome | None = None
    """How the run was seen to end."""
    counter: tuple[int, int] | None = None
    """The last sign that was seen of it: epoch and count."""

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        told: dict[str, Any] = msgspec.to_builtins(self)
        return told

    @classmethod
    def of(cls, told: dict[str, Any]) -> Handover:
        return msgspec.convert(told, cls, strict=False)
