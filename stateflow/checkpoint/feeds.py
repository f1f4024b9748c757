"""Which record a feed's table is up to date with: it tells whether the state has changed since without a batch. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stateflow.format.records import Record


def told_until(parent: Record, last_commits: Mapping[str, int], sinks: Iterable[str]) -> int | None:
    """The slot whose state the sinks of a feed show, when the next batch continues `parent`; None: they have nothing of this job.

    It lies below `parent.cut` if a restore has put another state in place since and left the sinks alone. A restore that takes a sink
    back counts as output of it. The record on its way counts as delivered: the batch behind it tells nothing again.
    """
    slots = [parent.slot if uid in parent.sinks else last_commits.get(uid) for uid in sinks]
    return max((slot for slot in slots if slot is not None), default=None)


def is_behind(told: int | None, parent: Record) -> bool:
    """Whether a restore or a rescale stands between what the sinks of a feed show and the state."""
    return told is not None and told < parent.cut
