"""The index of expiries, byte for byte: what is stored once is read for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.errors import CorruptError
from stateflow.format.expiry_blocks import (
    AT_ONCE,
    SweepProgress,
    block,
    block_key,
    decode_progress,
    encode_progress,
    is_block,
    keys_of,
    progress_key,
)
from tests.refusals.refusal import refused


def test_these_bytes_never_change() -> None:
    assert block_key(5, 9, 1_000_000, 7, 2).hex() == "0005000980000000000f4240000000000000000700000002"
    assert block_key(5, 9, AT_ONCE, 7, 2).hex() == "000500090000000000000000000000000000000700000002"
    assert progress_key(5, 9).hex() == "000500090000000000000000"
    assert block([b"ab", b"cd"]).hex() == "000000000261626364"
    assert block([b"a", b"bcd"]).hex() == "010000000200000001000000036162636" + "4"
    assert encode_progress(SweepProgress(3, True, b"")).hex() == "0000000301"
    assert encode_progress(SweepProgress(3, False, b"ab")).hex() == "00000003006162"


@given(st.lists(st.binary(min_size=1), min_size=1))
def test_a_block_names_the_keys_it_was_made_of(keys: list[bytes]) -> None:
    assert keys_of(block(keys)) == keys
    assert keys_of(block(keys), b"begin") == [b"begin" + key for key in keys]


def test_progress_is_told_from_blocks() -> None:
    assert not is_block(progress_key(5, 9))
    assert is_block(block_key(5, 9, AT_ONCE, 0, 0))
    for progress in (SweepProgress(1, False, b"key"), SweepProgress(2, True, b"")):
        assert decode_progress(encode_progress(progress)) == progress


@pytest.mark.parametrize(
    "damaged", [b"", b"\0", b"\0\0\0\0\2abc", b"\0\0\0\0\0", b"\1\0\0\0\2\0\0\0\1", b"\7" * 9]
)
def test_a_damaged_block_is_found(damaged: bytes) -> None:
    with refused(CorruptError, "run `stateflow verify`"):
        keys_of(damaged)


def test_damaged_progress_is_found() -> None:
    with refused(CorruptError, "run `stateflow verify`"):
        decode_progress(b"\0\0")
