"""Instants in MessagePack, a column at a time: as msgspec writes and reads each."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.format.instants import instant, micros_since_epoch
from stateflow.state.values.arrow.packed_instants import (
    NIL,
    are_instants,
    datetimes_of,
    micros_of,
    read_instants,
    write_instants,
)

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


@given(st.lists(MICROS))
def test_datetimes_are_made_as_one_by_one(micros: list[int]) -> None:
    made = datetimes_of(np.array(micros, dtype=np.int64))
    assert made == [instant(at) for at in micros]
    assert all(value.tzinfo is UTC for value in made)


@pytest.mark.parametrize("far", [FIRST - 1, LAST + 1, -(1 << 63), (1 << 63) - 1])
def test_there_is_no_datetime_outside_of_the_years_1_to_9999(far: int) -> None:
    with pytest.raises(ValueError, match="no instant"):
        datetimes_of(np.array([0, far], dtype=np.int64))


ZONES = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(seconds=-3723))])
INNER = st.integers(FIRST + 86_400 * 10**6, LAST - 86_400 * 10**6)


@given(st.lists(st.tuples(INNER, ZONES) | st.none()))
def test_datetimes_of_every_zone_are_read_as_one_by_one(values: list[tuple[int, timezone] | None]) -> None:
    given = [None if value is None else instant(value[0]).astimezone(value[1]) for value in values]
    assert micros_of(given).to_pylist() == given


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65_535, 65_536])
@pytest.mark.parametrize("step", [1_000_000, 1_000_001, 500_000])
def test_lists_of_every_length_go_there_and_back(count: int, step: int) -> None:
    micros = np.arange(count, dtype=np.int64) * step + 7 * step
    assert micros_of(datetimes_of(micros)).cast(pa.int64()).to_numpy().tolist() == micros.tolist()


class Moment(datetime):
    """A datetime of somebody's own."""


@pytest.mark.parametrize(
    "other", [1, "2020-01-01", datetime(2020, 1, 1), Moment(2020, 1, 1, tzinfo=UTC), msgspec.msgpack.Ext(-1, b"12345678")]
)  # fmt: skip
def test_other_values_are_left_to_those_who_know_them(other: object) -> None:
    with pytest.raises(ValueError, match=r"no (datetime|timestamp)"):
        micros_of([instant(1), other])


def test_a_column_costs_a_fraction_of_a_call_for_each() -> None:
    micros = np.arange(20_000, dtype=np.int64) * 1_000_003 + 1_700_000_000_000_000
    values = datetimes_of(micros)

    def quickest(of: Callable[[], object]) -> float:
        spent = []
        for _ in range(7):
            began = time.process_time()
            of()
            spent.append(time.process_time() - began)
        return min(spent)

    singly = quickest(lambda: [instant(at) for at in micros.tolist()])
    assert quickest(lambda: datetimes_of(micros)) < singly / 3
    assert quickest(lambda: micros_of(values)) < quickest(lambda: [micros_since_epoch(v) for v in values]) / 2
