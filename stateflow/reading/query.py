"""Point queries: what one state holds for one key, in a complete checkpoint or a native savepoint. No Spark.

A query fetches and opens only the shard that owns the key. After a rescale another shard may still hold old entries of the
key, so the logical range `first..last` alone decides which shard owns it.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stateflow.errors import CorruptError, IncompatibleError, NotFoundError, UsageError
from stateflow.format.encoding import (
    EMPTY_NAMESPACE,
    NAMESPACE,
    PREFIX_WIDTH,
    TIME_WIDTH,
    after,
    group_range,
    prefix,
    read_timestamp,
)
from stateflow.format.instants import instant, nearest_instant
from stateflow.format.keygroups import xxhash64
from stateflow.format.records import OperatorState, Record, Shard, StateSchema
from stateflow.reading.rows_of_joins import RowsOfJoin, rows_of_join
from stateflow.state.backends.base import OnePassShard, OpenShard, ReadShard
from stateflow.state.backends.openings import Opening, OpenShards
from stateflow.state.expiry.ttl import expired_until
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.keys.text import key_of_plain, key_of_text, text_of_key
from stateflow.state.values.evolution.versions import stored_reader
from stateflow.state.values.plain import jsonable
from stateflow.state.values.serializers import Serializer
from stateflow.storage.cache import FileCache
from stateflow.storage.scratch import new_scratch, remove_scratch, scratch_folder
from stateflow.storage.store import Store

LIMIT = 1000
"""Most entries of a list or map in one answer, by default."""
OPEN_SHARDS = 64
MOST_TIMES = 10_000
"""Most entries that a look-up in a state ordered by time finds, and most instants of a key group that it goes through, unless all is
asked for."""
EXPIRED_AT_ONCE = 10_000
"""Once it has a live entry, a look-up skips at most this many expired ones; then it says that there may be more."""
MOST_EXPIRED = 1_000_000
"""A look-up skips at most this many expired entries in front of the first live one; then it says that there may be more."""

What = Literal["value", "accumulator", "list", "map", "map entry", "timer", "columns"]
_WHAT: dict[str, What] = {
    "value": "value",
    "reducing": "accumulator",
    "aggregating": "accumulator",
    "list": "list",
    "map": "map",
    "timer": "timer",
    "columns": "columns",
}
_expiry = Serializer.expiry


@dataclass(frozen=True, slots=True)
class LookupResult:
    """What a state holds for a key."""

    found: bool
    """False when nothing was ever set, or it was cleared, or it has expired."""
    value: Any
    """None when there is nothing; an empty list or map for those kinds."""
    what: What
    """An accumulator is what `add` has gathered. Only the job's code can make the result of it."""
    more: bool = False
    """Whether a list or map has entries beyond the limit, or, where nothing was found, beyond the expired ones that were skipped."""

    @property
    def json(self) -> Any:
        """The value as JSON. A map becomes an object, with its keys as `--map-key` takes them."""
        if self.what == "map":
            return {text_of_key(key): jsonable(value) for key, value in self.value.items()}
        return jsonable(self.value)


