"""The state of a run, from every combination of signs."""

from __future__ import annotations

import pytest

from stateflow.checkpoint.control import Heartbeat, RunOutcome
from stateflow.driver.processes import ProcessStatus
from stateflow.driver.run_state import (
    HUNG,
    START_PATIENCE,
    Ended,
    Lost,
    Running,
    RunObservation,
    RunState,
    run_state,
)
from stateflow.format.records import Owner

ME = Owner("r", dag_run="d/1", task="t")
GONE, VANISHED, ALIVE = ProcessStatus(False, 0), ProcessStatus(False), ProcessStatus(True)
WELL = RunOutcome(batches=2, rows=9, checkpoint=7, stopped="the input was drained")
ILL = RunOutcome(exit_code=7, error="the table disagrees")


def beat(*, ended: bool = False, outcome: RunOutcome | None = None) -> Heartbeat:
    return Heartbeat(epoch=3, counter=5, owner=ME, ended=ended, outcome=outcome)


def judged(
    process: ProcessStatus | None, heartbeat: Heartbeat | None, silent: float = 0, words: tuple[str, ...] = ()
) -> RunState:
    return run_state(RunObservation(process, heartbeat, silent), patience=10, last_words=words)


@pytest.mark.parametrize("silent", [0.0, 11.0, 5000.0])
def test_a_process_that_lives_is_waited_for_while_it_has_not_claimed(silent: float) -> None:
    assert judged(ALIVE, None, silent) == Running()


def test_a_process_whose_heart_stands_still_is_given_up_later_than_one_that_cannot_be_seen() -> None:
    assert judged(ALIVE, beat(), 11) == Running(3)
    assert isinstance(judged(ALIVE, beat(), 10 * HUNG + 1), Lost)
    assert isinstance(judged(None, beat(), 11), Lost)


def test_a_process_may_wind_down_after_its_last_beat_but_not_for_ever() -> None:
    assert judged(ALIVE, beat(ended=True, outcome=WELL), 10 * HUNG) == Running(3)
    assert judged(ALIVE, beat(ended=True, outcome=WELL), 10 * HUNG + 1) == Ended(WELL, 3)


def test_a_process_that_ends_well_without_its_runs_last_word_has_not_ended_well() -> None:
    assert judged(GONE, beat(), 9) == Running(3)
    assert isinstance(judged(GONE, beat(), 11), Lost)
    assert isinstance(judged(GONE, None), Lost)


def test_the_runs_own_words_are_taken_when_the_process_agrees() -> None:
    assert judged(GONE, beat(ended=True, outcome=WELL)) == Ended(WELL, 3)
    assert judged(ProcessStatus(False, 7), beat(ended=True, outcome=ILL)) == Ended(ILL, 3)


def test_a_process_that_failed_after_its_run_had_ended_well_has_failed() -> None:
    state = judged(
        ProcessStatus(False, 1), beat(ended=True, outcome=WELL), words=("Traceback", "stateflow: no table")
    )
    assert isinstance(state, Ended)
    assert (state.outcome.exit_code, state.outcome.error) == (1, "no table")


@pytest.mark.parametrize("code", [-9, 137])
def test_a_killed_process_may_be_tried_again(code: int) -> None:
    state = judged(ProcessStatus(False, code), beat())
    assert isinstance(state, Ended)
    assert state.outcome.exit_code == 1
    assert state.outcome.error.startswith(
        "the driver was killed (signal 9): if nobody did that, its host ran out"
    )
    for step in ("an Airflow pool", "driver_memory", "dmesg"):
        assert step in state.outcome.error


@pytest.mark.parametrize(
    ("code", "why", "said"),
    [
        (
            137,
            "OOMKilled",
            "(signal 9, OOMKilled): its pod needs more memory than its limit: raise driver_memory",
        ),
        (137, "Evicted: low on disk", "(signal 9, Evicted: low on disk)"),
        (-15, "", "(signal 15)"),
    ],
)
def test_a_kill_names_the_next_step_where_memory_was_the_reason(code: int, why: str, said: str) -> None:
    state = judged(ProcessStatus(False, code, reason=why), beat())
    assert isinstance(state, Ended)
    assert state.outcome.error.startswith(f"the driver was killed {said}")
    assert ("memory" in state.outcome.error) is ("OOM" in why)


def test_what_was_refused_before_anything_was_claimed_is_told_by_the_commands_last_words() -> None:
    words = ("orders: starting Spark", "stateflow: job 'orders' has another key", "log4j: bye")
    state = judged(ProcessStatus(False, 4), None, words=words)
    assert state == Ended(RunOutcome(exit_code=4, error="job 'orders' has another key"))


def test_the_commands_last_words_may_be_in_colour_or_in_a_box() -> None:
    coloured = ("\x1b[1;31mstateflow:\x1b[0m job 'orders' is busy",)
    assert judged(ProcessStatus(False, 8), None, words=coloured) == Ended(
        RunOutcome(exit_code=8, error="job 'orders' is busy")
    )
    box = ("╭─ Error ──╮", "│ No such option: --nope │", "╰──────────╯")
    assert judged(ProcessStatus(False, 2), None, words=box) == Ended(
        RunOutcome(exit_code=2, error="│ No such option: --nope │")
    )


def test_a_driver_that_vanished_with_its_supervisor_is_lost_unless_its_heartbeat_says_more() -> None:
    assert isinstance(judged(VANISHED, None), Lost)
    assert judged(VANISHED, beat(ended=True, outcome=WELL)) == Ended(WELL, 3)
    assert judged(VANISHED, beat(), 3) == Running(3)
    assert isinstance(judged(VANISHED, beat(), 11), Lost)


def test_a_run_elsewhere_is_followed_by_its_heart() -> None:
    assert judged(None, None, START_PATIENCE - 1) == Running()
    assert isinstance(judged(None, None, START_PATIENCE + 1), Lost)
    assert judged(None, beat(), 9) == Running(3)
    assert judged(None, beat(ended=True, outcome=ILL)) == Ended(ILL, 3)


def test_an_end_without_a_word_is_no_success() -> None:
    state = judged(None, beat(ended=True))
    assert isinstance(state, Ended)
    assert state.outcome.exit_code == 1
