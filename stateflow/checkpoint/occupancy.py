"""Whether a run of somebody else lives, judged by looks that do not wait: for those who watch many jobs at once."""

from __future__ import annotations

from collections.abc import Callable

from stateflow.checkpoint.control import busy, newest_heartbeat, same_owner
from stateflow.errors import BusyError
from stateflow.format.layout import JobLayout
from stateflow.format.records import Owner
from stateflow.storage.store import Store


class Occupancy:
    """The looks of one observer. Only a counter that changes proves that a run lives, so the first look believes it."""

    def __init__(
        self,
        store: Store,
        layout: JobLayout,
        owner: Owner,
        *,
        patience: float,
        monotonic: Callable[[], float],
    ) -> None:
        """`owner`: the observer, whose own run is in nobody's way. `patience`: seconds without a change before a run counts as
        dead, unless it writes heartbeats more rarely."""
        self._store, self._layout, self._owner = store, layout, owner
        self._patience, self._monotonic = patience, monotonic
        self._seen: tuple[int, int] | None = None
        self._changed = 0.0

    def look(self) -> BusyError | None:
        """Who works on the job, as the error to raise; None when nobody does."""
        epoch, beat = newest_heartbeat(self._store, self._layout)
        if beat is None or beat.ended or same_owner(beat.owner, self._owner):
            return None
        now = self._monotonic()
        if self._seen != (epoch, beat.counter):
            self._seen, self._changed = (epoch, beat.counter), now
        lives = now - self._changed < beat.patience(self._patience)
        return busy(self._layout.job, epoch, beat.owner) if lives else None
