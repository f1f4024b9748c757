"""What a run says whose host has lost its Spark, without Spark."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from stateflow.spark.internals.lending import Loan
from stateflow.spark.session import lent
from stateflow.spark.task import failures


@pytest.mark.parametrize("alive", [False, True])
def test_a_run_whose_host_has_lost_its_spark_says_so_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alive: bool
) -> None:
    monkeypatch.setattr(lent, "_borrowed", None)
    monkeypatch.setattr(failures, "_DYING", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as jvm:
        if not alive:
            jvm.close()
        port = jvm.getsockname()[1] if alive else 1
        lent.accept(Loan("run", port, ""), host="team", master="local[2]", place=str(tmp_path))
        said = str(failures.translated(ConnectionRefusedError("[Errno 111] Connection refused")))
    assert ("the warm host team has lost its Spark" in said) is not alive
    for step in ("start the run again", "host start team --memory SIZE", "per_batch"):
        assert (step in said) is not alive, step
    assert "lost its Spark" not in str(failures.translated(ValueError("another"))), "Spark has answered"
