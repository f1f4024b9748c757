"""What of a table a question needs. More than that is slow; less would be wrong."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from stateflow.errors import UsageError
from stateflow.format.encoding import EMPTY_NAMESPACE, prefix
from stateflow.format.keygroups import xxhash64
from stateflow.spark.state_tables.selection import (
    EVERYTHING,
    MOST_KEYS,
    Selection,
    both,
    of_groups,
    of_keys,
    of_values,
)
from stateflow.state.keys.codec import KeyCodec
from tests.refusals.refusal import refused

USER = (("user", "int"),)
PAIR = (("name", "str"), ("day", "date"))


def test_a_value_for_every_key_column_selects_its_key_groups_and_nothing_else() -> None:
    found = of_values({"user": [5, 6]}, USER, 128)
    assert found.keys == {(5,), (6,)}
    assert found.groups == {xxhash64(5) % 128, xxhash64(6) % 128}
    day = date(2026, 1, 1)
    found = of_values({"name": ["a"], "day": [day]}, PAIR, 128)
    assert (found.keys, found.groups) == ({("a", day)}, {xxhash64(("a", day)) % 128})


@pytest.mark.parametrize(
    "equal",
    [
        {},
        {"other": [1]},
        {"name": ["a"]},  # half of a key is nowhere in particular
        {"name": [b"a"], "day": [date(2026, 1, 1)]},
        {"name": ["a"], "day": [datetime(2026, 1, 1, tzinfo=UTC)]},
        {"name": ["a", 5], "day": [date(2026, 1, 1)]},
    ],
)
def test_what_is_not_understood_selects_everything(equal: dict[str, list[Any]]) -> None:
    assert of_values(equal, PAIR, 128) == EVERYTHING


def test_too_many_keys_are_not_worked_out() -> None:
    many = list(range(MOST_KEYS + 1))
    assert of_values({"user": many}, USER, 128) == EVERYTHING
    assert of_values({"user": many[:-1]}, USER, 128).keys is not None


def test_a_decimal_that_no_key_can_have_is_left_to_the_filter() -> None:
    key = (("money", "decimal"),)
    assert of_values({"money": [Decimal("1e-30")]}, key, 128) == EVERYTHING
    one = of_values({"money": [Decimal("1.5")]}, key, 128)
    assert one == of_values({"money": [Decimal("1.500")]}, key, 128) == of_keys([Decimal("1.50")], key, 128)
    assert one.groups == {xxhash64(Decimal("1.5")) % 128}


def test_keys_that_are_named_must_be_keys() -> None:
    with refused(UsageError, "where an int was declared"):
        of_keys(["a"], USER, 128)


def test_two_selections_want_what_both_want() -> None:
    five, six = of_keys([5], USER, 128), of_keys([6], USER, 128)
    assert both(five, EVERYTHING) == both(EVERYTHING, five) == five
    assert both(five, six).keys == frozenset()
    assert not both(five, six).overlaps(0, 127)
    group = xxhash64(5) % 128
    assert both(five, of_groups([group, group + 1])).groups == {group}
    assert both(of_groups(range(10)), of_groups(range(5, 20))).groups == set(range(5, 10))


def test_runs_of_neighbouring_key_groups_are_read_at_once() -> None:
    assert EVERYTHING.of(3, 9) == [(3, 9)]
    assert of_groups([1, 4, 5, 6, 9, 30]).of(4, 20) == [(4, 6), (9, 9)]


def test_the_ranges_of_keys_hold_their_entries_and_no_others() -> None:
    codec = KeyCodec(["str"])
    key, most = (("name", "str"),), 4
    selection = of_keys(["a", "ab"], key, most)
    ranges = selection.key_ranges(key, most, 7, 0, most - 1)
    assert ranges == sorted(ranges)

    def held(name: str, state: int = 7) -> bool:
        full = prefix(xxhash64(name) % most, state) + codec.encode(name) + EMPTY_NAMESPACE + b"more"
        return any(begin <= full < end for begin, end in ranges)

    assert held("a")
    assert held("ab")
    assert not any(held(name) for name in ("", "abc", "b", "a\0"))
    assert not held("a", 8)
    mine = xxhash64("a") % most
    only = selection.key_ranges(key, most, 7, mine, mine)
    assert len(only) == (1 if xxhash64("ab") % most != mine else 2)


def test_a_selection_may_name_no_key_at_all() -> None:
    nothing = Selection(frozenset(), frozenset())
    assert not nothing.everything
    assert nothing.of(0, 5) == []
    assert nothing.key_ranges(USER, 8, 1, 0, 7) == []
