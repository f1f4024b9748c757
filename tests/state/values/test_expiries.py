"""When stored values expire, of many at once."""

from __future__ import annotations

import pytest

from stateflow.state.values.expiries import by_expiry, live, stamped
from stateflow.state.values.serializers import serializer_for

PLAIN = [b"\x01one", b"\x01two", b"\x01three"]
(DEAD, LATER) = (stamped(PLAIN, at) for at in (1_000, 5_000))


def test_values_that_have_expired_are_told_apart_from_those_that_expire_later() -> None:
    raws = [DEAD[0], None, LATER[1], PLAIN[2], DEAD[2], LATER[0]]
    keys = [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert by_expiry(keys, raws, 2_000) == ([b"a", b"e"], [(b"c", LATER[1]), (b"f", LATER[0])])
    assert by_expiry(keys, raws, 999)[0] == []
    assert by_expiry([b"a", b"b"], [DEAD[0], None], 1_000) == ([b"a"], [])


def test_values_that_live_are_told_from_those_that_do_not() -> None:
    both = stamped([b"\x01one", b"\x02one"], 5_000)
    assert live(LATER, 4_999) == (LATER, 5_000)
    assert live(LATER, None) == (LATER, 5_000)
    assert live(LATER, 5_000) == ([None, None, None], 5_000)
    assert live(both, 5_000) == ([None, None], 5_000)
    assert live([DEAD[0], LATER[0], both[1]], 1_000) == ([None, LATER[0], both[1]], 5_000)
    assert live([LATER[0], both[1], DEAD[1]], 1_000) == ([LATER[0], both[1], None], 5_000)
    assert live([LATER[0], DEAD[1]], 999) == ([LATER[0], DEAD[1]], 5_000)
    assert live([LATER[0], stamped([b"\x02two"], 1_000)[0]], 1_000) == ([LATER[0], None], 5_000)
    assert live([LATER[0], PLAIN[0]], 1_000) == ([LATER[0], PLAIN[0]], None)
    assert live([LATER[0], None], 1_000) == ([LATER[0], None], None)
    assert live([], 1_000)[0] == []
    before_1970 = stamped([b"\x01old"], -5_000)[0]
    assert live([LATER[0], before_1970], 1_000) == ([LATER[0], None], 5_000)
    assert live([before_1970], -6_000) == ([before_1970], -5_000)


@pytest.mark.parametrize(
    ("kind", "value"), [(bool, True), (str, "tea"), (tuple[int, float], (1, 2.0)), (dict[str, int], {"a": 1})]
)
def test_values_of_one_expiry_are_stored_as_one_by_one(kind: object, value: object) -> None:
    serializer = serializer_for(kind)
    assert serializer.dumps_until is not None
    raw = serializer.dumps_until(5_000)(value)
    assert raw == serializer.dumps_with_expiry(value, 5_000) == stamped([serializer.dumps(value)], 5_000)[0]
    assert serializer.loads(raw) == value
