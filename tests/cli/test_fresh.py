"""`stateflow run --fresh`: the code is tried, and nothing is left behind or changed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.commands import process_of_commands

CODE = """
from pathlib import Path
import stateflow as sf

class Balance(sf.KeyedProcess):
    total = sf.ValueState(float, default=0.0)
    def process(self, account, rows, ctx):
        self.total.value += sum(row.amount for row in rows)
        yield account, self.total.value

def mail(frame, delivery):
    Path("mailed").touch()

@sf.pipeline("payments")
def payments(flow, *, input: str, output: str):
    rows = flow.source("payments", sf.files(input, "json", per_batch=1), "account string, amount double")
    balances = rows.key_by("account").process("balance", Balance, output="account string, balance double")
    balances.append("balances", sf.delta(output))
    balances.upsert("newest", sf.delta(output + "-newest"), keys="account")
    balances.for_each_batch("mailed", mail)
"""


@pytest.mark.parametrize(
    "more",
    [["--takeover"], ["--strict"], ["--dag-run", "d"], ["--task", "t"], ["--allow-non-restored-state"]],
)
def test_what_means_the_real_job_is_refused(command: Command, root: Path, more: list[str]) -> None:
    said = command("run", "any.py", "--fresh", *more)
    assert said.code == 2
    assert f"--fresh and {more[0]} do not go together" in said.err


def test_a_cluster_is_refused_and_nothing_is_left(command: Command, tmp_path: Path) -> None:
    here = tmp_path / "here"
    (here / "payments.py").write_text(CODE)
    said = command(
        "run", "payments.py", "--fresh", "-p", "input=in", "-p", "output=out", "--master", "spark://host:7077",
        "--option", "scratch_dir=scratch",
    )  # fmt: skip
    assert said.code == 2
    assert "leave out --master" in said.err
    assert sorted(path.name for path in here.iterdir() if path.name != "__pycache__") == ["payments.py"]


def test_a_parameter_that_is_missing_is_asked_for(command: Command, tmp_path: Path) -> None:
    (tmp_path / "here" / "payments.py").write_text(CODE)
    said = command("run", "payments.py", "--fresh", "-p", "output=out")
    assert said.code == 2
    assert "needs parameter 'input'" in said.err


@pytest.mark.system
@pytest.mark.timeout(900)  # a start of Spark, on a machine that may be busy
def test_a_fresh_run_shows_its_tables_and_leaves_everything_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "payments.py").write_text(CODE)
    (tmp_path / "in").mkdir()
    for number, amount in enumerate((2.5, 1.5)):
        file = tmp_path / "in" / f"{number}.json"
        file.write_text(json.dumps({"account": "ann", "amount": amount}) + "\n")
        os.utime(file, (1_790_000_000 + number,) * 2)  # they are read in the order of their times
    run = ("run", "payments.py", "-p", "input=in", "-p", "output=out", "--fresh")
    before = contents(tmp_path)
    scratch = ("--option", f"scratch_dir={tmp_path / 'scratch'}")
    with process_of_commands(tmp_path, STATEFLOW_CHECKPOINT_DIR="") as command:
        done = command(*run, *scratch, "-o", "json")
        text = command(*run, *scratch)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    tables = {event["sink"]: (event["rows"], event["count"]) for event in events if event["event"] == "table"}
    both = [{"account": "ann", "balance": 2.5}, {"account": "ann", "balance": 4.0}]
    assert tables == {"balances": (both, 2), "newest": (both[1:], 1), "mailed": (both, 2)}
    assert events[-1]["event"] == "summary"
    assert "balances: 2 rows\naccount  balance" in text.stdout
    assert "mailed: 2 rows, which its function was not called with" in text.stdout
    assert contents(tmp_path) == before


def contents(folder: Path) -> set[str]:
    """Files only: the folder of scratch files stays, empty, for the next run."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
