"""Many keys and times decoded at once are the same as one by one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stateflow.errors import CorruptError, UsageError
from stateflow.format.instants import instant
from stateflow.operators.decoded import decoded_keys
from stateflow.operators.due import time_of, times_of, turn
from stateflow.state.keys.codec import KeyCodec
from tests.refusals.refusal import refused

INTS = [0, 1, -1, 2**63 - 1, -(2**63)]
TIMES = [
    datetime.min.replace(tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(2026, 1, 1, tzinfo=UTC),
    datetime(2500, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
    datetime.max.replace(tzinfo=UTC),
]


def full(codec: KeyCodec, key: Any) -> bytes:
    return b"\0\7\0\0" + codec.encode(key) + b"\0"


@pytest.mark.parametrize(
    ("types", "keys"),
    [
        (("int",), INTS),
        (("datetime",), TIMES),
        (("int", "datetime"), list(zip(INTS, TIMES, strict=True))),
        (("str", "int"), [("", 1), ("a\0b", 2)]),
        (("str",), ["", "long" * 50]),
        (("bool", "int"), [(True, 1), (False, 2)]),
    ],
)
def test_keys_decoded_at_once_are_those_decoded_one_by_one(types: tuple[str, ...], keys: list[Any]) -> None:
    codec = KeyCodec(types, tuple(f"part{i}" for i in range(len(types))) if len(types) > 1 else ())
    bases = [full(codec, key) for key in keys]
    decoded = decoded_keys(codec, bases)
    assert decoded == [codec.decode(base, 4)[0] for base in bases] == keys
    assert list(map(type, decoded)) == [type(codec.decode(base, 4)[0]) for base in bases]
    assert decoded_keys(codec, []) == []


def test_a_damaged_key_among_sound_ones_is_named() -> None:
    codec, damaged = KeyCodec(("datetime",)), b"\0\7\0\0\1\2\0"
    sound = full(codec, TIMES[2])
    with pytest.raises(CorruptError, match=damaged.hex()):
        decoded_keys(codec, [sound, damaged, sound])


def test_a_key_with_a_time_that_python_does_not_have_is_no_damage() -> None:
    codec = KeyCodec(("datetime",))
    sound, far = full(codec, TIMES[2]), b"\0\7\0\0" + b"\xff" * 8 + b"\0"
    with refused(UsageError, "timestamp", "outside of the years 1 to 9999"):
        decoded_keys(codec, [sound, far, sound])


def test_damaged_keys_whose_lengths_add_up_are_not_read_across_each_other() -> None:
    codec = KeyCodec(("int",))
    with pytest.raises(CorruptError):
        decoded_keys(codec, [b"\0\7\0\0" + b"\1" * 4 + b"\0", b"\0\7\0\0" + b"\1" * 12 + b"\0"])


def test_times_of_a_block_are_those_of_its_turns() -> None:
    micros = [-62_135_596_800_000_000, -1, 0, 1_767_225_600_000_001]
    block = [turn(at, b"\0\7\0\0key\0", 3) for at in micros]
    assert times_of(block) == ([time_of(due) for due in block], [instant(at) for at in micros])
    assert times_of([]) == ([], [])


def test_a_time_that_no_datetime_can_be_stays_with_its_timer_and_harms_no_other() -> None:
    beyond = (datetime.max.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        microseconds=1
    ) + 1
    block = [turn(at, b"\0\7\0\0key\0", 0) for at in (5, beyond)]
    assert times_of(block) == ([5, beyond], [None, None])
