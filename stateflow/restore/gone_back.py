"""Finds the jobs that have gone back already in a restore of several jobs that was cut off.

The record of each restore notes the digest of the whole and that of its own plan. So a repetition can tell whether what is done and
what is left make up what was approved. Of one job the two are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stateflow.checkpoint.statistics import HistoryLine
from stateflow.restore.digest import DIGEST

_NOTE = "together"


@dataclass(frozen=True, slots=True)
class GoneBack:
    """A restore that is one of several."""

    plan: str
    """The digest of its plan."""
    finished: bool
    """Whether its record is carried out, too."""


def note(together: str, plan: str) -> dict[str, Any]:
    """What the record's statistics say. `together`: the digest of the whole; empty for a restore of one job."""
    return {_NOTE: {"digest": together or plan, "plan": plan}}


def noted_digest(line: HistoryLine) -> str:
    """The digest of the whole that a restore's record notes; empty if it notes none, as those of earlier versions do."""
    noted = line.metrics.get(_NOTE)
    found = noted.get("digest") if isinstance(noted, Mapping) else None
    return found if isinstance(found, str) else ""


def find_gone_back(lines: Iterable[HistoryLine], together: str) -> GoneBack | None:
    """The newest restore of a job's history that was one of those."""
    for line in reversed(list(lines)):
        noted = line.metrics.get(_NOTE)
        # Other programs may have written anything there.
        if line.kind != "restore" or not isinstance(noted, Mapping) or noted.get("digest") != together:
            continue
        plan = noted.get("plan")
        if isinstance(plan, str) and DIGEST.fullmatch(plan):
            return GoneBack(plan, line.status != "IN_PROGRESS")
    return None
