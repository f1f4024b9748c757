"""What one process that follows a driver hands to the next one: a worker to the triggerer, and the triggerer back.

The names of its fields are frozen: a task may be deferred by one version and resumed by the next.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stateflow.checkpoint.control import RunOutcome


class Handover(msgspec.Struct, frozen=True, omit_defaults=True):
    above: int
    """The run that is followed has a higher epoch than this."""
    reattached: bool = False
    """An earlier try started the driver."""
    folder: str = ""
    """The driver's folder on its host; empty when only its heartbeat is followed."""
    given_up: str = ""
    """Why the driver counts as lost."""
    outcome: RunOutcome | None = None
    """How the run ended, as far as the earlier process saw."""
    counter: tuple[int, int] | None = None
    """Epoch and count of the newest heartbeat that was seen."""
    busy_since: float | None = None
    """When this try first gave way to another run, in seconds since 1970; None once its own run has claimed the job."""

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document

    @classmethod
    def of(cls, document: dict[str, Any]) -> Handover:
        return msgspec.convert(document, cls, strict=False)
