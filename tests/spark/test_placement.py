"""Where subtasks should run: with their state, unless they would wait for each other there."""

from __future__ import annotations

from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from stateflow.spark.shuffle.placement import balanced

A, B, C = "executor_host-1_0", "executor_host-2_1", "executor_host-1_2"


def test_subtasks_stay_where_their_state_is() -> None:
    assert balanced([B, A, B, A], {A: 2, B: 2}) == (B, A, B, A)


def test_subtasks_without_a_home_are_dealt_out_evenly() -> None:
    assert Counter(balanced([""] * 6, {A: 1, B: 2})) == {A: 2, B: 4}


def test_all_that_spark_put_on_one_executor_do_not_wait_there_for_each_other() -> None:
    assert Counter(balanced([A, A], {A: 1, B: 1})) == {A: 1, B: 1}
    assert Counter(balanced([A] * 8, {A: 2, B: 2})) == {A: 4, B: 4}


def test_nothing_moves_while_there_is_a_core_for_it() -> None:
    assert balanced([A, A], {A: 8, B: 8}) == (A, A)


def test_a_subtask_whose_executor_is_gone_goes_to_another_on_its_host() -> None:
    assert balanced([A, B], {C: 1, B: 1}) == (C, B)
    assert balanced(["executor_host-1_9", "executor_host-1_9", B], {C: 2, B: 2}) == (C, C, B)


def test_hosts_may_have_underscores() -> None:
    assert balanced(["executor_my_host_1", ""], {"executor_my_host_2": 1, B: 1}) == ("executor_my_host_2", B)


def test_without_executors_nothing_is_said_anew() -> None:
    assert balanced([A, ""], {}) == (A, "")


names = st.sampled_from([f"executor_host-{n % 3}_{n}" for n in range(7)])


CROWDED = ["", "executor_host-0_0", *[""] * 5, "executor_host-0_0", "", *["executor_host-0_0"] * 2, ""]
ONE_LARGER = {f"executor_host-{n % 3}_{n}": 1 + n // 6 for n in range(7)}


@example(CROWDED, ONE_LARGER)
@given(st.lists(names | st.just(""), max_size=40), st.dictionaries(names, st.integers(1, 8), min_size=1))
def test_nobody_has_more_than_its_cores_or_its_share_and_what_is_settled_stays(
    homes: list[str], executors: dict[str, int]
) -> None:
    found = balanced(homes, executors)
    assert len(found) == len(homes)
    every = sum(executors.values())
    for name, count in Counter(found).items():
        assert count <= max(executors[name], -(-len(homes) * executors[name] // every))
    assert balanced(found, executors) == found
