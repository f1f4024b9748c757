"""Key groups: frozen hashes, and an assignment without holes."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.errors import UsageError
from stateflow.format.keygroups import default_assignment, key_group, xxhash64
from tests.refusals.refusal import refused

# Computed by Spark 4.2; test_keygroups_spark compares many more.
FROZEN: list[tuple[Any, int]] = [
    (True, -6698625589789238999),
    (False, 3614696996920510707),
    (1, -7001672635703045582),
    (-1, 3858142552250413010),
    (0, -5252525462095825812),
    (2**63 - 1, -3246596055638297850),
    ("", -7444071767201028348),
    ("a", -8582455328737087284),
    ("héé\0", 2947122385789714222),
    (b"\0\1", 7116559933691734543),
    (date(2026, 11, 20), 6603484566292149371),
    (datetime(2026, 11, 20, 9, 30, 0, 1, tzinfo=UTC), -5623371907336130933),
    (Decimal("1.5"), -1865349820259408432),
    (Decimal("-1E-18"), -4006032525457443936),
    ((1, "a"), -8527884376001292090),
    (("a", 1), -1010403264180844141),
]


@pytest.mark.parametrize(("key", "frozen"), FROZEN)
def test_the_hash_of_a_key_never_changes(key: Any, frozen: int) -> None:
    assert xxhash64(key) == frozen


def test_a_null_part_leaves_the_hash_as_it_was() -> None:
    assert xxhash64((None, 5)) == xxhash64(5) == xxhash64((5, None))
    assert xxhash64(None) == 42


def test_a_tuple_of_one_is_its_part() -> None:
    assert xxhash64(("a",)) == xxhash64("a")


def test_equal_decimals_hash_alike() -> None:
    assert xxhash64(Decimal("1.50")) == xxhash64(Decimal("1.5"))


@pytest.mark.parametrize("key", [1.5, 2**63, datetime(2020, 1, 1), object()])
def test_what_cannot_be_a_key_has_no_hash(key: Any) -> None:
    with pytest.raises(UsageError):
        xxhash64(key)


def test_the_key_group_of_a_negative_hash_is_not_negative() -> None:
    assert xxhash64(1) < 0
    assert (key_group(1, 128), key_group("a", 128), key_group(1, 100)) == (50, 76, 18)


def test_the_default_assignment_is_frozen() -> None:
    assert default_assignment(1, 128) == ((0, 127),)
    assert default_assignment(3, 128) == ((0, 42), (43, 85), (86, 127))
    assert default_assignment(4, 4) == ((0, 0), (1, 1), (2, 2), (3, 3))


@given(st.data())
def test_every_key_group_belongs_to_one_subtask(data: st.DataObject) -> None:
    most = data.draw(st.integers(1, 300))
    parallelism = data.draw(st.integers(1, most))
    assignment = default_assignment(parallelism, most)
    owners = [subtask for subtask, (first, last) in enumerate(assignment) for _ in range(first, last + 1)]
    assert owners == [group * parallelism // most for group in range(most)]
    assert len(assignment) == parallelism


@pytest.mark.parametrize(("parallelism", "most"), [(0, 128), (129, 128), (1, 0), (1, 32769)])
def test_impossible_assignments_are_refused(parallelism: int, most: int) -> None:
    with refused(UsageError, "use 1 to"):
        default_assignment(parallelism, most)
