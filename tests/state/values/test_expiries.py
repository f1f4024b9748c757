"""When stored values expire, of many at once."""

from __future__ import annotations

from stateflow.state.values.expiries import stamped, told_apart

PLAIN = [b"\x01one", b"\x01two", b"\x01three"]
(DEAD, LATER) = (stamped(PLAIN, at) for at in (1_000, 5_000))


def test_values_that_have_expired_are_told_apart_from_those_that_expire_later() -> None:
    raws = [DEAD[0], None, LATER[1], PLAIN[2], DEAD[2], LATER[0]]
    keys = [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert told_apart(keys, raws, 2_000) == ([b"a", b"e"], [(b"c", LATER[1]), (b"f", LATER[0])])
    assert told_apart(keys, raws, 999)[0] == []
    assert told_apart([b"a", b"b"], [DEAD[0], None], 1_000) == ([b"a"], [])
