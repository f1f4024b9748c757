"""What a run has to say that is no error: each sentence goes to the log once, and to the end of the run."""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)


class RunWarnings:
    """The warnings of one run, by what they are about.

    A count grows from batch to batch: the log has its first sentence, the run's end its newest.
    """

    def __init__(self) -> None:
        self._by_subject: dict[str, str] = {}

    def add(self, about: str, sentence: str) -> None:
        """`about` names the matter, such as "source orders: unknown columns"; a later sentence about it takes the place of this one."""
        if about not in self._by_subject:
            _log.warning("%s", sentence)
        self._by_subject[about] = sentence

    @property
    def sentences(self) -> tuple[str, ...]:
        """In the order in which their matters came up."""
        return tuple(self._by_subject.values())
