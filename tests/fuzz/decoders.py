"""Every function that reads what a store holds, each with bytes or a text of a stranger."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec

from stateflow.checkpoint.control import Heartbeat, Progress, StopRequest
from stateflow.checkpoint.statistics import read_segments
from stateflow.errors import StateflowError
from stateflow.format import layout, source_offsets
from stateflow.format.encoding import read_timestamp, split, split_timer
from stateflow.format.expiry_blocks import block, decode_progress, keys_of
from stateflow.format.records import (
    DeadMark,
    EpochClaim,
    JobIdentity,
    Outcome,
    Pin,
    Record,
    Savepoint,
    SavepointClaim,
    SchemaVersion,
    SourceState,
    StateSchema,
    decode,
)
from stateflow.observe.status import position_of
from stateflow.savepoints.format import decode_savepoint
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.keys.text import key_of_text
from stateflow.state.values.evolution.versions import stored_reader
from stateflow.state.values.plain import jsonable, plain_reader
from stateflow.state.values.schema import schema_of
from stateflow.state.values.serializers import serializer_for
from tests.fuzz.case import Case, applied
from tests.fuzz.scene import base
from tests.memory_store import MemoryStore

BODIES: tuple[tuple[str, type[msgspec.Struct]], ...] = (
    ("root/orders/chk-00000010/_pending", Record),
    ("root/orders/chk-00000010/_metadata", Outcome),
    ("root/orders/epochs/00000001", EpochClaim),
    ("root/orders/job", JobIdentity),
    ("root/orders/control/heartbeat-00000002", Heartbeat),
    ("root/orders/control/progress-00000001", Progress),
    ("savepoint/_metadata", Savepoint),
)
OTHERS = (Pin, DeadMark, SavepointClaim, StopRequest)
KEYS: tuple[tuple[str, ...], ...] = (
    ("bool",), ("int",), ("str",), ("bytes",), ("date",), ("datetime",), ("decimal",), ("int", "str"), ("int", "int"),
    ("str", "bytes", "date"), ("decimal", "datetime", "bool"),
)  # fmt: skip


@dataclass
class Line:
    """A value with a bit of everything in it."""

    sku: str
    prices: dict[str, list[Decimal]]
    at: datetime | None = None
    days: tuple[date, ...] = ()
    left: timedelta | int = 0


NOW = datetime(2026, 1, 1, tzinfo=UTC)
VALUES: tuple[tuple[Any, Any], ...] = (
    (bool, True), (int, -7), (float, 0.5), (str, "ä"), (bytes, b"\0\1"), (date, NOW.date()), (datetime, NOW),
    (Decimal, Decimal("1.50")), (Line, Line("a", {"x": [Decimal("1.5")]}, NOW, (NOW.date(),), 3)),
    (dict[tuple[int, str], list[float]], {(1, "a"): [0.5]}), (list[Line | None], [None]), (tuple[int, str], (1, "a")),
)  # fmt: skip
COLUMNS = "columns{amount:float,at:datetime,n:int}"
MIXED = "columns{name:str,price:decimal}"


def bodies(case: Case) -> None:
    """A body of each kind, and what people are shown of it."""
    path, kind = BODIES[case.seed % len(BODIES)]
    objects, _ = applied(base().objects, case.changes)
    body = objects.get(path, b"")
    _each(*(lambda other=other: decode(body, other, path) for other in OTHERS))
    read = decode_savepoint(body, path) if kind is Savepoint else decode(body, kind, path)
    repr(read)
    msgspec.json.encode(read)


def segments(case: Case) -> None:
    store = MemoryStore(
        "segments", {f"orders/statistics/{case.text or 'x'}"[:100].replace("\0", ""): bytes.fromhex(case.raw)}
    )
    for segment in read_segments(store, layout.JobLayout("orders")):
        msgspec.json.encode(segment.lines)


def offsets(case: Case) -> None:
    """Spark's lines, of which a record may have any."""
    source_offsets.kinds_of([case.text, "-"])
    for kind in ("", "delta", "kafka", "file", "other"):
        _each(lambda kind=kind: json.dumps(source_offsets.decode(case.text, kind)))
        _each(lambda kind=kind: position_of(SourceState((case.text,), kind=kind)))
        _each(lambda kind=kind: source_offsets.check_given("events", (kind,), case.text))


def paths(case: Case) -> None:
    for read in (
        layout.slot_of, layout.epoch_of, layout.segment_of, layout.first_slot_of, layout.origin_of, layout.is_savepoint_file
    ):  # fmt: skip
        read(case.text)
    _each(lambda: layout.JobLayout(case.text), lambda: layout.default_savepoint("orders", case.text))


def entries(case: Case) -> None:
    """Keys and index blocks of a shard."""
    raw = bytes.fromhex(case.raw)
    _each(
        lambda: split(raw),
        lambda: split_timer(raw),
        lambda: read_timestamp(raw, case.seed % 20),
        lambda: keys_of(raw),
        lambda: keys_of(block([raw or b"x", b"abc"])),
        lambda: decode_progress(raw),
    )


def keys(case: Case) -> None:
    types = KEYS[case.seed % len(KEYS)]
    raw = bytes.fromhex(case.raw)
    codec = KeyCodec(types)
    _each(
        lambda: jsonable(codec.decode(raw, 0)[0]),
        lambda: codec.decode(raw, case.seed % 30),
        lambda: codec.encode(key_of_text([(f"c{n}", kind) for n, kind in enumerate(types)], case.text)),
    )


def values(case: Case) -> None:
    """What user code and a query get of a stored value: as it was declared, and from the text of its type alone."""
    hint, value = VALUES[case.seed % len(VALUES)]
    serializer = serializer_for(hint)
    raw = bytearray(serializer.dumps(value) if case.seed % 2 else serializer.dumps_with_expiry(value, 7))
    for change in case.changes:
        at, length, byte = change["flip"]
        at %= len(raw)
        raw[at : at + length] = bytes([byte]) * length
    given = bytes(raw) if case.changes else bytes.fromhex(case.raw)
    plain = plain_reader(StateSchema(1, "value", schema_of(hint)))
    for read in (serializer.loads, lambda buf: jsonable(plain(buf))):
        for buf in (given, given[: case.seed % 12]):
            _each(lambda read=read, buf=buf: read(buf))
    for schema in (COLUMNS, MIXED):
        _each(lambda schema=schema: jsonable(plain_reader(StateSchema(1, "columns", schema))(given)))


def schemas(case: Case) -> None:
    """A type that a record names: what reads values of it, and of an earlier one."""
    raw = bytes.fromhex(case.raw)
    kind = ("value", "columns", "list")[case.seed % 3]
    _each(lambda: jsonable(stored_reader(StateSchema(1, kind, case.text))(raw)))
    earlier = SchemaVersion(number=0, value=case.text, next=case.seed % 3)
    _each(lambda: jsonable(stored_reader(StateSchema(1, kind, "int", version=1, versions=(earlier,)))(raw)))


def _each(*acts: Callable[[], object]) -> None:
    for act in acts:
        with suppress(StateflowError):
            act()


DECODERS: dict[str, Callable[[Case], None]] = {
    "bodies": bodies,
    "segments": segments,
    "offsets": offsets,
    "paths": paths,
    "entries": entries,
    "keys": keys,
    "values": values,
    "schemas": schemas,
}