@dataclass(frozen=True, slots=True)
class Target:
    """One state of one operator, with everything that a look-up needs."""

    operator: str
    name: str
    schema: StateSchema
    what: What
    key: Sequence[tuple[str, str]]
    codec: KeyCodec
    map_codec: KeyCodec | None
    max_parallelism: int
    state_id: int
    """The id in the entry's key. A timer has a second id, for its queue."""
    plain: Callable[[bytes], Any]
    shards: Sequence[Shard]
    firsts: Sequence[int]
    namespace_codec: KeyCodec | None = None
    rows: RowsOfJoin | None = None
    """How its entries become rows, where they are blocks of rows."""

    def place(self, key: Any, namespace: Any = None) -> tuple[int, bytes]:
        """Which shard owns the key, and its full key."""
        suffix = EMPTY_NAMESPACE if namespace is None else self._namespace(namespace)
        try:
            encoded = self.codec.encode(tuple(key) if isinstance(key, list) else key)
        except UsageError as error:
            raise UsageError(f"operator {self.operator!r}: {error}") from None
        # Hashed with its declared type, as the exchange hashes it.
        group = xxhash64(self.codec.decode(encoded, 0)[0]) % self.max_parallelism
        at = bisect_right(self.firsts, group) - 1
        if at < 0 or self.shards[at].last < group:
            raise CorruptError(
                f"no shard of operator {self.operator!r} owns key group {group}; run `stateflow verify`"
            )
        return at, prefix(group, self.state_id) + encoded + suffix

    def _namespace(self, namespace: Any) -> bytes:
        codec = self._namespaces
        try:
            return NAMESPACE + codec.encode(tuple(namespace) if isinstance(namespace, list) else namespace)
        except UsageError as error:
            raise UsageError(f"the namespace of state {self.name!r}: {error}") from None

    def namespace_of_text(self, text: str) -> Any:
        return key_of_text([("", kind) for kind in self._namespaces.types], text)

    @property
    def _namespaces(self) -> KeyCodec:
        if self.namespace_codec is None:
            raise UsageError(
                f"state {self.name!r} of operator {self.operator!r} has no namespaces: leave the namespace out"
            )
        return self.namespace_codec

    def entry(self, map_key: Any) -> bytes:
        """What follows the full key for one entry of a map."""
        codec = self._map_codec
        try:
            return codec.encode(tuple(map_key) if isinstance(map_key, list) else map_key)
        except UsageError as error:
            raise UsageError(f"the map key of state {self.name!r}: {error}") from None

    def key_of_plain(self, value: Any) -> Any:
        """The key from its JSON value."""
        return key_of_plain(self.key, value)

    def key_of_text(self, text: str) -> Any:
        return key_of_text(self.key, text)

    def map_key_of_plain(self, value: Any) -> Any:
        return key_of_plain([("", kind) for kind in self._map_codec.types], value)

    def map_key_of_text(self, text: str) -> Any:
        return key_of_text([("", kind) for kind in self._map_codec.types], text)

    @property
    def _map_codec(self) -> KeyCodec:
        if self.map_codec is None:
            raise UsageError(
                f"state {self.name!r} of operator {self.operator!r} is a {self.schema.kind} state and has no map keys: "
                "leave the map key out"
            )
        return self.map_codec

    def empty_result(self, suffix: bytes | None, *, more: bool = False) -> LookupResult:
        if suffix is not None:
            return LookupResult(False, None, "map entry")
        return LookupResult(
            False, [] if self.what == "list" else {} if self.what == "map" else None, self.what, more
        )


@dataclass(frozen=True, slots=True)
class StateSize:
    """What one state has in a snapshot. Bytes are those of keys and values, before a database compresses them."""

    operator: str
    state: str
    entries: int
    live_bytes: int
    expired_bytes: int
    """Bytes of entries that have expired; the next batches delete them."""
    index_bytes: int
    """The index of expiries, or the queue of a timer: it finds entries when their time has come."""


def unknown_operator(record: Record, uid: str, label: str = "") -> str:
    """What a user reads who asks a snapshot for an operator that it does not have."""
    named = label or f"checkpoint {record.slot}"
    if not record.operators:
        return f"{named} has no state of any operator: it was made before the first batch, or the pipeline keeps none"
    return f"{named} has no operator {uid!r}: its operators are {', '.join(sorted(record.operators))}"


