"""Many values at once are the bytes and the values of one by one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.errors import StateTypeError
from stateflow.state.values.arrow.bulk import bulk, bulk_until
from stateflow.state.values.serializers import serializer_for

DATETIMES = st.datetimes(
    datetime(2, 1, 1),
    datetime(9998, 1, 1),
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=-7))]),
)
KINDS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(1 << 63), (1 << 63) - 1),
    float: st.floats(allow_nan=False) | st.integers(-1000, 1000),
    str: st.text(),
    datetime: DATETIMES,
}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_bulk_is_what_one_by_one_is(kind: Any, data: st.DataObject) -> None:
    values = data.draw(st.lists(KINDS[kind] | st.none()))
    serializer = serializer_for(kind)
    dumps_many, loads_many = bulk(serializer)
    there = [value for value in values if value is not None]
    assert dumps_many(there) == [serializer.dumps(value) for value in there]
    raws = [None if value is None else serializer.dumps(value) for value in values]
    loaded = loads_many(raws, "missing")
    assert loaded == ["missing" if raw is None else serializer.loads(raw) for raw in raws]
    assert {type(value) for value in loaded} <= {type(serializer.loads(raw)) for raw in raws if raw} | {str}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), expiry=st.integers(0, (1 << 63) - 1))
def test_bulk_with_an_expiry_is_what_one_by_one_is(kind: Any, data: st.DataObject, expiry: int) -> None:
    values = data.draw(st.lists(KINDS[kind]))
    serializer = serializer_for(kind)
    one_by_one = [serializer.dumps_with_expiry(value, expiry) for value in values]
    assert bulk_until(serializer)(values, expiry) == one_by_one


@pytest.mark.parametrize("wrong", ["2020-01-01", datetime(2020, 1, 1), 5])
def test_a_wrong_value_among_many_is_refused_like_one(wrong: Any) -> None:
    dumps_many, _ = bulk(serializer_for(datetime))
    with pytest.raises(StateTypeError):
        dumps_many([datetime(2020, 1, 1, tzinfo=UTC), wrong])


@pytest.mark.parametrize("values", [[2**53 + 1], [1.5, -(2**53) - 1], [1, 10**400]])
def test_an_int_that_is_no_float_among_many_is_refused_like_one(values: list[Any]) -> None:
    serializer = serializer_for(float)
    for write in (bulk(serializer)[0], lambda values: bulk_until(serializer)(values, 5)):
        with pytest.raises(StateTypeError, match="expected float, got int"):
            write(values)


def test_a_value_with_an_expiry_among_many_is_read_like_one() -> None:
    serializer = serializer_for(datetime)
    _, loads_many = bulk(serializer)
    at = datetime(2020, 1, 1, tzinfo=UTC)
    assert loads_many([serializer.dumps(at), serializer.dumps_with_expiry(at, 5)], None) == [at, at]


def test_a_value_that_was_stored_before_its_state_was_widened_is_read_as_what_it_is() -> None:
    """An int and a float have the same length, and other bits."""
    _, loads_many = bulk(serializer_for(float))
    raws = [serializer_for(float).dumps(1.5), serializer_for(int).dumps(3), None]
    assert loads_many(raws, 0.25) == [1.5, 3.0, 0.25]
    assert loads_many([raws[0], None], 0.25) == [1.5, 0.25]
