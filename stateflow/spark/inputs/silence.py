"""For how long each source is known to have had no rows. No I/O.

Only looking makes a source silent. A run that has read what a source had at some moment has looked into it until then. Nobody looks into a
source that a run leaves out, behind its bound, between two runs, or, in a run that ends by itself, at what has come since it began. So a
record says for each source until when somebody has looked, `looked`, and its silence, `silent`, grows as that goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from stateflow.format.records import Micros, Record, SourceState
from stateflow.format.source_offsets import kind_of

if TYPE_CHECKING:
    from stateflow.spark.sources.positions import Bound

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_READ_IN_PARTS = frozenset({"delta", "file", "kafka"})
"""Streams of which a batch may take a part that has no rows, such as an empty file, while rows wait behind it."""


def recorded_sources(record: Record | None) -> dict[str, SourceState]:
    """The sources of a job's newest record; none of a job without one. A record from before records said so has looked into each source until
    its `now`."""
    if record is None:
        return {}
    return {uid: _recorded(state, record.now) for uid, state in record.sources.items()}


def _recorded(state: SourceState, now: Micros) -> SourceState:
    if state.looked is not None:
        return state
    partitions = {
        name: msgspec.structs.replace(each, silent=_since(each.active, now))
        for name, each in state.partitions.items()
    }
    silent = _since(state.active, now)
    return msgspec.structs.replace(state, looked=now, silent=silent, partitions=partitions)


def _since(active: Micros | None, now: Micros) -> Micros:
    return 0 if active is None else max(0, now - active)


def looked_into(
    uids: Iterable[str],
    at: Micros,
    until: Bound | Mapping[str, Bound] | None,
    newest: Collection[str] = (),
) -> dict[str, Micros]:
    """Until when a run has looked into sources of which it has read what was there `at` a moment, up to its bound. A source without a
    bound is not read in a bounded run. When something followed a version is not known, so only the bounds of `newest` count, which
    were their tables' newest versions.
    """
    looked = {}
    for uid in uids:
        bound = until.get(uid) if isinstance(until, Mapping) else until
        if until is None or uid in newest:
            looked[uid] = at
        elif isinstance(bound, datetime) and bound.tzinfo is not None:  # its source refuses another one
            looked[uid] = min(at, (bound - _EPOCH) // timedelta(microseconds=1))
    return looked


def found_nothing(sources: Mapping[str, SourceState], looked: Mapping[str, Micros]) -> dict[str, SourceState]:
    """The sources once somebody has looked into those of `looked`, until then, and they had no rows."""
    return {
        uid: quiet_until(state, looked[uid]) if uid in looked else state for uid, state in sources.items()
    }


def quiet_until(state: SourceState, looked: Micros) -> SourceState:
    """A source that had no rows until then."""
    if state.looked is None:
        return msgspec.structs.replace(state, looked=looked)
    if (gained := gained_by(state, looked)) == 0:
        return state
    partitions = {
        name: msgspec.structs.replace(each, silent=each.silent + gained)
        for name, each in state.partitions.items()
    }
    return msgspec.structs.replace(state, looked=looked, silent=state.silent + gained, partitions=partitions)


def gained_by(state: SourceState, looked: Micros | None) -> Micros:
    """What looking until then adds to the silence of a source, or a partition of it, that had no rows."""
    return 0 if looked is None or state.looked is None else max(0, looked - state.looked)


def is_read_through(state: SourceState, before: SourceState | None, *, cuts_batches: bool = False) -> bool:
    """Whether a batch without rows of a source has read all that there was: not if it went on in it, and may have taken a part.
    `cuts_batches`: whether a connector's source may have ended the batch where more follows."""
    if before is not None and state.lines == before.lines:
        return True
    return not cuts_batches and not any(kind_of(line) in _READ_IN_PARTS for line in state.lines)


def is_idle(silent: Micros, idle_after: Micros) -> bool:
    """Whether a source, or a partition of it, has had no rows for `idle_after`; 0 is never."""
    return 0 < idle_after < silent


@dataclass
class Looking:
    """What a run knows of its sources by looking into them, query after query."""

    uids: tuple[str, ...]
    _interval: Micros | None = None
    """Of a query without end, how long nobody looks between two of its triggers; None: the query ends by itself."""
    _coming: dict[str, Micros] = field(default_factory=dict)
    """Until when the query that is under way will have looked, if it ends by itself."""
    _found: dict[str, Micros] = field(default_factory=dict)
    """Until when queries have looked that have read all up to their bounds."""
    _began: Micros = 0
    """When the query without end began."""
    _last_end: Micros | None = None
    """When the last batch of the query ended."""
    _waited: tuple[Micros, ...] = ()
    """When the query was last seen to wait for rows, since its last batch: three times at most."""

    def begin(self, coming: Mapping[str, Micros]) -> None:
        """A query begins that ends by itself: it reads what its sources have had until then."""
        self._coming, self._interval = dict(coming), None

    def begin_without_end(self, interval: Micros, now: Micros) -> None:
        """A query begins that looks again and again."""
        self._interval, self._began, self._last_end, self._waited = interval, now, None, ()

    def reached_end(self) -> None:
        """The query has ended, since there was nothing more up to its bounds."""
        self._found |= self._coming

    def was_idle(self, now: Micros) -> None:
        """The query waits for rows: it has looked, and there was nothing. It may wait since before `now`, if not by much."""
        self._waited = (*self._waited, now)[-3:]

    def ended_batch(self, now: Micros) -> None:
        """A batch has ended. While it ran nobody looked."""
        self._last_end, self._waited = now, ()

    def of_batch(self, planned: Micros) -> dict[str, Micros]:
        """Until when a batch looks into the sources that it reads. It was to begin when it was `planned`. The query had begun to look by
        then, perhaps long before: when it waited last, it had not."""
        if self._interval is None:
            return self._coming
        last = max(self._waited, default=self._began if self._last_end is None else self._last_end)
        return dict.fromkeys(self.uids, min(planned, last))

    def known(
        self, recorded: Mapping[str, SourceState], now: Micros, waiting: Collection[str] = ()
    ) -> dict[str, SourceState]:
        """The recorded sources as far as they are known `now`, before anything more is read of them. Nobody looks into those that are
        `waiting`."""
        seen = self._seen(recorded, now)
        return found_nothing(recorded, {uid: until for uid, until in seen.items() if uid not in waiting})

    def _seen(self, recorded: Mapping[str, SourceState], now: Micros) -> Mapping[str, Micros]:
        if self._interval is None:
            return self._found
        waited = self._waited
        if len(waited) < 3:
            return {}
        # A process that slept goes on with what it saw before, and a store may take long to answer: the clock alone says nothing. Who has
        # been seen to wait twice more has looked in between, and has found nothing of what was there by the first time.
        until = min(now, waited[0]) - self._interval
        if self._last_end is None:
            return dict.fromkeys(self.uids, until)
        # Since its last batch the query has looked at each trigger. The time of that batch counts when the next one has read.
        more = max(0, until - self._last_end)
        return {uid: state.looked + more for uid, state in recorded.items() if state.looked is not None}
