"""What subtasks are given of an operator's own state, and what the record keeps of it."""

from __future__ import annotations

from typing import Any

import pytest

import stateflow as sf
from stateflow.checkpoint.rescale import redistributed
from stateflow.format.records import OperatorListState
from stateflow.operators.binding import bind
from stateflow.operators.elements import gathered, hand_out
from stateflow.state.broadcast_map import writing
from stateflow.state.cursor import Cursor


class Counting(sf.KeyedProcess[int, Any, Any]):
    mine = sf.OperatorListState(int)
    everybodys = sf.UnionListState(int)
    rates = sf.BroadcastState(str, float)


class Nested(sf.KeyedProcess[int, Any, Any]):
    mine = sf.OperatorListState(list[int])
    everybodys = sf.UnionListState(dict[str, list[int]])


class Subtasks:
    """The subtasks of an operator, batch after batch, with what the record keeps between them."""

    def __init__(self, count: int) -> None:
        self.elements: dict[str, tuple[tuple[bytes, ...], ...]] = {}
        self.count = count

    def batch(self, code: Any = lambda process, subtask: None, *, begins: bool = False) -> None:
        parts = []
        for subtask in range(self.count):
            process = Counting()
            bind(process, "op", Cursor(1, 0), {})
            hand_out(process, self.elements, subtask, whole=begins)
            code(process, subtask)
            parts.append(gathered("op", process))
        self.elements = {name: tuple(part[name] for part in parts) for name in parts[0]}

    def rescale(self, count: int) -> None:
        for name, kind in (("mine", "list"), ("everybodys", "union")):
            state = OperatorListState(kind, "int", self.elements[name])  # type: ignore[arg-type]
            self.elements[name] = redistributed(state, count).parts
        self.count = count

    def shown(self, *, begins: bool) -> list[list[int]]:
        out: list[list[int]] = []
        self.batch(lambda process, subtask: out.append(sorted(process.everybodys.get())), begins=begins)
        return out

    @property
    def recorded(self) -> int:
        return sum(map(len, self.elements["everybodys"]))


@pytest.fixture
def four() -> Subtasks:
    subtasks = Subtasks(4)
    subtasks.batch(lambda process, subtask: process.everybodys.add(subtask), begins=True)
    return subtasks


def test_an_untouched_union_keeps_its_size_over_batches_and_runs(four: Subtasks) -> None:
    for batch in range(8):
        four.batch(begins=batch % 3 == 0)
        assert four.recorded == 4


def test_a_union_is_shown_whole_when_a_run_begins_and_each_subtasks_own_after_that(four: Subtasks) -> None:
    assert four.shown(begins=True) == [[0, 1, 2, 3]] * 4
    assert four.shown(begins=False) == [[0], [1], [2], [3]]


def test_what_is_added_to_a_union_is_recorded_once(four: Subtasks) -> None:
    def add_ten(process: Counting, subtask: int) -> None:
        process.everybodys.add(subtask + 10)

    four.batch(add_ten, begins=True)
    assert four.shown(begins=False) == [[0, 10], [1, 11], [2, 12], [3, 13]]


def test_each_subtask_records_what_it_replaces_a_union_with(four: Subtasks) -> None:
    def take_even(process: Counting, subtask: int) -> None:
        process.everybodys.update(n for n in process.everybodys.get() if n % 2 == 0 and subtask == 0)

    four.batch(take_even, begins=True)
    assert four.shown(begins=False) == [[0, 2], [], [], []]
    four.batch(lambda process, subtask: process.everybodys.clear())
    assert four.recorded == 0


@pytest.mark.parametrize("count", [1, 3, 7])
def test_every_subtask_sees_the_whole_union_after_a_rescale_and_nothing_is_lost(
    four: Subtasks, count: int
) -> None:
    four.rescale(count)
    assert four.shown(begins=True) == [[0, 1, 2, 3]] * count
    assert four.recorded == 4
    assert sorted(n for part in four.shown(begins=False) for n in part) == [0, 1, 2, 3]


def test_a_list_stays_with_its_subtask_and_a_map_is_one_copy(four: Subtasks) -> None:
    def write(process: Counting, subtask: int) -> None:
        process.mine.update([*process.mine.get(), subtask])
        with writing([process.rates]):
            process.rates["tea"] = process.rates.get("tea", 0.0) + 1

    four.batch(write)
    four.batch(write, begins=True)
    assert [len(part) for part in four.elements["mine"]] == [2, 2, 2, 2]
    assert len(set(four.elements["rates"])) == 1


def test_a_value_of_the_wrong_type_names_operator_and_state() -> None:
    def code(process: Any, subtask: int) -> None:
        with writing([process.rates]):
            process.rates["tea"] = None

    with pytest.raises(sf.StateTypeError) as caught:
        Subtasks(1).batch(code)
    assert str(caught.value) == (
        "operator 'op', state 'rates': expected dict[str, float], but in the value expected `float`, got `None` - at `$[...]`: declare "
        "`float | None`, or give it a value before it is stored"
    )


def test_a_change_in_place_of_what_was_read_does_not_reach_the_record() -> None:
    """In a run nobody tells of it: the elements stay as they were."""
    process = Nested()
    bind(process, "op", Cursor(1, 0), {})
    process.mine.add([1])
    process.everybodys.add({"a": [1]})
    before = gathered("op", process)
    process.mine.get()[0].append(2)
    process.everybodys.get()[0]["a"].append(2)
    assert gathered("op", process) == before
    assert (process.mine.get(), process.everybodys.get()) == ([[1]], [{"a": [1]}])
