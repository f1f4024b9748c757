"""The warnings of a run: each sentence goes to the log once, into every record from then on, and to the end of the run.

A run that is killed has no end. So the record of its next batch has the sentence, and the next run repeats the sentences of a
run that was killed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from stateflow.checkpoint.control import Heartbeat
from stateflow.checkpoint.log import Log

WARNINGS = "warnings"
"""The name among a record's statistics."""
_log = logging.getLogger(__name__)


class RunWarnings:
    """The warnings of one run, by their matter.

    A count grows from batch to batch: the log has its first sentence, the run's end its newest.
    """

    def __init__(self) -> None:
        self._by_subject: dict[str, str] = {}

    def add(self, about: str, sentence: str, in_log: str = "") -> None:
        """`about` names the matter, such as "source orders: unknown columns"; a later sentence about it takes the place of this one.

        `in_log` is what the log alone has besides: a key, which no record may keep."""
        if about not in self._by_subject:
            _log.warning("%s", f"{sentence} ({in_log})" if in_log else sentence)
        self._by_subject[about] = sentence

    def take_over(self, sentences: Iterable[str]) -> None:
        """The warnings of an earlier run. A sentence of this run about the same matter is another one: it counts other rows."""
        for sentence in sentences:
            self.add(sentence, sentence)

    @property
    def sentences(self) -> tuple[str, ...]:
        """In the order in which their matters came up."""
        return tuple(dict.fromkeys(self._by_subject.values()))

    def noted(self) -> dict[str, Any]:
        """For a record: the run's warnings so far."""
        sentences = self.sentences
        return {WARNINGS: list(sentences)} if sentences else {}


def unsaid(log: Log, epoch: int, heartbeat: Callable[[int], Heartbeat | None]) -> tuple[str, ...]:
    """The warnings of the runs before `epoch`. A run that ended well has printed its own, so those are left out."""
    newest = max(
        (r for r in log.chain if r.kind == "checkpoint" and r.epoch < epoch),
        key=lambda r: r.slot,
        default=None,
    )
    if newest is None or not (noted := newest.statistics.get(WARNINGS)):
        return ()
    # A run may have begun after that record, and have ended without another.
    said = any(_ended_well(heartbeat(each)) for each in {newest.epoch, epoch - 1})
    return () if said else tuple(map(str, noted))


def _ended_well(heartbeat: Heartbeat | None) -> bool:
    return heartbeat is not None and heartbeat.outcome is not None and heartbeat.outcome.exit_code == 0
