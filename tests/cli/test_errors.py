"""Errors become one sentence and the exit code that a scheduler acts on."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from stateflow import errors
from stateflow.checkpoint.pins import list_pins
from stateflow.jobs.job import Job
from tests.cli.conftest import Command
from tests.jobs.made import made_job


def raising(monkeypatch: pytest.MonkeyPatch, root: Path, error: BaseException) -> tuple[Any, ...]:
    made_job(root, batches=1)
    # What a function of this file raised would look like a user's own.
    monkeypatch.setattr(Job, "verify", Mock(side_effect=error))
    return ("verify", "orders", "--checkpoint-dir", root)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.StateflowError, 1),
        (errors.UsageError, 2),
        (errors.NotFoundError, 3),
        (errors.IncompatibleError, 4),
        (errors.FencedError, 5),
        (errors.CorruptError, 6),
        (errors.DisagreementError, 7),
        (errors.BusyError, 8),
        (errors.UnavailableError, 9),
    ],
)
def test_every_error_has_its_code(
    command: Command, root: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception], code: int
) -> None:
    arguments = raising(monkeypatch, root, kind("state [x] of 'a' is gone: look there"))
    said = command(*arguments)
    assert said.code == code
    assert said.out == ""
    assert said.err == "stateflow: state [x] of 'a' is gone: look there\n"
    body = json.loads(command(*arguments, "-o", "json").err)
    assert body == {
        "error": {
            "type": kind.__name__,
            "message": "state [x] of 'a' is gone: look there",
            "exit_code": code,
        }
    }


@pytest.mark.parametrize("kind", [errors.UserCodeError, ConnectionError])
def test_no_sentence_of_an_error_has_its_password(
    command: Command, root: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    arguments = raising(monkeypatch, root, kind("cannot reach postgresql://etl:hush@db.internal/orders"))
    for form in ("text", "json"):
        said = command(*arguments, "-o", form)
        assert "cannot reach postgresql://etl:***@db.internal/orders" in said.err
        assert "hush" not in said.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("show", "-o", "json"), "JOB"),
        (("shwo", "-o", "json"), "shwo"),
        (("shwo", "--output=json"), "shwo"),
        (("status", "-o", "json"), "show"),
        (("state", "exprt", "-o", "json"), "exprt"),
        (("show", "orders", "--nothing", "-o", "json"), "--nothing"),
        (("rescale", "orders", "--parallelism", "x", "-o", "json"), "--parallelism"),
    ],
)
def test_a_slip_in_the_command_line_is_json_too_where_json_is_asked_for(
    command: Command, words: tuple[str, ...], named: str
) -> None:
    said = command(*words)
    assert (said.code, said.out) == (2, "")
    body = json.loads(said.err)["error"]
    assert (body["type"], body["exit_code"]) == ("UsageError", 2)
    assert named in body["message"]
    assert len(said.err.splitlines()) == 1
    in_text = command(*(word for word in words if word not in ("-o", "json", "--output=json")))
    assert (in_text.code, "Usage" in in_text.err) == (2, True)


def test_ctrl_c_is_told_without_a_stack_trace(
    command: Command, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = command(*raising(monkeypatch, root, KeyboardInterrupt()))
    assert said.code == 130
    assert said.err == "stateflow: interrupted\n"


def test_what_nobody_expected_says_how_to_see_more(
    command: Command, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = raising(monkeypatch, root, ZeroDivisionError("division by zero"))
    said = command(*arguments)
    assert said.code == 1
    assert said.err == "stateflow: ZeroDivisionError: division by zero (not expected: --debug shows where)\n"
    assert "Traceback" in command(*arguments, "--debug").err


def test_sigterm_ends_a_command_as_ctrl_c_does_and_what_it_holds_is_let_go_of(
    command: Command, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = made_job(root)

    def told_to_end(*_: object, **__: object) -> None:
        assert list_pins(job.store, job.layout)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("stateflow.savepoints.native.publish", told_to_end)
    said = command("savepoint", "create", "orders", "--to", tmp_path / "to", "--checkpoint-dir", root)
    assert said.code == 143
    assert said.err.strip().endswith("stateflow: ended by SIGTERM")
    assert "Traceback" not in said.err
    assert list_pins(job.store, job.layout) == []
    assert signal.getsignal(signal.SIGTERM) == before
