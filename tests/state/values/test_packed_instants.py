"""Instants in MessagePack, a column at a time: as msgspec writes and reads each."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.format.instants import instant, micros_since_epoch
from stateflow.state.values.packed_instants import NIL, are_instants, read_instants, write_instants

FIRST = micros_since_epoch(datetime.min.replace(tzinfo=UTC))
LAST = micros_since_epoch(datetime.max.replace(tzinfo=UTC))
MICROS = (
    st.integers(FIRST, LAST)
    | st.integers(0, 1 << 33).map(lambda seconds: seconds * 1_000_000)
    | st.integers(0, (1 << 34) * 1_000_000)
    | st.sampled_from([FIRST, LAST, 0, -1, 1, ((1 << 32) - 1) * 10**6, (1 << 32) * 10**6, (1 << 34) * 10**6])
)


@given(st.lists(MICROS))
def test_they_are_written_as_msgspec_does(micros: list[int]) -> None:
    raws = write_instants(np.array(micros, dtype=np.int64))
    assert [bytes(raw) for raw in raws] == [msgspec.msgpack.encode(instant(at)) for at in micros]


@given(st.lists(MICROS | st.none()))
def test_they_are_read_as_msgspec_does(micros: list[int | None]) -> None:
    raws = [NIL if at is None else msgspec.Raw(msgspec.msgpack.encode(instant(at))) for at in micros]
    assert read_instants(raws).to_pylist() == [None if at is None else instant(at) for at in micros]


@pytest.mark.parametrize(
    "other",
    [
        1,
        "2020-01-01T00:00:00Z",
        b"\xff" * 8,
        [],
        msgspec.msgpack.Ext(5, b"12345678"),
        msgspec.msgpack.Ext(5, b"1234"),
    ],
)
def test_other_values_are_no_instants(other: object) -> None:
    good = msgspec.Raw(msgspec.msgpack.encode(instant(10**15 + 1)))
    for raws in (
        [msgspec.Raw(msgspec.msgpack.encode(other))],
        [good, msgspec.Raw(msgspec.msgpack.encode(other))],
    ):
        with pytest.raises(ValueError, match="no timestamp"):
            read_instants(raws)


def test_instants_that_python_has_not_are_none() -> None:
    far = msgspec.msgpack.encode(
        msgspec.msgpack.Ext(-1, (0).to_bytes(4, "big") + (1 << 40).to_bytes(8, "big"))
    )
    with pytest.raises(ValueError, match="no instant"):
        read_instants([msgspec.Raw(far)])
    assert are_instants(np.array([FIRST - 1, FIRST, LAST, LAST + 1])).tolist() == [False, True, True, False]
