"""A stdout or stderr that takes nothing: its reader is gone, or its disk is full. The work does not depend on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from stateflow.checkpoint.pins import list_pins
from stateflow.cli.output import JsonOutput
from stateflow.cli.streams import lost_answer, open_unfailing
from tests.jobs.made import made_job

FULL = Path("/dev/full")
if not FULL.exists():
    pytest.skip("no /dev/full on this system", allow_module_level=True)

TOTALS = """from dataclasses import dataclass

import stateflow as sf


@dataclass
class Order:
    user: int
    amount: float


class Balance(sf.KeyedProcess[int, Order, tuple[int, float]]):
    total = sf.ValueState(float, default=0.0)

    def process(self, key, rows, ctx):
        for row in rows:
            self.total.value += row.amount
        yield key, self.total.value


@sf.pipeline("totals")
def totals(flow: sf.Flow, *, input: str, output: str) -> None:
    orders = flow.source("orders", sf.files(input, "json", options={"maxFilesPerTrigger": "1"}), Order)
    made = orders.key_by("user").process("balance", Balance, output="user long, total double")
    made.append("totals", sf.files(output, "json"))
"""


@contextmanager
def unread() -> Iterator[int]:
    """The end of a pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)


@contextmanager
def full() -> Iterator[int]:
    file = os.open(FULL, os.O_WRONLY)
    try:
        yield file
    finally:
        os.close(file)


def typed(*words: object, out: int = subprocess.PIPE, err: int = subprocess.PIPE) -> tuple[int, str]:
    """The exit code, and what was said on stderr."""
    command = [sys.executable, "-P", "-m", "stateflow", *map(str, words)]
    done = subprocess.run(command, stdout=out, stderr=err, text=True, check=False)
    return done.returncode, done.stderr or ""


@pytest.mark.parametrize("place", [unread, full])
def test_no_event_fails_the_batch_that_it_is_about(
    place: Callable[[], AbstractContextManager[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `stateflow run -o json | head -1`."""
    with place() as file, os.fdopen(os.dup(file), "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        open_unfailing()
        for batch in range(3):
            JsonOutput().event({"batch": batch})
        assert bool(lost_answer()) == (place is full)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("--version",), ("--help",), ("jobs",), ("jobs", "-o", "json")], ids=" ".join
)
def test_a_reader_that_has_gone_is_no_failure(words: tuple[str, ...], tmp_path: Path) -> None:
    made_job(tmp_path)
    shared = ("--checkpoint-dir", tmp_path) if words[0] == "jobs" else ()
    with unread() as gone:
        assert typed(*words, *shared, out=gone) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "json"])
def test_done_work_is_told_from_an_answer_that_found_no_place(form: str, tmp_path: Path) -> None:
    job = made_job(tmp_path)
    with full() as file:
        code, said = typed("tag", "orders", "mine", "--checkpoint-dir", tmp_path, "-o", form, out=file)
    assert code == 1
    sentence = json.loads(said)["error"]["message"] if form == "json" else said
    assert "done, but" in sentence
    assert "No space left on device" in sentence
    assert len(said.splitlines()) == 1
    assert [pin.name for pin in list_pins(job.store, job.layout)] == ["mine"]


@pytest.mark.slow
def test_a_failure_keeps_its_code_and_its_sentence_where_the_answer_found_no_place(tmp_path: Path) -> None:
    with full() as file:
        code, said = typed("show", "orders", "--checkpoint-dir", tmp_path / "none", out=file)
        assert (code, "does not exist" in said, "done" in said) == (3, True, False)
        assert typed("show", "orders", "--checkpoint-dir", tmp_path / "none", out=file, err=file)[0] == 3


@pytest.mark.slow
def test_a_full_stderr_changes_no_exit_code(tmp_path: Path) -> None:
    job = made_job(tmp_path)
    shared = ("--checkpoint-dir", tmp_path)
    with full() as file:
        assert typed("tag", "orders", "mine", *shared, err=file)[0] == 0
        assert typed("show", "nothing", *shared, err=file)[0] == 3
        assert typed("show", "nothing", *shared, "-o", "json", err=file)[0] == 3
        assert typed("shwo", err=file)[0] == 2
    assert [pin.name for pin in list_pins(job.store, job.layout)] == ["mine"]


@pytest.mark.slow
def test_a_run_whose_lines_find_no_place_takes_all_its_batches_and_ends_as_it_would_have(
    tmp_path: Path,
) -> None:
    (tmp_path / "totals.py").write_text(TOTALS)
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.json").write_text('{"user": 1, "amount": 2.5}\n')
    run = (
        "run", tmp_path / "totals.py", "-p", f"input={tmp_path / 'in'}", "-p", f"output={tmp_path / 'out'}",
        "--checkpoint-dir", tmp_path / "root", "--master", "local[1]", "-o", "json",
    )  # fmt: skip
    with full() as file:
        code, said = typed(*run, out=file)
    assert code == 0, said
    assert "the run is done" in said
    assert "`stateflow checkpoints JOB`" in said
    shown = subprocess.run(
        [sys.executable, "-P", "-m", "stateflow", "checkpoints", "totals", "--checkpoint-dir", tmp_path / "root", "-o", "json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert len(json.loads(shown.stdout)["history"]) >= 3
