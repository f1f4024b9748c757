from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.quantities import duration, size, written_duration, written_size


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("17", 17),
        ("20 KiB", 20480),
        ("20kb", 20480),
        ("256 MB", 256 << 20),
        ("1.5 GB", 3 << 29),
        ("1 TiB", 1 << 40),
    ],
)
def test_a_size_is_binary_whatever_its_unit_is_called(text: str, count: int) -> None:
    assert size(text) == count


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("0", timedelta(0)),
        ("500 ms", timedelta(milliseconds=500)),
        ("1.5s", timedelta(seconds=1.5)),
        ("10 minutes", timedelta(minutes=10)),
        ("1 h", timedelta(hours=1)),
        ("7 days", timedelta(days=7)),
        ("2 weeks", timedelta(days=14)),
        ("0.3 ms", timedelta(microseconds=300)),
        (f"1.{'0' * 40} s", timedelta(seconds=1)),
        ("1.001 s", timedelta(microseconds=1_001_000)),
    ],
)
def test_a_duration_has_a_unit(text: str, length: timedelta) -> None:
    assert duration(text) == length


@given(st.integers(0, 1 << 50))
def test_a_written_size_reads_back_as_itself(count: int) -> None:
    assert size(written_size(count)) == count


@given(st.integers(0, 10**9))
def test_a_written_duration_reads_back_as_itself(seconds: int) -> None:
    assert duration(written_duration(timedelta(seconds=seconds))) == timedelta(seconds=seconds)
