"""Many full keys at once: columns and key groups as the codec and the hash have them one by one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.errors import CorruptError, IncompatibleError
from stateflow.format import encoding
from stateflow.format.keygroups import xxhash64
from stateflow.format.scalars import KEY_TYPES
from stateflow.state.keys.arrow_types import ARROW
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.keys.hashing import key_groups_of
from stateflow.state.keys.parts import KeyParts
from tests.refusals.refusal import refused

PARTS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int": st.integers(-(2**63), 2**63 - 1),
    "str": st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\0\1\xff"), max_size=6),
    "bytes": st.lists(st.sampled_from([0, 1, 2, 254, 255]), max_size=6).map(bytes),
    "date": st.dates(),
    "datetime": st.datetimes(timezones=st.just(UTC)),
    "decimal": st.integers(-(10**38) + 1, 10**38 - 1).map(lambda unscaled: Decimal(f"{unscaled}e-18")),
}
SHAPES = st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=4)


def rows_of(shape: Sequence[str]) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    return st.lists(st.tuples(*[PARTS[name] for name in shape]), min_size=1, max_size=5)


def key_of(row: tuple[Any, ...]) -> Any:
    return row[0] if len(row) == 1 else row


def full_keys(shape: Sequence[str], rows: Sequence[tuple[Any, ...]], behind: bytes = b"\0") -> list[bytes]:
    encode = KeyCodec(shape).encode
    return [encoding.prefix(index * 257, 9) + encode(key_of(row)) + behind for index, row in enumerate(rows)]


@given(st.data())
def test_columns_hold_what_the_codec_reads(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    rows = data.draw(rows_of(shape))
    parts = KeyParts(full_keys(shape, rows), "state 'x'")
    assert parts.group().tolist() == [index * 257 for index in range(len(rows))]
    assert parts.state_id().tolist() == [9] * len(rows)
    columns = [parts.part(name) for name in shape]
    parts.namespace()
    parts.end()
    assert [column.type for column in columns] == [ARROW[name] for name in shape]
    assert list(zip(*[column.to_pylist() for column in columns], strict=True)) == rows


@given(st.data())
def test_key_groups_are_those_of_each_key(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    rows = data.draw(rows_of(shape))
    most = data.draw(st.sampled_from([1, 7, 128, 32768]))
    columns = [pa.array(c, ARROW[n]) for n, c in zip(shape, zip(*rows, strict=True), strict=True)]
    assert key_groups_of(shape, columns, most).tolist() == [xxhash64(key_of(row)) % most for row in rows]


def read_all(keys: Sequence[bytes], shape: Sequence[str]) -> None:
    parts = KeyParts(keys, "state 'x'")
    parts.group()
    parts.state_id()
    for name in shape:
        parts.part(name)
    parts.namespace()
    parts.end()


@given(st.data())
def test_a_key_that_is_cut_off_or_goes_on_is_reported(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    keys = full_keys(shape, data.draw(rows_of(shape)))
    bad = data.draw(st.integers(0, len(keys) - 1))
    cut = data.draw(st.integers(1, len(keys[bad])))
    for damaged in (keys[bad][:-cut], keys[bad] + b"\0"):
        with refused(CorruptError, "state 'x': the state key", "run `stateflow verify`"):
            read_all([*keys[:bad], damaged, *keys[bad + 1 :]], shape)


def test_text_that_is_none_is_reported() -> None:
    good, bad = full_keys(["bytes"], [(b"a",), (b"\xff",)])
    with refused(CorruptError, f"{bad.hex()} is not text"):
        read_all([good, bad], ["str"])


@pytest.mark.parametrize("namespace", [b"\x01" + bytes(16), b"\x02", b"\xff"])
def test_entries_of_windows_are_for_a_newer_version(namespace: bytes) -> None:
    for shape, row in ((["int"], (1,)), (["str"], ("a",))):
        keys = [*full_keys(shape, [row]), *full_keys(shape, [row], namespace)]
        with refused(IncompatibleError, "state 'x'", "holds entries under namespaces"):
            read_all(keys, shape)
