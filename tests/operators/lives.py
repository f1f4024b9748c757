"""How long entries with a ttl live: what models of operators say of it, and what the index of a shard says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar

from hypothesis import strategies as st

from stateflow.format.encoding import split, split_timer
from stateflow.format.expiry_blocks import is_block
from stateflow.format.records import Shard, StateSchema
from stateflow.state.expiry.ttl import Ttl, ttl
from tests.operators.ready.driving import END, SECOND

LATER = 10_000 * SECOND
"""By how much the clock goes on before the last batch: by then all is due."""


@dataclass(frozen=True, kw_only=True)
class Living:
    """What a release declares of a state."""

    ttl: int = 0
    """In microseconds; 0: it lives for ever."""
    renew: str = "write"
    time: str = "processing"
    existing: str = "keep"
    had_ttl: bool = False
    """An earlier release declared one."""

    @property
    def declared_ttl(self) -> Ttl | None:
        more = {"renew": self.renew, "time": self.time, "existing": self.existing}
        return ttl(timedelta(microseconds=self.ttl), **more) if self.ttl else None  # type: ignore[arg-type]


Declared = TypeVar("Declared", bound=Living)


@st.composite
def with_ttl(draw: Any, state: Declared) -> Declared:
    """A ttl that was taken out is refused ever after."""
    lengths = [0] if state.had_ttl and not state.ttl else [0, 3, 10, 10, 40]
    made: Declared = replace(
        state, ttl=draw(st.sampled_from(lengths)) * SECOND, renew=draw(st.sampled_from(["write", "read"])),
        existing=draw(st.sampled_from(["keep", "from now"])), had_ttl=state.had_ttl or state.ttl > 0,
    )  # fmt: skip
    return made


@dataclass
class Entry:
    value: Any
    expires: int | None
    """The end of time: it was written before there was a watermark."""


Place = tuple[Any, ...]
"""Which state an entry is of, and then its key."""


@dataclass(kw_only=True)
class Lives:
    """The entries of a model."""

    entries: dict[Place, Entry] = field(default_factory=dict)
    unswept: set[str] = field(default_factory=set)
    """States to whose entries a release has given a ttl."""
    now: int = 0
    mark: int | None = None

    @property
    def declared(self) -> Mapping[str, Living]:
        """The states that the code declares."""
        raise NotImplementedError

    def go_on(self, name: str, old: Living, new: Living) -> None:
        """A release that declares the state anew."""
        if new.ttl and (not old.ttl or (new.existing != "keep" and old.existing == "keep")):
            self.unswept.add(name)

    def _clock(self, state: Living) -> int | None:
        return self.now if state.time == "processing" else None if self.mark == END else self.mark

    def _until(self, state: Living) -> int | None:
        if not state.ttl:
            return None
        clock = self._clock(state)
        return END if clock is None else min(clock + state.ttl, END)

    def expire(self) -> None:
        """Before the rows of a batch."""
        for place, entry in list(self.entries.items()):
            state = self.declared.get(place[0])
            if state is None or not state.ttl or (clock := self._clock(state)) is None:
                continue
            if entry.expires is None and state.existing != "keep" and place[0] in self.unswept:
                entry.expires = self._until(state)
            if entry.expires == END and state.time == "event":
                entry.expires = self._until(state)
            if entry.expires is not None and entry.expires <= clock:
                del self.entries[place]
        self.unswept -= {name for name, state in self.declared.items() if self._clock(state) is not None}

    def put(self, place: Place, value: Any) -> None:
        self.entries[place] = Entry(value, self._until(self.declared[place[0]]))

    def see(self, places: Sequence[Place]) -> list[Any]:
        """The values, whose time may begin anew with that."""
        found = [self.entries[place] for place in places]
        for place, entry in zip(places, found, strict=True):
            state = self.declared[place[0]]
            if state.ttl and state.renew == "read":
                entry.expires = self._until(state)
        return [deepcopy(entry.value) for entry in found]


def check_indexes(
    keys: Iterable[bytes], shards: Sequence[Shard], schemas: Iterable[StateSchema], now: int, mark: int | None
) -> None:
    """No block stays that was due, and a shard tells when its first one is, or that there is none. A piece of a shard goes by what
    the whole told until that is due."""
    clocks = {"event": None if mark == END else mark, "processing": now}
    times = {schema.expiry_index: schema.ttl_time for schema in schemas if schema.expiry_index}
    blocks = [
        (parts.group, times[parts.state_id], split_timer(parts.body)[0])
        for parts in (split(key) for key in keys if is_block(key)) if parts.state_id in times
    ]  # fmt: skip
    for shard in shards:
        told = {"event": shard.next_event_expiry, "processing": shard.next_processing_expiry}
        for time, known in told.items():
            mine = (due for group, kind, due in blocks if kind == time and shard.first <= group <= shard.last)
            first, clock = min(mine, default=None), clocks[time]
            assert first is None or clock is None or first > clock, "no block stays that was due"
            if known != first:
                assert known is not None, "a shard without rows is opened for what expires"
                assert first is None or known < first, "a shard without rows is opened in time"
                assert clock is None or known > clock, "a shard that nothing expires of is opened no more"
