"""What one side's own files say of a key, and when only a look into a shared file tells."""

from __future__ import annotations

from stateflow.reading.files.differences import UNKNOWN, _OneSide
from stateflow.reading.files.manifest import LiveFile
from stateflow.reading.files.sst import DeletedRange


def side(*shared: LiveFile, deleted: tuple[DeletedRange, ...] = ()) -> _OneSide:
    made = _OneSide.__new__(_OneSide)
    made.shared, made.deleted = list(shared), list(deleted)
    return made


SHARED = LiveFile("000004.sst", 0, b"b", b"d", 10, 20)


def test_an_entry_counts_only_above_everything_that_a_shared_file_has_of_its_keys() -> None:
    one = side(SHARED)
    assert one.stored(b"c", (21, b"new")) == b"new"
    assert one.stored(b"c", (20, b"old")) is UNKNOWN
    assert one.stored(b"c", (5, b"merged")) is UNKNOWN
    assert one.stored(b"c", None) is UNKNOWN
    assert one.stored(b"a", (5, b"alone")) == b"alone"
    assert one.stored(b"e", None) is None


def test_a_deleted_range_hides_older_entries_and_no_newer_ones() -> None:
    one = side(deleted=(DeletedRange(b"b", b"d", 7),))
    assert one.latest(b"c", [(3, b"old"), (5, b"older range")]) == (7, None)
    assert one.latest(b"c", [(8, b"new")]) == (8, b"new")
    assert one.latest(b"d", [(3, b"outside")]) == (3, b"outside")
    assert one.latest(b"c", []) == (7, None)


def test_a_moved_entry_has_the_rank_that_it_had_and_a_written_one_has_another() -> None:
    one = side(SHARED)
    assert one.rank(b"c", 5) == one.rank(b"c", 6) != one.rank(b"c", 21)
    assert one.rank(b"c", 15) is None
    assert one.rank(b"a", 15) == ()
