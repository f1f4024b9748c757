"""Tasks whose arguments cannot be meant: a sentence says why, and nothing is changed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from stateflow.airflow import (
    StateflowCleanupOperator,
    StateflowRescaleOperator,
    StateflowRestoreOperator,
    StateflowSavepointOperator,
    StateflowStopOperator,
)
from tests.airflow.conftest import Connect
from tests.airflow.tasks import ran
from tests.jobs.files import files_of
from tests.jobs.made import ORDERS, made_job

CLEANUP, RESCALE, RESTORE = StateflowCleanupOperator, StateflowRescaleOperator, StateflowRestoreOperator
SAVEPOINT, STOP = StateflowSavepointOperator, StateflowStopOperator
NEEDED: dict[type[BaseOperator], dict[str, Any]] = {
    RESCALE: {"parallelism": 4},
    RESTORE: {"pipeline": f"{ORDERS}:orders"},
}


@pytest.mark.parametrize(
    ("operator", "arguments", "sentence"),
    [
        (CLEANUP, {"job": "nonsense"}, "there is no job 'nonsense' in .*; its jobs are: orders"),
        (CLEANUP, {"retained": "{{ 0 }}"}, "task 'it': retained='0' has to be a whole number of 1 or more"),
        (CLEANUP, {"age": "{{ 'old' }}"}, "task 'it': age='old'"),
        (CLEANUP, {"dry_run": "{{ 'perhaps' }}"}, "task 'it': dry_run='perhaps' has to be true or false"),
        (RESCALE, {"job": "nonsense"}, "there is no job 'nonsense'"),
        (RESCALE, {"parallelism": 999}, "999"),
        (
            RESCALE,
            {"parallelism": "{{ 'many' }}"},
            "task 'it': parallelism='many' has to be a whole number of 1 or more",
        ),
        (
            RESCALE,
            {"parallelism": "{{ 0 }}"},
            "task 'it': parallelism='0' has to be a whole number of 1 or more",
        ),
        (RESTORE, {"job": "nonsense"}, "there is no job 'nonsense'"),
        (RESTORE, {"origin": "checkpoint:99"}, "checkpoint 99|record 99|99"),
        (RESTORE, {"origin": "checkpoint:x"}, "checkpoint:x does not name a checkpoint"),
        (RESTORE, {"origin": "tag:v9"}, "job 'orders' has no tag 'v9'"),
        (RESTORE, {"origin": "/nowhere/at/all"}, "there is no savepoint in file:///nowhere/at/all"),
        (RESTORE, {"pipeline": "/nowhere/orders.py:orders"}, "/nowhere/orders.py does not exist"),
        (RESTORE, {"pipeline": f"{ORDERS}:nonsense"}, "nonsense"),
        (
            RESTORE,
            {"rewind_sinks": "{{ 'perhaps' }}"},
            "task 'it': rewind_sinks='perhaps' has to be true or false",
        ),
        (RESTORE, {"parallelism": "{{ 999 }}"}, "999"),
        (RESTORE, {"max_parallelism": "{{ 256 }}"}, "needs a canonical savepoint"),
        (
            RESTORE,
            {"claim_mode": "{{ 'steal' }}"},
            "task 'it': claim_mode='steal' is not one of no_claim, claim",
        ),
        (RESTORE, {"job": "other", "from_job": "orders"}, "two jobs would mix their output"),
        (RESTORE, {"spark_conn_id": "nowhere"}, "there is no connection 'nowhere': add it with"),
        (SAVEPOINT, {"job": "nonsense"}, "there is no job 'nonsense' in .*; its jobs are: orders"),
        (SAVEPOINT, {"checkpoint": "checkpoint:99"}, "99"),
        (SAVEPOINT, {"checkpoint": "tag:v9"}, "job 'orders' has no tag 'v9'; its tags are: none"),
        (SAVEPOINT, {"name": "a/b"}, "a/b"),
        (SAVEPOINT, {"kind": "{{ 'half' }}"}, "task 'it': kind='half' is not one of native, canonical"),
        (SAVEPOINT, {"expires": "{{ 0 }}"}, "task 'it': expires='0' has to be more than 0"),
        (SAVEPOINT, {"expires": "{{ 'soon' }}"}, "task 'it': expires='soon' .*'10 minutes'"),
        (STOP, {"job": "nonsense"}, "there is no job 'nonsense'"),
        (STOP, {"wait": "{{ 'long' }}"}, "task 'it': wait='long'"),
        (
            STOP,
            {"kind": "{{ 'half' }}", "savepoint": True},
            "task 'it': kind='half' is not one of native, canonical",
        ),
    ],
)
def test_bad_input_is_told_in_a_sentence_and_changes_nothing(
    tmp_path: Path,
    connect: Connect,
    operator: type[BaseOperator],
    arguments: dict[str, Any],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # the pipeline's file puts its folder there
    connect(tmp_path)
    made_job(tmp_path, ended=operator is not STOP)
    before = files_of(tmp_path)
    with pytest.raises(AirflowFailException, match=sentence):
        ran(operator, **{**NEEDED.get(operator, {}), **arguments})
    assert files_of(tmp_path) == before
