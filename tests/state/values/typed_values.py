"""Values of every type, and the tables that they are read from and written to."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import pyarrow as pa
from hypothesis import strategies as st

from stateflow.format.encoding import EMPTY_NAMESPACE, prefix
from stateflow.format.keygroups import xxhash64
from stateflow.format.records import StateSchema
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.tabular import StateTable
from stateflow.state.values.serializers import Serializer, serializer_for

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
KEY = KeyCodec(["int"])


@dataclasses.dataclass
class Order:
    user: int
    amount: float
    at: datetime
    name: str | None = None
    tags: list[str] = dataclasses.field(default_factory=list)
    parent: Order | None = None
    limit: int | None = 10
    closed: datetime | None = None


class Place(NamedTuple):
    x: int
    y: str = "y"
    z: float | None = None


class Colour(Enum):
    RED = "r"
    BLUE = "b>,"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Loose(TypedDict):
    name: str
    age: NotRequired[int]
    note: NotRequired[str | None]


class Sparse(msgspec.Struct, kw_only=True):
    a: int | None = 3
    b: str = "b"
    c: int


class Listed(msgspec.Struct, array_like=True, frozen=True):
    day: date
    price: Decimal
    n: int = 5


class Mixed(msgspec.Struct, array_like=True, kw_only=True):
    a: int = 1
    b: int


class Event(msgspec.Struct):
    id: uuid.UUID
    colour: Colour
    level: Level
    word: Literal["a", "b"]
    clock: time
    took: timedelta
    either: int | str | None
    places: dict[str, Place]
    by_instant: dict[datetime, list[int | None]]
    by_pair: dict[tuple[int, str], Listed]
    odd: dict[int | None, bytes]
    several: frozenset[int]


class Old(msgspec.Struct):
    a: int


class New(msgspec.Struct):
    a: int
    b: int | None = 10
    c: str = "c"
    d: datetime | None = NOON


INTS = st.integers(-(2**63), 2**63 - 1)
BIG = INTS | st.integers(2**63, 2**64 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
INSTANTS = st.datetimes(timezones=st.just(UTC))
FLOATS = st.floats(allow_nan=False)
PLACES = st.builds(Place, BIG, TEXT, st.none() | FLOATS)
ORDERS = st.deferred(
    lambda: st.builds(
        Order, BIG, FLOATS, INSTANTS, st.none() | TEXT, st.lists(TEXT, max_size=2), st.none() | ORDERS, st.none() | BIG,
        st.none() | INSTANTS,
    )
)  # fmt: skip
DECIMALS = st.decimals(allow_nan=False) | st.decimals(-1000, 1000, places=2)
LISTED = st.builds(Listed, st.dates(), DECIMALS, INTS)
LOOSE: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"name": TEXT}, optional={"age": INTS, "note": st.none() | TEXT}
)
EVENTS = st.builds(
    Event, st.uuids(), st.sampled_from(Colour), st.sampled_from(Level), st.sampled_from(["a", "b"]),
    st.times(timezones=st.none() | st.just(UTC)), st.timedeltas(), st.none() | BIG | TEXT,
    st.dictionaries(TEXT, PLACES, max_size=2),
    st.dictionaries(INSTANTS, st.lists(st.none() | INTS, max_size=2), max_size=2),
    st.dictionaries(st.tuples(BIG, TEXT), LISTED, max_size=2),
    st.dictionaries(st.none() | INTS, st.binary(max_size=3), max_size=2), st.frozensets(INTS, max_size=3),
)  # fmt: skip

SCALARS: list[tuple[Any, st.SearchStrategy[Any], pa.DataType]] = [
    (bool, st.booleans(), pa.bool_()),
    (int, INTS, pa.int64()),
    (float, st.floats(), pa.float64()),
    (str, TEXT, pa.string()),
    (bytes, st.binary(max_size=5), pa.binary()),
    (date, st.dates(), pa.date32()),
    (datetime, INSTANTS, pa.timestamp("us", "UTC")),
    (Decimal, st.decimals() | DECIMALS, pa.decimal128(38, 18)),
]
STRUCTURED: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (Order, ORDERS),
    (Event, EVENTS),
    (Place, PLACES),
    (Listed, LISTED),
    (Mixed, st.builds(Mixed, a=INTS, b=INTS)),
    (Sparse, st.builds(Sparse, a=st.none() | BIG, b=TEXT | st.just("b"), c=INTS)),
    (list[Loose], st.lists(LOOSE, max_size=2)),
    (Colour, st.sampled_from(Colour)),
    (Level, st.sampled_from(Level)),
    (Literal["x", None], st.sampled_from(["x", None])),
    (uuid.UUID, st.uuids()),
    (time, st.times()),
    (timedelta, st.timedeltas()),
    (int | None, st.none() | BIG),
    (float | None, st.none() | FLOATS),
    (str | None, st.none() | TEXT),
    (bool | None, st.none() | st.booleans()),
    (datetime | None, st.none() | INSTANTS),
    (date | None, st.none() | st.dates()),
    (Decimal | None, st.none() | DECIMALS),
    (Order | None, st.none() | ORDERS),
    (int | str, INTS | TEXT),
    (int | str | None, st.none() | INTS | TEXT),
    (list[int], st.lists(BIG, max_size=3)),
    (list[list[str | None]], st.lists(st.lists(st.none() | TEXT, max_size=2), max_size=3)),
    (set[int], st.sets(INTS, max_size=3)),
    (tuple[int, ...], st.lists(INTS, max_size=3).map(tuple)),
    (tuple[int, str, datetime], st.tuples(INTS, TEXT, INSTANTS)),
    (tuple[()], st.just(())),
    (dict[str, int], st.dictionaries(TEXT, BIG, max_size=3)),
    (dict[str, Order | None], st.dictionaries(TEXT, st.none() | ORDERS, max_size=2)),
    (dict[Decimal, int], st.dictionaries(DECIMALS, INTS, max_size=2)),
    (dict[date, dict[int, str]], st.dictionaries(st.dates(), st.dictionaries(INTS, TEXT, max_size=2), max_size=2)),
    (dict[timedelta, int], st.dictionaries(st.timedeltas(), INTS, max_size=2)),
    (dict[Colour, list[Level]], st.dictionaries(st.sampled_from(Colour), st.lists(st.sampled_from(Level), max_size=2))),
    (dict[tuple[int, ...], bool], st.dictionaries(st.lists(INTS, max_size=2).map(tuple), st.booleans(), max_size=2)),
    (dict[uuid.UUID, dict[bool, str]], st.dictionaries(st.uuids(), st.dictionaries(st.booleans(), TEXT), max_size=2)),
    (list[Order | None], st.lists(st.none() | ORDERS, max_size=2)),
    (list[int | str], st.lists(INTS | TEXT, max_size=3)),
]  # fmt: skip


def table_of(value: str, *, kind: str = "value", ttl: int | None = None) -> StateTable:
    return StateTable([("user", "int")], 128, "total", StateSchema(7, kind, value, ttl=ttl))


def keys_for(count: int) -> list[bytes]:
    keys = [prefix(xxhash64(n) % 128, 7) + KEY.encode(n) + EMPTY_NAMESPACE for n in range(count)]
    return sorted(keys)


def decoded(table: StateTable, stored: Sequence[bytes]) -> pa.RecordBatch:
    batch = table.decode(keys_for(len(stored)), stored)
    batch.validate(full=True)
    assert batch.schema == table.schema
    return batch


def with_value(batch: pa.RecordBatch, value: Any) -> pa.RecordBatch:
    index = batch.schema.get_field_index("value")
    return batch.set_column(index, batch.schema.field(index), value)


def stored_values(
    serializer: Serializer, values: Sequence[Any], expiries: Sequence[int | None]
) -> list[bytes]:
    return [
        serializer.dumps(value) if expiry is None else serializer.dumps_with_expiry(value, expiry)
        for value, expiry in zip(values, expiries, strict=True)
    ]


def drawn(
    data: st.DataObject, hint: Any, values: st.SearchStrategy[Any]
) -> tuple[Serializer, list[bytes], bool]:
    """Stored values, with and without expiries; whether the state has a ttl."""
    serializer = serializer_for(hint)
    drawn_values = data.draw(st.lists(values, min_size=1, max_size=4))
    ttl = data.draw(st.sampled_from(["none", "all", "some"]))
    at = {"none": st.none(), "all": INTS.filter(lambda n: abs(n) < 2**60), "some": st.none() | st.just(77)}[
        ttl
    ]
    expiries = [data.draw(at) for _ in drawn_values]
    return serializer, stored_values(serializer, drawn_values, expiries), ttl != "none"
