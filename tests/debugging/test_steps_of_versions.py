"""Between which checkpoints the rows of a version lie, by what the log still has."""

from __future__ import annotations

from stateflow.debugging.rows_of_versions import steps_of
from stateflow.format.records import Record
from stateflow.reading.history import KeyVersion
from stateflow.replay.span import Step
from tests.jobs.log import record


def told(*records: Record) -> dict[int, tuple[int | None, int] | str]:
    """By slot, the ends of its rows, or why there are none. Every record is a version."""
    versions = [KeyVersion(each.slot, 0, each.kind, "changed", None, "", "", {}) for each in records]
    return {
        slot: (step.before and step.before.slot, step.record.slot) if isinstance(step, Step) else step
        for slot, step in steps_of(records, versions).items()
    }


def test_rows_lie_behind_the_kept_checkpoint_before() -> None:
    steps = told(
        record(1), record(2, based_on=1), record(4, based_on=3), record(5, kind="rescale", based_on=4)
    )
    assert (steps[1], steps[2], steps[4]) == ((None, 1), (1, 2), (2, 4))
    assert "it is a rescale" in str(steps[5])
    assert "no checkpoint before it is kept" in str(told(record(3, based_on=2))[3])


def test_rows_behind_a_restore_begin_where_it_went_back_to_and_nobody_knows_where_without_its_record() -> (
    None
):
    old, new = record(6, based_on=5), record(8, based_on=7, timeline=2)
    restore = record(7, kind="restore", based_on=3, timeline=2)
    later = record(9, based_on=8, timeline=2)

    kept = told(old, restore, new, later)
    assert (kept[8], kept[9]) == ((7, 8), (8, 9))
    assert "it is a restore" in str(kept[7])
    collected = told(old, new, later)
    for part in ("restore lies between checkpoint 6", "record is not kept"):
        assert part in str(collected[8])
    assert collected[9] == (8, 9)
