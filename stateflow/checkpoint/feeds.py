"""Which record a feed's table is up to date with: it tells whether the state has changed since without a batch. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stateflow.format.records import Record


def told_until(parent: Record, last_commits: Mapping[str, int], sinks: Iterable[str]) -> dict[str, int]:
    """By sink of a feed the slot whose state it shows, when the next batch continues `parent`. Without those that have nothing of this job.

    A slot lies below `parent.cut` if a restore has put another state in place since and left the sinks alone. A restore that takes a sink
    back counts as output of it. The record on its way counts as delivered: the batch behind it tells nothing again.
    """
    slots = {uid: parent.slot if uid in parent.sinks else last_commits.get(uid) for uid in sinks}
    return {uid: slot for uid, slot in slots.items() if slot is not None}


def behind(told: Mapping[str, int], parent: Record) -> list[str]:
    """The sinks for which a restore or a rescale stands between what they show and the state."""
    return [uid for uid, slot in told.items() if slot < parent.cut]
