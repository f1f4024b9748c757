"""Whose code it was: the user's frames, out of all that Python, Spark and this library put around them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stateflow as sf
from stateflow.errors import (
    StateflowError,
    UsageError,
    UserCodeError,
    frames_beside,
    frames_in,
    is_user_file,
    placed,
    user_frames,
)
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark.task.failures import task_error, translated


def caught() -> BaseException:
    try:
        json.loads("{")
    except ValueError as error:
        try:
            raise UsageError("the pipeline is wrong") from error
        except UsageError as outer:
            return outer
    raise AssertionError


def test_the_frames_are_those_of_the_cause_and_of_nobody_else() -> None:
    shown = user_frames(caught())
    assert f'File "{__file__}", line' in shown
    assert 'json.loads("{")' in shown
    assert "json/decoder.py" not in shown
    assert shown.splitlines()[-1].startswith("json.decoder.JSONDecodeError: ")


def test_what_is_printed_beside_the_error_does_not_repeat_it() -> None:
    shown = frames_beside(caught())
    assert shown == user_frames(caught()), "the sentence does not say what was raised"
    with pytest.raises(UsageError) as found:
        sf.delta("")
    assert 'sf.delta("")' in frames_beside(found.value)
    assert str(found.value) not in frames_beside(found.value)
    problem = ValueError("a negative\namount")
    try:
        raise problem
    except ValueError as error:
        told = UserCodeError(f"operator 'x' failed: {placed(error)}")
        told.__cause__ = error
    assert "raise problem" in frames_beside(told).splitlines()[-1]
    problem.args = ("x" * 1000,)
    assert frames_beside(told).endswith("x" * 1000), "the sentence has only its beginning"


@dataclass
class Paid:
    user: int
    amount: float


class Sold(msgspec.Struct):
    user: int
    amount: float


class Plain:
    """Neither a row nor a value."""

    _fields = property(lambda self: ())


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (row_type("user long, amount double").make(1, 2.0), "; Row has the fields user, amount"),
        (Paid(1, 2.0), "; Paid has the fields user, amount"),
        (Sold(1, 2.0), "; Sold has the fields user, amount"),
        (Plain(), ""),
        ((1, 2.0), ""),
        (None, ""),
    ],
)
def test_a_field_that_a_row_lacks_is_told_with_those_that_it_has(value: Any, told: str) -> None:
    with pytest.raises(AttributeError) as found:
        value.amuont  # noqa: B018
    assert placed(found.value).partition(" (line ")[0] == f"AttributeError: {found.value}{told}"


def test_the_sentence_of_an_exception_has_no_password() -> None:
    error = ConnectionError("cannot reach postgresql://etl:hush@db.internal/orders " + "x" * 600)
    assert placed(error).startswith("ConnectionError: cannot reach postgresql://etl:***@db.internal/orders x")
    assert placed(ConnectionError("password='hu\nsh'")) == "ConnectionError: password=***"


def test_an_error_without_code_of_the_user_has_no_frames() -> None:
    assert user_frames(StateflowError("the store is away")) == ""


def test_a_mistake_in_a_call_of_the_library_is_shown_with_its_line() -> None:
    with pytest.raises(UsageError) as found:
        sf.delta("")
    assert 'sf.delta("")' in user_frames(found.value)


@pytest.mark.parametrize(
    "written",
    [
        lambda: sf.postgres("public.t", connection="postgresql://etl:geheim@db.example/shop"),
        lambda: sf.postgres("public.t", connection="host=db.example password=geheim"),
        lambda: sf.kafka("t", bootstrap="b:1", options={"kafka.sasl.jaas.config": "password='geheim';"}),
        lambda: json.loads("{", cls=lambda **k: [][int("password=geheim")]),  # type: ignore[arg-type]
    ],
)
def test_a_line_with_a_password_is_shown_without_it(written: Callable[[], object]) -> None:
    with pytest.raises((UsageError, ValueError)) as found:
        written()
    for shown in (user_frames(found.value), frames_beside(found.value), frames_in(user_frames(found.value))):
        assert "***" in shown
        assert "geheim" not in shown
        assert "^^^" not in shown, "marks below what is not there"


def test_a_sentence_that_the_user_raises_needs_no_frames() -> None:
    with pytest.raises(UsageError) as found:
        raise UsageError("this table is closed on Sundays")
    assert user_frames(found.value) == ""


def test_frames_travel_from_a_worker_to_the_driver() -> None:
    def failed() -> StateflowError:
        try:
            raise UserCodeError("operator 'x' failed") from caught()
        except UserCodeError as error:
            return error

    told = translated(task_error(failed()))
    assert isinstance(told, UserCodeError)
    assert 'json.loads("{")' in user_frames(told)


SPARK = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/usr/lib/python3/dist-packages/pyspark/worker.py", line 3390, in main
    process()
  File "/opt/pipelines/orders.py", line 12, in clean
    return frame["amount"] / 0
  File "/spark/python/lib/pyspark.zip/pyspark/serializers.py", line 1, in dump
ZeroDivisionError: division by zero
	at org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:581)
"""


def test_frames_are_found_in_what_spark_says_of_a_worker() -> None:
    assert frames_in(SPARK).splitlines() == [
        '  File "/opt/pipelines/orders.py", line 12, in clean',
        '    return frame["amount"] / 0',
    ]
    assert "orders.py" in user_frames(translated(RuntimeError(SPARK)))


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/opt/pyspark/jobs/orders.py", True),
        ("/srv/stateflow/pipelines/orders.py", True),
        ("/venv/lib/python3.11/site-packages/pandas/core/frame.py", False),
        ("/spark/python/pyspark/worker.py", False),
        (json.__file__, False),
        (sf.__file__, False),
        ("<frozen importlib._bootstrap>", False),
        ("<string>", False),
    ],
)
def test_a_file_is_the_users_or_somebody_elses(file: str, own: bool) -> None:
    assert is_user_file(file) is own


def test_of_a_deep_recursion_the_end_is_shown() -> None:
    def deep(n: int) -> int:
        return 1 // 0 if not n else deep(n - 1)

    with pytest.raises(ZeroDivisionError) as found:
        deep(200)
    lines = user_frames(found.value).splitlines()
    assert len(lines) < 70
    assert Path(__file__).name in lines[0]
