"""Parquet files of state tables open elsewhere, with types as one would have them."""

from __future__ import annotations

import dataclasses
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from stateflow.format.encoding import EMPTY_NAMESPACE, prefix
from stateflow.format.keygroups import xxhash64
from stateflow.format.records import StateSchema
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.tabular import StateTable, TimerTable
from stateflow.state.values.serializers import serializer_for

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


@dataclasses.dataclass
class Order:
    user: int
    name: str
    amount: float
    at: datetime
    price: Decimal
    day: date
    took: timedelta
    id: uuid.UUID
    tags: list[str]
    counts: dict[str, int]
    either: int | str
    note: str | None = None


ORDER = Order(
    1,
    "é",
    2.5,
    NOON,
    Decimal("1.50"),
    NOON.date(),
    timedelta(seconds=3),
    uuid.UUID(int=7),
    ["a"],
    {"b": 2},
    "x",
)


def written(batch: pa.RecordBatch, path: Path) -> Path:
    pq.write_table(pa.Table.from_batches([batch]), path)
    return path


def test_a_scalar_state_in_pandas(tmp_path: Path) -> None:
    key = (("user", "int"), ("sku", "str"), ("day", "date"), ("price", "decimal"))
    table = StateTable(key, 128, "total", StateSchema(7, "value", "float", ttl=5))
    one = (1, "a\0", NOON.date(), Decimal("1.5"))
    full = prefix(xxhash64(one) % 128, 7) + KeyCodec([kind for _, kind in key]).encode(one) + EMPTY_NAMESPACE
    batch = table.decode([full], [serializer_for(float).dumps_with_expiry(2.5, 10**15)])
    frame = pd.read_parquet(written(batch, tmp_path / "total.parquet"))
    assert frame.dtypes.astype(str).to_dict() == {
        "key_group": "int32", "user": "int64", "sku": "object", "day": "object", "price": "object", "value": "float64",
        "expires_at": "datetime64[us, UTC]",
    }  # fmt: skip
    row = frame.iloc[0]
    assert (row["user"], row["sku"], row["day"], row["price"]) == one
    assert row["expires_at"] == pd.Timestamp(10**15, unit="us", tz="UTC")


def test_a_structured_state_in_pandas_and_back(tmp_path: Path) -> None:
    serializer = serializer_for(Order)
    table = StateTable([("user", "int")], 128, "last", StateSchema(7, "value", serializer.schema))
    full = prefix(xxhash64(1) % 128, 7) + KeyCodec(["int"]).encode(1) + EMPTY_NAMESPACE
    stored = serializer.dumps(ORDER)
    path = written(table.decode([full], [stored]), tmp_path / "last.parquet")
    value = pd.read_parquet(path)["value"].iloc[0]
    assert value["name"] == "é"
    assert value["at"] == NOON
    assert value["price"] == Decimal("1.5")
    assert value["day"] == NOON.date()
    assert value["took"] == timedelta(seconds=3)
    assert value["id"] == str(ORDER.id)
    assert list(value["tags"]) == ["a"]
    assert value["counts"] == [("b", 2)]
    assert value["note"] is None
    for batch in pq.ParquetFile(path).iter_batches():
        assert table.encode(batch) == ([full], [stored])


def test_a_file_without_arrows_own_schema_is_read_as_well(tmp_path: Path) -> None:
    plain = serializer_for(list[dict[str, timedelta]])
    lists = StateTable([("user", "int")], 128, "lists", StateSchema(8, "value", plain.schema))
    full = prefix(xxhash64(1) % 128, 8) + KeyCodec(["int"]).encode(1) + EMPTY_NAMESPACE
    stored = plain.dumps([{"a": timedelta(seconds=3)}, {}])
    batch = lists.decode([full], [stored])
    path = tmp_path / "lists.parquet"
    pq.write_table(pa.Table.from_batches([batch]), path, store_schema=False)
    for read in pq.ParquetFile(path).iter_batches():
        assert lists.encode(read) == ([full], [stored])
    # A span of time is a number of microseconds to those who do not know them.
    assert pq.read_schema(path).field("value").type.value_type.item_type == pa.int64()


def test_timers_in_pandas(tmp_path: Path) -> None:
    table = TimerTable([("user", "str")], 128, {"idle": StateSchema(2, "timer", "event")})
    rows = pa.record_batch(
        {"user": ["x"], "timer": ["idle"], "at": pa.array([NOON], pa.timestamp("us", "UTC"))}
    )
    keys, values = table.encode(rows)
    frame = pd.read_parquet(written(table.decode(keys[:1], values[:1]), tmp_path / "timers.parquet"))
    assert frame.dtypes.astype(str).to_dict() == {
        "key_group": "int32", "user": "object", "timer": "object", "at": "datetime64[us, UTC]",
    }  # fmt: skip
    assert frame.iloc[0]["at"] == NOON
