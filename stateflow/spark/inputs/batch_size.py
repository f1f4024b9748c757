"""How much the next batch may take of each stream, so that a batch takes about `target_batch_duration`. No I/O.

A batch has costs of its own and costs per row: after a batch of `seconds` its size times `target / seconds` comes near the target
from one side, and never jumps over it. What is measured varies, so a batch near the target changes nothing, and of what is
missing, two thirds are made up for at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median
from typing import Any, Literal

from stateflow.format.records import MOST

Unit = Literal["rows", "bytes", "files"]

FIRST: Mapping[Unit, int] = {"rows": 10_000, "bytes": 1 << 20, "files": 1}
"""What a job's first batch may take of a stream."""
GROWTH = 2.0
"""The most that a batch may be larger than the last one."""
SHRINKING = 0.25
_CALM = (0.85, 1.1)
"""A batch that takes so much of the target is right."""
_DAMPING = 2 / 3
_FULL = 0.5
"""A source that took less of what it might than this had no more, and the size of its next batch shrinks from here."""
_APART = 1.25
"""Two batches of so different sizes show what a batch costs beside its rows."""
_OTHERWISE = 2.0
"""Two batches of about one size that differ by more were not made under the same conditions."""
_KEPT, _ENOUGH = 12, 4
"""So many batches are kept to learn from, and so few say nothing yet."""
_WORTH = 2.0


@dataclass(frozen=True, slots=True)
class Share:
    """What a batch may take of one stream, and what it took."""

    source: str
    unit: Unit
    most: int
    took: int | None = None
    """None while it is not known."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The rows and seconds of the last batches, which show what a batch costs beside its rows."""

    batches: tuple[tuple[int, float], ...] = ()

    def then(self, rows: int, seconds: float) -> Measured:
        """With one more batch. What others of about that size took is forgotten where it was something else: rows, or the machine, are not
        what they were."""
        fitting = [
            (others, took)
            for others, took in self.batches
            if max(rows, others) >= _APART * min(rows, others)
            or max(took, seconds) <= _OTHERWISE * min(took, seconds)
        ]
        return Measured((*fitting, (rows, seconds))[-_KEPT:])

    @property
    def fixed(self) -> float | None:
        """Seconds that a batch without rows would take; None until batches of different sizes have run.

        Other work on the machine makes some batches slow. Medians of what all pairs say do not follow them.
        """
        slopes = [
            (later - earlier) / (more - fewer)
            for (fewer, earlier), (more, later) in combinations(sorted(self.batches), 2)
            if more >= _APART * fewer
        ]
        if len(self.batches) < _ENOUGH or not slopes:
            return None
        per_row = max(0.0, median(slopes))
        alone = median(seconds - per_row * rows for rows, seconds in self.batches)
        return min(max(0.0, alone), *(seconds for _, seconds in self.batches))


@dataclass(frozen=True, slots=True)
class BatchSize:
    """What a batch may take of each stream, in the order of the plan."""

    shares: tuple[Share, ...]
    measured: Measured = Measured()

    def after(self, rows: int, seconds: float, target: float) -> BatchSize:
        """The size of the next batch, once a batch of this size has taken `seconds`."""
        if seconds <= 0 or not (rows or any(share.took for share in self.shares)):
            return self
        # A batch of which the source's own filter leaves no row tells nothing of the costs per row, but it has taken its time.
        measured = self.measured.then(rows, seconds) if rows > 0 else self.measured
        factor = _factor(seconds, reachable(target, measured))
        return BatchSize(
            tuple(replace(share, most=_next(share, factor), took=None) for share in self.shares), measured
        )

    def taken(self, took: Sequence[int | None]) -> BatchSize:
        """With what a batch took of each stream."""
        shares = tuple(replace(share, took=each) for share, each in zip(self.shares, took, strict=True))
        return replace(self, shares=shares)


def reachable(target: float, measured: Measured) -> float:
    """The duration that batches are made for. Where more than half of the target is what a batch costs beside its rows, smaller batches
    would only waste time: then a batch takes twice that cost."""
    fixed = measured.fixed
    return target if fixed is None else max(target, _WORTH * fixed)


def first_size(streams: Sequence[tuple[str, Unit]], noted: BatchSize | None) -> BatchSize:
    """The size that a run begins with: what the newest record has of the same streams, otherwise small."""
    known = {
        (share.source, number): share
        for number, share in _numbered(noted.shares if noted is not None else ())
    }
    fresh = [Share(source, unit, FIRST[unit]) for source, unit in streams]
    shares = [
        replace(share, most=before.most)
        if (before := known.get((share.source, number))) is not None and before.unit == share.unit
        else share
        for number, share in _numbered(fresh)
    ]
    return BatchSize(tuple(shares), noted.measured if noted is not None else Measured())


def note(size: BatchSize, target: float) -> dict[str, Any]:
    """As a record has it."""
    streams = [
        {"source": each.source, "unit": each.unit, "most": each.most}
        | ({"took": each.took} if each.took is not None else {})
        for each in size.shares
    ]
    noted: dict[str, Any] = {"target_ms": round(target * 1000), "streams": streams}
    if size.measured.batches:
        noted["batches"] = [[rows, round(seconds * 1000)] for rows, seconds in size.measured.batches]
    return noted


def size_of(noted: Any) -> BatchSize | None:
    """What `note` has made; None if it is something else, since a run may have noted anything."""
    try:
        shares = tuple(
            Share(str(each["source"]), each["unit"], _count(each["most"]), _count_or_none(each.get("took")))
            for each in noted["streams"]
        )
        seen = [(_count(rows), _count(ms) / 1000) for rows, ms in noted.get("batches", ())]
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    known = all(share.unit in FIRST for share in shares)
    return BatchSize(shares, Measured(tuple(seen[-_KEPT:]))) if known else None


def _next(share: Share, factor: float) -> int:
    took = share.took
    if not took:
        return share.most
    if factor > 1:
        # From what it took: a quiet source teaches nothing about a batch that is full.
        return min(MOST, max(share.most, int(took * factor)))
    if factor < 1:
        return max(1, min(share.most, int(max(took, share.most * _FULL) * factor)))
    return share.most


def _factor(seconds: float, target: float) -> float:
    if _CALM[0] <= seconds / target <= _CALM[1]:
        return 1.0
    return min(GROWTH, max(SHRINKING, math.pow(target / seconds, _DAMPING)))


def _numbered(shares: Sequence[Share]) -> list[tuple[int, Share]]:
    """Each share with its number among those of its source."""
    seen: dict[str, int] = {}
    numbered = []
    for share in shares:
        number = seen.get(share.source, 0)
        seen[share.source] = number + 1
        numbered.append((number, share))
    return numbered


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
        raise ValueError
    return value


def _count_or_none(value: Any) -> int | None:
    return None if value is None else _count(value)
