"""The size of the next batch: decided from what the last one took, without Spark."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from stateflow.spark.inputs.admission import messages_between, seconds_of
from stateflow.spark.inputs.batch_size import (
    FIRST,
    BatchSize,
    Measured,
    Share,
    first_size,
    note,
    reachable,
    size_of,
)

TARGET = 10.0


def of(most: int, took: int | None = None) -> BatchSize:
    return BatchSize((Share("orders", "rows", most, took),))


def most(size: BatchSize) -> int:
    return size.shares[0].most


@pytest.mark.parametrize(
    ("before", "took", "seconds", "after"),
    [
        (1000, 1000, 10.0, 1000),  # right
        (1000, 1000, 9.0, 1000),  # near enough: what is measured varies
        (1000, 1000, 1.0, 2000),  # far too short: no more than twice as much at a time
        (1000, 1000, 5.0, 1587),  # two thirds of what is missing
        (1000, 1000, 20.0, 629),
        (1000, 1000, 1000.0, 250),
        (1000, 100, 1.0, 1000),  # there was no more: it says nothing of a batch that is full
        (1000, 0, 1.0, 1000),
        (1, 1, 100.0, 1),  # never below one unit
        (1000, 50_000, 1.0, 100_000),  # a file that is larger than the limit, and quick
        (1000, 50_000, 100.0, 1000),
    ],
)
def test_the_next_size(before: int, took: int, seconds: float, after: int) -> None:
    assert most(of(before, took).after(took or 1, seconds, TARGET)) == after


def test_a_batch_without_rows_decides_nothing() -> None:
    size = of(1000, 0)
    assert size.after(0, 100.0, TARGET) is size


def test_batches_of_which_the_source_keeps_no_row_grow_and_shrink_like_others() -> None:
    assert of(1000, 1000).after(0, 1.0, TARGET) == of(2000)
    assert of(1000, 1000).after(0, 1000.0, TARGET) == of(250)
    learned = BatchSize((Share("orders", "rows", 1000, 1000),), Measured(((1000, 5.0),)))
    assert learned.after(0, 1.0, TARGET).measured == learned.measured


def test_a_quiet_source_keeps_its_size_while_a_busy_one_grows() -> None:
    size = BatchSize((Share("orders", "rows", 1000, 1000), Share("visits", "bytes", 5000, 10)))
    assert [share.most for share in size.after(1010, 1.0, TARGET).shares] == [2000, 5000]


def played(
    cost: Callable[[int, int], float], batches: int, backlog: int = 1 << 60, arrives: int = 0
) -> list[tuple[int, float]]:
    """Rows and seconds of each batch. `cost`: the seconds of a batch by its number and its rows."""
    size, waits, seen = of(FIRST["rows"]), backlog, []
    for number in range(batches):
        took = min(waits, most(size))
        seconds = cost(number, took)
        seen.append((took, seconds))
        waits = waits - took + arrives
        size = size.taken([took]).after(took, seconds, TARGET)
    return seen


def test_a_backlog_begins_small_and_comes_to_the_target_from_below_without_swinging() -> None:
    seen = played(lambda _, rows: 0.5 + rows / 50_000, 30)
    rows, seconds = [each for each, _ in seen], [each for _, each in seen]
    assert rows[0] == 10_000
    assert all(later <= 2 * before for before, later in itertools.pairwise(rows))
    assert max(seconds) <= TARGET
    assert rows == sorted(rows)
    assert seconds[-1] >= 0.85 * TARGET
    assert next(n for n, each in enumerate(seconds) if each >= 0.85 * TARGET) <= 10


def test_noise_of_a_fifth_makes_no_swings() -> None:
    chance = random.Random(4)
    seen = played(lambda _, rows: (0.5 + rows / 50_000) * chance.uniform(0.8, 1.2), 200)
    settled = [seconds for _, seconds in seen[20:]]
    assert max(settled) < 1.5 * TARGET
    assert min(settled) > 0.6 * TARGET
    assert 0.8 * TARGET < sum(settled) / len(settled) < 1.1 * TARGET


def test_rows_that_become_dearer_make_batches_smaller() -> None:
    seen = played(lambda n, rows: 0.5 + rows / (50_000 if n < 30 else 10_000), 60)
    assert seen[30][1] > 3 * TARGET  # nobody could know
    assert seen[33][1] < 1.3 * TARGET
    assert 0.85 * TARGET <= seen[-1][1] <= 1.1 * TARGET


def test_after_a_long_pause_the_first_batches_are_no_larger_than_what_was_learned() -> None:
    size = of(FIRST["rows"])
    for rows, seconds in [(10_000, 0.7), (20_000, 0.9), (500, 0.5), *[(20, 0.5)] * 500]:
        size = size.taken([rows]).after(rows, seconds, TARGET)
    assert most(size) == 40_000


def test_one_slow_batch_costs_little() -> None:
    seen = played(lambda n, rows: (0.5 + rows / 50_000) * (5 if n == 30 else 1), 40)
    assert seen[31][0] < seen[29][0]
    assert seen[36][1] >= 0.8 * TARGET


def test_a_target_that_even_an_empty_batch_takes_does_not_shrink_batches_for_ever() -> None:
    seen = played(lambda _, rows: 15 + rows / 50_000, 60)
    assert all(15 < seconds < 36 for _, seconds in seen[20:])
    assert min(rows for rows, _ in seen[20:]) > 100_000


@pytest.mark.parametrize(
    ("batches", "fixed", "made_for"),
    [
        ((), None, TARGET),
        (((10_000, 15.2),) * 12, None, TARGET),  # all alike: they tell nothing of other sizes
        (((10_000, 15.2), (20_000, 15.4), (40_000, 15.8)), None, TARGET),  # too few
        (((10_000, 15.2), (20_000, 15.4), (40_000, 15.8), (80_000, 16.6)), 15.0, 30.0),
        (((10_000, 1.2), (20_000, 1.4), (40_000, 1.8), (80_000, 2.6)), 1.0, TARGET),
        (((10_000, 1.2), (20_000, 1.4), (40_000, 20.0), (80_000, 2.6)), 1.0, TARGET),  # one was slow
    ],
)
def test_what_a_batch_costs_beside_its_rows(
    batches: tuple[tuple[int, float], ...], fixed: float | None, made_for: float
) -> None:
    measured = Measured(batches)
    assert measured.fixed == (None if fixed is None else pytest.approx(fixed, abs=0.2))
    assert reachable(TARGET, measured) == pytest.approx(made_for, abs=0.4)


def test_a_busy_machine_does_not_make_batches_longer_than_the_target() -> None:
    """Other work makes a batch up to three times as long; what was seen when two pairs of batches said what a batch costs."""
    chance = random.Random(2)
    seen = played(lambda _, rows: (0.5 + rows / 50_000) * chance.choice((1, 1, 1.5, 2, 3)), 300)
    settled = [seconds for _, seconds in seen[20:]]
    assert 0.7 * TARGET < sum(settled) / len(settled) < 1.3 * TARGET


def test_rows_that_take_long_are_not_taken_for_what_a_batch_costs_beside_them() -> None:
    seen = played(lambda _, rows: 0.5 + rows / 100, 30)
    assert seen[0][1] > 100  # a hundred rows a second, and nobody could know
    assert 0.85 * TARGET <= seen[-1][1] <= 1.1 * TARGET
    assert max(seconds for _, seconds in seen[6:]) <= 1.2 * TARGET


def test_a_slow_start_is_not_what_every_batch_costs() -> None:
    seen = played(lambda n, rows: (30 if n == 0 else 0.5) + rows / 50_000, 30)
    assert max(seconds for _, seconds in seen[1:]) <= 1.1 * TARGET


def test_one_file_that_takes_longer_than_the_target_is_taken_alone() -> None:
    size = BatchSize((Share("orders", "bytes", 8 << 20, 1 << 30),))
    for _ in range(5):
        size = size.taken([1 << 30]).after(5_000_000, 40.0, TARGET)
        assert most(size) == 8 << 20
    assert reachable(TARGET, size.measured) == TARGET


def test_what_a_record_has_of_it_can_be_read_back() -> None:
    size = BatchSize(
        (Share("orders", "rows", 1000, 900), Share("visits", "bytes", 5000)),
        Measured(((100, 0.5), (7, 0.25))),
    )
    noted = note(size, 30.0)
    assert noted["target_ms"] == 30_000
    assert size_of(noted) == size


@pytest.mark.parametrize(
    "noted",
    [
        None,
        3,
        {},
        {"streams": 3},
        {"streams": [{"source": "orders", "unit": "miles", "most": 1}]},
        {"streams": [{"source": "orders", "unit": "rows", "most": -1}]},
        {"streams": [{"source": "orders", "unit": "rows", "most": "many"}]},
        {"streams": [], "batches": 4},
        {"streams": [], "batches": [4]},
        {"streams": [], "batches": [[4, "x"]]},
    ],
)
def test_what_is_no_note_is_not_taken(noted: object) -> None:
    assert size_of(noted) is None


def test_a_run_begins_with_what_the_record_has_and_small_where_it_has_nothing() -> None:
    noted = BatchSize(
        (Share("orders", "rows", 70_000, 9), Share("visits", "files", 12, 12)), Measured(((5, 0.4),))
    )
    size = first_size([("visits", "bytes"), ("orders", "rows"), ("new", "files")], noted)
    assert [(share.source, share.most) for share in size.shares] == [
        ("visits", FIRST["bytes"]),
        ("orders", 70_000),
        ("new", 1),
    ]
    assert size.measured == noted.measured


def test_a_batch_took_what_the_run_took_it_to_take_when_it_chose_the_next_size() -> None:
    phases = {"evaluate_ms": 7000, "decide_ms": 500, "commit_ms": 9000}
    assert seconds_of(phases) == 16.5
    assert seconds_of({**phases, "waited_ms": 1000}) == 8.5, "its own commit is beside the next batch"
    assert seconds_of({}) == 0.0


def test_messages_are_counted_between_two_positions() -> None:
    assert messages_between('{"orders":{"0":5,"1":7}}', '{"orders":{"0":6,"1":17},"more":{"0":3}}') == 14
    assert messages_between("-", '{"orders":{"0":6}}') is None
    assert messages_between("-", "-") == 0