class StateReader:
    """One record, open for look-ups from any number of threads. The caller keeps it from collection meanwhile."""

    def __init__(
        self,
        store_of: Callable[[str], Store],
        record: Record,
        *,
        cache: FileCache,
        scratch: Path,
        open_shard: Callable[[str], OpenShard],
        clock: Callable[[], int],
        shards: OpenShards | None = None,
        read_files: Callable[[Shard], ReadShard] | None = None,
    ) -> None:
        """`store_of` opens the store of a `FileRef.base`; `shards` may be shared with other readers. `read_files` reads a
        shard where its files are, in place of `open_shard`, which needs a folder for each."""
        self.record = record
        self._store_of, self._cache, self._scratch = store_of, cache, scratch
        self._open_shard, self._clock = open_shard, clock
        self._read_files = read_files
        self._shards = shards or OpenShards(OPEN_SHARDS)
        self._token = object()
        self._targets: dict[tuple[str, str], Target] = {}
        self._numbers = itertools.count()
        self._folder: Path | None = None
        self._making = threading.Lock()

    def get(self, operator: str, state: str, key: Any, map_key: Any = None, *, namespace: Any = None) -> Any:
        """The value, a whole list, a whole map, or one entry of a map; None when there is none."""
        return self.look_up(operator, state, key, map_key, namespace=namespace, limit=None).value

    def look_up(
        self,
        operator: str,
        state: str,
        key: Any,
        map_key: Any = None,
        *,
        namespace: Any = None,
        limit: int | None = LIMIT,
    ) -> LookupResult:
        """What the state holds now. It hides expired entries, as user code does not see them either. With None for the limit it finds
        all, however much that is."""
        target = self.target(operator, state)
        at, full = target.place(key, namespace)
        suffix = None if map_key is None else target.entry(map_key)
        if not target.shards[at].files:
            return target.empty_result(suffix)
        with self._reading(operator, at, target.shards[at]) as opening:
            return self._result(target, opening, full, suffix, limit)

    def look_up_in(
        self, shard: ReadShard, operator: str, state: str, key: Any, *, namespace: Any = None
    ) -> LookupResult:
        """What a look-up of the whole state of a key finds where `shard` has all its entries."""
        target = self.target(operator, state)
        opening = Opening()
        opening.backend = shard
        return self._result(target, opening, target.place(key, namespace)[1], None, None)

    def look_up_many(
        self,
        operator: str,
        state: str,
        keys: Sequence[Any],
        map_key: Any = None,
        *,
        limit: int | None = LIMIT,
        most: int | None = None,
    ) -> list[LookupResult]:
        """The results in the order of `keys`. It opens every shard once. UsageError when lists or maps together have more than
        `most` entries."""
        target = self.target(operator, state)
        suffix = None if map_key is None else target.entry(map_key)
        answers = [target.empty_result(suffix)] * len(keys)
        entries = 0
        placed = sorted((*target.place(key), i) for i, key in enumerate(keys))
        for shard, group in itertools.groupby(placed, key=lambda place: place[0]):
            if not target.shards[shard].files:
                continue
            with self._reading(operator, shard, target.shards[shard]) as opening:
                for _, full, i in group:
                    answers[i] = result = self._result(target, opening, full, suffix, limit)
                    entries += len(result.value) if result.what in ("list", "map") else 0
                    if most is not None and entries > most:
                        raise UsageError(
                            f"the answer would hold more than {most} entries: ask for fewer keys at once, or lower the limit"
                        )
        return answers

    def target(self, operator: str, state: str) -> Target:
        """The state with its declaration. NotFoundError names the states that exist."""
        target = self._targets.get((operator, state))
        if target is None:
            target = self._targets[operator, state] = self._make_target(operator, state)
        return target

    def open_shards(self) -> list[tuple[str, int, int]]:
        """The open shards as operator, first and last key group, the least recently used first."""
        return [key[1:] for key in self._shards.kept() if self._is_mine(key)]  # type: ignore[index]

    def warm(self, operator: str, first: int, last: int) -> None:
        """Opens the shards with key groups `first..last`, so that no query has to wait for that."""
        owner = self.record.operators.get(operator)
        for at, shard in enumerate(_flat(owner) if owner else ()):
            if shard.files and shard.first <= last and first <= shard.last:
                with self._reading(operator, at, shard):
                    pass

    def entries(self, operator: str, group: int, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """What one key group has as it is stored, from the key `begin` to `end`, exclusive."""
        for at, shard in enumerate(_flat(self.record.operators[operator])):
            if shard.files and shard.first <= group <= shard.last:
                with self._reading(operator, at, shard) as opening, opening.scanning:
                    yield from opening.backend.scan(begin, end)

    def sizes(self) -> list[StateSize]:
        """What every keyed state has, exactly. It reads the whole state, one shard after another."""
        return [
            size for uid, operator in self.record.operators.items() for size in self._sizes(uid, operator)
        ]

    def _sizes(self, uid: str, operator: OperatorState) -> list[StateSize]:
        counts = {
            name: StateCount(expired_until(schema, self.record.watermark, self._clock()))
            for name, schema in operator.states.items()
        }
        entries_of = {schema.id: counts[name] for name, schema in operator.states.items()}
        index_of = {s.expiry_index: counts[name] for name, s in operator.states.items() if s.expiry_index}
        # The queue of a timer has the next id, and tells of the same times.
        index_of |= {s.id + 1: counts[name] for name, s in operator.states.items() if s.kind == "timer"}
        for at, shard in enumerate(_flat(operator)):
            if shard.files:
                with self._reading(uid, at, shard) as opening, opening.scanning:
                    for key, raw in opening.backend.scan(*group_range(shard.first, shard.last)):
                        state_id = int.from_bytes(key[2:4], "big")
                        if state_id in entries_of:
                            entries_of[state_id].take(key, raw)
                        elif state_id in index_of:
                            index_of[state_id].index += len(key) + len(raw)
        return [
            StateSize(uid, name, count.entries, count.live, count.expired, count.index)
            for name, count in counts.items()
        ]

    def close(self) -> None:
        """Closes its shards. Nobody may be reading."""
        self._shards.drop(self._is_mine)
        with self._making:
            folder, self._folder = self._folder, None
        if folder is not None:
            remove_scratch(folder)

    def _result(
        self, target: Target, opening: Opening, full: bytes, suffix: bytes | None, limit: int | None
    ) -> LookupResult:
        if target.rows is not None and suffix is None:
            return _joined(target.rows, self._stored(target, opening, full, suffix, limit), target, limit)
        return self._stored(target, opening, full, suffix, limit)

    def _stored(
        self, target: Target, opening: Opening, full: bytes, suffix: bytes | None, limit: int | None
    ) -> LookupResult:
        now = expired_until(target.schema, self.record.watermark, self._clock())
        if target.schema.timed:
            with opening.scanning:
                return _at_times(target, opening.backend, full, now, limit)
        if target.schema.many and suffix is None:
            with opening.scanning:
                return _times(target, list(opening.backend.scan(full, after(full))), len(full), limit)
        if (target.schema.by or target.schema.kind in ("list", "map")) and suffix is None:
            with opening.scanning:
                entries, more = _live(opening.backend.scan(full, after(full)), now, limit)
            if not entries:
                return target.empty_result(suffix, more=more)
            return LookupResult(True, _gathered(target, len(full), entries), target.what, more)
        raw = opening.backend.get(full if suffix is None else full + suffix)
        if raw is None or has_expired(raw, now):
            return target.empty_result(suffix)
        return LookupResult(True, target.plain(raw), target.what if suffix is None else "map entry")

    def _make_target(self, operator: str, name: str) -> Target:
        owner = self.record.operators.get(operator)
        if owner is None:
            raise NotFoundError(unknown_operator(self.record, operator))
        schema = owner.states.get(name)
        if schema is None:
            if name in owner.operator_states:
                raise UsageError(
                    f"state {name!r} of operator {operator!r} belongs to subtasks, not to keys: read it as a table"
                )
            known = ", ".join(sorted(owner.states)) or "none"
            raise NotFoundError(
                f"operator {operator!r} has no state {name!r} in checkpoint {self.record.slot}: its states are {known}"
            )
        shards = _flat(owner)
        if schema.kind not in _WHAT:
            raise IncompatibleError(
                f"state {name!r} of operator {operator!r} is of kind {schema.kind[:80]!r}, which this stateflow does not know: a newer one "
                "wrote it, use that version"
            )
        timer, rows = schema.kind == "timer", rows_of_join(owner, name)
        is_list = schema.by or schema.many or schema.timed or (rows is not None and not rows.single)
        return Target(
            operator=operator,
            name=name,
            schema=schema,
            what="list" if is_list else _WHAT[schema.kind],
            key=owner.key,
            codec=KeyCodec([kind for _, kind in owner.key]),
            map_codec=KeyCodec(schema.map_key.split(",")) if schema.kind == "map" else None,
            max_parallelism=owner.max_parallelism,
            state_id=schema.id + timer,
            plain=_timer if timer else stored_reader(schema),
            shards=shards,
            firsts=[shard.first for shard in shards],
            namespace_codec=KeyCodec(schema.namespace.split(",")) if schema.namespace else None,
            rows=rows,
        )

    def _reading(self, operator: str, at: int, shard: Shard) -> AbstractContextManager[Opening]:
        key = (self._token, operator, shard.first, shard.last)
        return self._shards.reading(key, lambda: self._open_backend(shard))

    def _is_mine(self, key: Any) -> bool:
        return isinstance(key, tuple) and key[0] is self._token

    def _open_backend(self, shard: Shard) -> ReadShard:
        if self._read_files is not None:
            return self._read_files(shard)
        # The backend has its own links or copies of what is fetched when it is open.
        with scratch_folder(self._scratch) as fetched:
            fetch = self._cache.fetcher(self._store_of, fetched)
            return self._open_shard(shard.backend)(shard, self._directory(), fetch)

    def _directory(self) -> Path:
        with self._making:
            if self._folder is None:
                self._folder = new_scratch(self._scratch)
            return self._folder / str(next(self._numbers))


class StateCount:
    """Counts the entries of one state."""

    def __init__(self, clock: int | None) -> None:
        self._clock = clock
        self.entries = self.live = self.expired = self.index = 0

    def take(self, key: bytes, raw: bytes) -> None:
        self.entries += 1
        if has_expired(raw, self._clock):
            self.expired += len(key) + len(raw)
        else:
            self.live += len(key) + len(raw)


def key_from_text(operator: OperatorState, text: str) -> Any:
    """A key as a user types it: `42`; of several columns `a,7`, `["a", 7]` or `{"user": "a", "day": 7}`."""
    return key_of_text(operator.key, text)


def _flat(operator: OperatorState) -> list[Shard]:
    return sorted(operator.all_shards, key=lambda shard: shard.first)


def _joined(rows: RowsOfJoin, stored: LookupResult, target: Target, limit: int | None) -> LookupResult:
    """The rows of blocks; a block has at least one."""
    if not stored.found:
        return target.empty_result(None, more=stored.more)
    blocks = stored.value if isinstance(stored.value, list) else [stored.value]
    found = rows.of(blocks)
    if rows.single:
        return LookupResult(bool(found), found[0] if found else None, stored.what)
    return LookupResult(
        bool(found), found[:limit], "list", stored.more or (limit is not None and len(found) > limit)
    )


def has_expired(raw: bytes, now: int | None) -> bool:
    """Whether a stored value has a time to live that is over by now."""
    # Without a ttl in the declaration user code sees expired entries, and so does a query.
    return now is not None and (expiry := _expiry(raw)) is not None and expiry <= now


def _live(
    entries: Iterator[tuple[bytes, bytes]], now: int | None, limit: int | None
) -> tuple[list[tuple[bytes, bytes]], bool]:
    """Up to `limit` entries that have not expired, and whether there are more."""
    live: list[tuple[bytes, bytes]] = []
    expired = 0
    for key, raw in entries:
        if has_expired(raw, now):
            expired += 1
            if limit is not None and expired > (EXPIRED_AT_ONCE if live else MOST_EXPIRED):
                return live, True
        elif len(live) == limit:
            return live, True
        else:
            live.append((key, raw))
    return live, False


def _gathered(target: Target, begin: int, entries: Sequence[tuple[bytes, bytes]]) -> Any:
    plain = target.plain
    if target.schema.by:
        names = [name for name, _ in target.schema.by]
        by = _parts([kind for _, kind in target.schema.by])
        return [dict(zip(names, by(key, begin), strict=True)) | plain(raw) for key, raw in entries]
    if target.map_codec is None:
        return [plain(raw) for _, raw in entries]
    decode = target.map_codec.decode
    return {decode(key, begin)[0]: plain(raw) for key, raw in entries}


def _parts(types: Sequence[str]) -> Callable[[bytes, int], tuple[Any, ...]]:
    """The decoder that gives a key as a tuple of its parts, also a key of one part."""
    decode = KeyCodec(types).decode
    if len(types) > 1:
        return lambda key, at: decode(key, at)[0]
    return lambda key, at: (decode(key, at)[0],)


def _at_times(
    target: Target, backend: ReadShard, full: bytes, now: int | None, limit: int | None
) -> LookupResult:
    """The entries of a key in a state that is ordered by time, each with its time."""
    found: list[dict[str, Any]] = []
    most = None if limit is None else min(limit, MOST_TIMES)
    for own, stored in _by_time(target, backend, full, whole=limit is None):
        moment = {"at": nearest_instant(read_timestamp(own, PREFIX_WIDTH))}
        entries = _live(stored, now, None)[0]
        found += [moment | entry for entry in _gathered(target, len(own), entries)]
        if most is not None and len(found) > most:
            break
    if not found:
        return target.empty_result(None)
    return LookupResult(True, found[:most], target.what, most is not None and len(found) > most)


def _by_time(
    target: Target, backend: ReadShard, full: bytes, *, whole: bool
) -> Iterator[tuple[bytes, Iterator[tuple[bytes, bytes]]]]:
    """The entries of a key at each time, with what their keys begin with. A database goes on from each time that there is in the key
    group to the next one, whatever lies between. Behind very many times it goes through all that lies there if the `whole` is asked for,
    and else refuses."""
    begin, key = full[:PREFIX_WIDTH], full[PREFIX_WIDTH:]
    behind = PREFIX_WIDTH + TIME_WIDTH
    end, at, times = after(begin), begin, 0

    def grouped(
        of_key: Iterator[tuple[bytes, bytes]],
    ) -> Iterator[tuple[bytes, Iterator[tuple[bytes, bytes]]]]:
        return itertools.groupby(of_key, key=lambda entry: entry[0][: behind + len(key)])

    if isinstance(backend, OnePassShard):
        yield from grouped(backend.scan_parts(begin, end, behind, key))
        return
    while (first := next(iter(backend.scan(at, end)), None)) is not None:
        times += 1
        if times > MOST_TIMES and whole:
            yield from grouped(entry for entry in backend.scan(at, end) if entry[0].startswith(key, behind))
            return
        if times > MOST_TIMES:
            raise UsageError(
                f"state {target.name!r} of operator {target.operator!r} has entries of more than {MOST_TIMES:,} instants beside "
                "this key's: read it as a table, with `stateflow state export`"
            )
        time = first[0][:behind]
        own = time + key
        yield own, backend.scan(own, after(own))
        at = after(time)


def _times(
    target: Target, entries: Sequence[tuple[bytes, bytes]], at: int, limit: int | None
) -> LookupResult:
    """The times of a timer with many times per key. An entry from before the timer was declared with `many=True` has its time
    as the value."""
    times = sorted(
        {_timer(raw) if len(key) == at else instant(read_timestamp(key, at)) for key, raw in entries}
    )
    if not times:
        return target.empty_result(None)
    return LookupResult(True, times[:limit], target.what, limit is not None and len(times) > limit)


def _timer(raw: bytes) -> Any:
    return instant(int.from_bytes(raw, "big", signed=True))
