"""What an application answers for its runs, without Spark."""

from __future__ import annotations

import itertools
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from stateflow.hosts.application import Application, HostedRun
from stateflow.hosts.client import UNAVAILABLE, Connection
from stateflow.spark.internals import lending

ASKED = {"argv": ["run", "a.py"], "environ": {}, "cwd": "/", "umask": 0}


@pytest.fixture
def application(tmp_path: Path) -> Application:
    made = Application.__new__(Application)
    made.folder, made.number, made.runs = tmp_path, 1, {}
    made._ids = itertools.count(1)
    made.spark = None  # type: ignore[assignment]
    made._stopping = made._moving = False
    return made


def test_a_run_that_spark_does_not_answer_is_refused_and_not_listed(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dead(*arguments: Any) -> None:
        raise RuntimeError("Answer from Java side is empty")

    monkeypatch.setattr(lending, "Lent", dead)
    ours, theirs = map(Connection, socket.socketpair())
    application._run_at(1, theirs, ASKED, [])
    assert ours.receive()[0] == {"refused": "its Spark does not answer", "exit_code": UNAVAILABLE}
    assert application.runs == {}


@pytest.mark.parametrize(
    ("moving", "told", "code", "answer"),
    [
        (False, False, 0, {"exit": 0}),
        (True, False, 0, {"again": True}),
        (True, False, -signal.SIGTERM, {"again": True}),
        (True, True, 0, {"exit": 0}),
        (True, False, 1, {"exit": 1}),
        (True, False, -signal.SIGKILL, {"exit": 137}),
    ],
)
def test_only_a_run_that_moves_and_that_nobody_else_has_ended_begins_again(
    application: Application, moving: bool, told: bool, code: int, answer: dict[str, Any]
) -> None:
    ours, _ = map(Connection, socket.socketpair())
    application._moving = moving
    assert application._said(code, HostedRun("orders", 1, 0.0, ours, told=told)) == answer
