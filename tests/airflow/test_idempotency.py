"""The idempotency key of a task: a retry has the first try's, and a task that was cleared after its end another one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred

from stateflow.airflow import StateflowVerifyOperator
from stateflow.airflow.operators.idempotency import Note
from tests.airflow.tasks import Try, context_of, task


def work(attempt: Try, does: Callable[[], object] = lambda: None) -> str:
    """The key under which a try works."""
    operator = task(StateflowVerifyOperator)
    with operator.at_work():
        key = operator.acts_as(context_of(attempt)).run
        does()
    return key


def failing(error: BaseException) -> Callable[[], object]:
    def does() -> None:
        raise error

    return does


def key_of(attempt: Try) -> str:
    return str(task(StateflowVerifyOperator).acts_as(context_of(attempt)).run)


def test_a_retry_has_the_key_of_the_try_that_failed_was_killed_or_was_deferred() -> None:
    first = key_of(Try("it"))  # and its worker is gone
    for error in (ValueError("it"), TaskDeferred(trigger=None, method_name="resume")):
        with pytest.raises(type(error)):
            work(Try("it", try_number=2), failing(error))
        assert key_of(Try("it", try_number=3)) == first


def test_a_worker_that_dies_after_the_work_and_before_its_report_is_tried_again_under_the_same_key() -> None:
    assert work(Try("it")) == key_of(Try("it", try_number=2))


@pytest.mark.parametrize("end", [lambda: None, failing(AirflowSkipException("nothing to read"))])
def test_a_task_that_is_cleared_after_its_end_has_another_and_so_have_its_retries(
    end: Callable[[], object],
) -> None:
    keys = []
    for clears in range(3):
        keys.append(key_of(Try("it", clears=clears)))
        with suppress(AirflowSkipException):
            work(Try("it", clears=clears), end)
        assert key_of(Try("it", try_number=2, clears=clears)) == keys[-1]
    assert len(set(keys)) == 3


def test_a_task_that_is_cleared_beside_its_dag_run_has_another_too() -> None:
    """Through the API, which can leave the DAG run, and so its count, as it is."""
    first = work(Try("it"))
    cleared = key_of(Try("it", max_tries=3))
    assert cleared != first
    assert work(Try("it", try_number=3, max_tries=3)) == cleared
    assert key_of(Try("it", max_tries=4)) != cleared


def test_a_note_of_an_earlier_version_holds_by_the_dag_run_s_count() -> None:
    note = Note.of({"key": "k", "clears": 1, "ended": True})
    assert [note.holds(clears, 7) for clears in (1, 2)] == [True, False]


def test_a_task_that_was_cleared_goes_on_with_work_that_has_not_ended() -> None:
    with pytest.raises(ValueError, match="it"):
        work(Try("it"), failing(ValueError("it")))
    first = key_of(Try("it", clears=1))
    assert work(Try("it", clears=1)) == first
    assert key_of(Try("it", clears=2)) != first


def test_clearing_another_task_of_the_dag_run_does_not_separate_a_retry_from_its_first_try() -> None:
    assert key_of(Try("it")) == key_of(Try("it", try_number=2, clears=1))


def test_a_note_that_cannot_be_written_after_the_work_fails_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.airflow.task_state import TaskState

    def away(*_: object) -> None:
        raise RuntimeError("the API server is away")

    assert work(Try("it"), lambda: monkeypatch.setattr(TaskState, "set", away))


def test_a_note_is_read_as_it_was_written() -> None:
    for note in (Note("k", 0), Note("k", 2, ended=True), Note("k", 2, again=True), Note("k", 2, tries=3)):
        assert Note.of(note.plain()) == note
    assert Note.of({"key": "k", "clears": 1, "ended": True}) == Note("k", 1, ended=True), (
        "of an earlier version"
    )


def test_airflow_has_what_the_key_rests_on() -> None:
    """A store that retries share, an id for each try, and a count of clears in what a task knows of its DAG run."""
    from airflow.models.task_state_store import TaskStateStoreModel
    from airflow.models.taskinstance import TaskInstance, clear_task_instances
    from airflow.sdk.definitions.context import Context
    from airflow.sdk.types import DagRunProtocol, RuntimeTaskInstanceProtocol

    annotations: Any = inspect.get_annotations(Context)
    assert "task_state_store" in annotations
    assert "clear_number" in inspect.get_annotations(DagRunProtocol)
    assert "self.id = uuid7()" in inspect.getsource(TaskInstance.prepare_db_for_next_try)
    assert "max_tries" in inspect.get_annotations(RuntimeTaskInstanceProtocol)
    assert "ti.max_tries = ti.try_number + task.retries" in inspect.getsource(clear_task_instances)
    assert "dr.clear_number += 1" in inspect.getsource(clear_task_instances)
    [unique] = [each for each in TaskStateStoreModel.__table_args__ if "_uq" in str(each.name)]
    assert [column.name for column in unique.columns] == ["dag_run_id", "task_id", "map_index", "key"]
