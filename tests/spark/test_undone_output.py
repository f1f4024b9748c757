"""An output that somebody else restored: the run says so, and its advice brings the rows again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.config.options import load
from stateflow.jobs.job import Job
from stateflow.spark.runner import RunReport, RunRequest, run
from stateflow.spark.sources.undone_output import UndoneOutput, sentence, undone_output
from tests.spark import by_hand
from tests.spark.sink_places import contents


def own(slot: int, *files: str) -> bytes:
    """A commit of the job; `+a` adds the file a, `-a` removes it."""
    return commit({"txn": {"appId": "stateflow/me/rows", "version": slot}}, "STREAMING UPDATE", *files)


def other(*files: str) -> bytes:
    return commit(None, "WRITE", *files)


def restore(*files: str, **named: object) -> bytes:
    return commit(None, "RESTORE", *files, **named)


def commit(first: dict[str, Any] | None, operation: str, *files: str, **named: object) -> bytes:
    told = [{"commitInfo": {"operation": operation, "operationParameters": named}}]
    moved = [{"add" if f[0] == "+" else "remove": {"path": f[1:], "dataChange": True}} for f in files]
    actions = [*([first] if first else []), *told, *moved]
    return "\n".join(map(json.dumps, actions)).encode()


MADE = other()
BY_TIME = restore("-b", timestamp="2026-01-01 00:00:00.0", version=None)


@pytest.mark.parametrize(
    ("log", "verdict"),
    [
        ([], None),
        ([MADE, own(3, "+a")], None),
        ([MADE, own(3, "+a"), own(5, "+b")], None),
        ([MADE, own(3, "+a"), own(5, "+b"), restore("-b", version=1)], UndoneOutput(3, 3)),
        ([MADE, own(3, "+a"), own(5, "+b"), BY_TIME], UndoneOutput(3, 3)),
        ([MADE, own(3, "+a"), own(5, "+b"), restore("-a", "-b", version=0)], UndoneOutput(3, None)),
        ([MADE, own(3, "+a"), other("+b"), BY_TIME], None),
        ([MADE, own(3, "+a"), other("-a"), restore("+a"), own(5, "+b")], None),
        ([MADE, own(3, "+a"), own(5, "+b"), BY_TIME, other("+c")], UndoneOutput(3, 3)),
        # A batch without rows of this sink is not undone by it.
        ([MADE, own(3, "+a"), own(5), own(7, "+b"), BY_TIME], UndoneOutput(4, 5)),
        ([MADE, own(3, "+a"), own(5), restore(version=1)], None),
        # The log begins behind the version that came back.
        ([None, own(3, "+a"), own(5, "+b"), restore("-a", "-b", "+z")], UndoneOutput(3, None)),
        # Taken back to 1, and then to the version that had been taken back.
        # Only the first one took rows of the job.
        ([MADE, own(3, "+a"), own(5, "+b"), BY_TIME, other("+c"), restore("-c")], UndoneOutput(3, 3)),
        # ... and then to where it was before.
        ([MADE, own(3, "+a"), own(5, "+b"), BY_TIME, restore("+b")], None),
    ],
)
def test_it_is_told_what_a_restore_undid(log: list[bytes | None], verdict: UndoneOutput | None) -> None:
    read = dict(enumerate(log)).get
    assert undone_output(read, len(log) - 1, "stateflow/me/rows", 100) == verdict


@pytest.mark.parametrize(
    ("above", "verdict"),
    [(3, UndoneOutput(3, 3)), (5, UndoneOutput(3, 3)), (6, None), (2, UndoneOutput(3, 3))],
)
def test_slots_from_after_what_is_asked_hide_no_restore(above: int, verdict: UndoneOutput | None) -> None:
    """The record of slot 6 was decided before the table went back, and arrived behind it."""
    read = dict(enumerate([MADE, own(3, "+a"), own(5, "+b"), BY_TIME, own(6, "+c")])).get
    assert undone_output(read, 4, "stateflow/me/rows", 100, above=above) == verdict


@sf.pipeline("copied")
def copied(flow: sf.Flow, *, input: str, output: str) -> None:
    flow.source("rows", sf.files(input, "json"), "id long").append("rows", sf.delta(output))


@pytest.mark.parametrize(
    ("taken_back", "verdict"),
    [
        ((range(4, 12),), None),
        ((range(4, 6), range(8, 12)), None),
        ((range(6, 12),), UndoneOutput(3, 3)),
        ((range(4, 5),), UndoneOutput(3, 3)),
    ],
)
def test_what_the_job_went_back_behind_is_not_lost(
    taken_back: tuple[range, ...], verdict: UndoneOutput | None
) -> None:
    read = dict(enumerate([MADE, own(3, "+a"), own(5, "+b"), BY_TIME])).get
    assert undone_output(read, 3, "stateflow/me/rows", 100, lambda: taken_back) == verdict


@pytest.mark.parametrize("kind", ["map<string,int>", "variant", "array<struct<a:map<string,int>>>"])
def test_what_spark_cannot_compare_is_named_with_the_way(kind: str) -> None:
    undone = UndoneOutput(5, None)
    columns = [("id", "bigint"), ("m", kind), ("s", "struct<variant:int>")]
    said = sentence("t", "t", "copied", "rows", undone, (), columns, appends=True)
    assert "compare 'm' as" in said
    assert "VERSION AS OF 4" in said
    assert "INSERT" not in said
    assert "INSERT" in sentence("t", "t", "copied", "rows", undone, (), columns[::2], appends=True)


@pytest.mark.slow
def test_the_run_tells_of_it_and_its_advice_brings_the_rows_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "input").mkdir()
    output = tmp_path / "output"
    parameters = {"input": str(tmp_path / "input"), "output": str(output)}
    root = str(tmp_path / "checkpoints")

    def ran(number: int) -> RunReport:
        (tmp_path / "input" / f"{number}.json").write_text(f'{{"id": {number}}}\n', encoding="utf-8")
        options = load(
            code={
                "checkpoint_dir": root,
                "cache_dir": str(tmp_path / "cache"),
                "local_fsync": False,
                "retained_checkpoints": 20,
            },
            env={},
            folder=tmp_path,
        )
        return run(RunRequest(copied, options, parameters, master="local[2]"))

    def ids() -> list[int]:
        return contents(spark, output, "id")

    def go_back(checkpoint: int | None, *, apply: bool = True) -> str:
        plan = Job(root, "copied").restore(f"checkpoint:{checkpoint}", copied, parameters)
        if apply:
            plan.apply()
        return plan.sinks[0].note

    first = ran(1).checkpoint
    before = DeltaTable.forPath(spark, str(output)).history(1).collect()[0]
    assert ran(2).warnings == ()
    spark.sql(f"RESTORE TABLE delta.`{parameters['output']}` TO TIMESTAMP AS OF '{before.timestamp}'")
    (told,) = ran(3).warnings
    assert "was restored to an earlier version by somebody else" in told
    assert f"--from checkpoint:{first}`, without --rewind-sinks" in told
    assert ids() == [1, 3]
    # The next run says nothing: it looks only behind what the job wrote last.
    assert ran(4).warnings == ()

    by_hand.go_back(output, before.version)
    (told,) = ran(5).warnings
    assert ids() == [1, 5]
    # As advised, in the way that stays.
    by_insert, by_restore = re.findall(r"\(`((?:INSERT|RESTORE) [^)]*)`\)", told)
    spark.sql(by_insert)
    assert ids() == [1, 3, 4, 5]
    spark.sql(by_restore)
    assert ids() == [1]
    damaged = output / "_delta_log" / f"{10:020d}.json"
    damaged.write_text('{"txn"')
    assert "as the job's log says (the table's cannot be read: " in go_back(first, apply=False)
    damaged.unlink()
    # As advised, in the other way.
    assert go_back(first).startswith(
        f"keeps its output up to slot {first}, to which somebody else restored the table (version 9 of it): what followed"
    )
    assert ran(6).warnings == ()
    assert ids() == [1, 2, 3, 4, 5, 6]

    # Back to a savepoint: the job knows its slot by the note of the restore.
    job = Job(root, "copied")
    savepoint = job.savepoint(to=str(tmp_path / "savepoint"))
    version = len(list((output / "_delta_log").glob("*.json"))) - 1
    assert ran(7).warnings == ()
    by_hand.go_back(output, version)
    job.restore(savepoint.url, copied, parameters).apply()
    assert ran(8).warnings == ()
    assert ids() == [1, 2, 3, 4, 5, 6, 7, 8]

    # A version of before the job's checkpoints: rows can only be taken from the table's own history.
    by_hand.go_back(output, 0)
    (told,) = ran(9).warnings
    assert "RESTORE TABLE" not in told
    assert ids() == [9]
    advised = re.search(r"`(INSERT INTO .*)`\)", told)
    assert advised is not None
    spark.sql(advised[1])
    assert ids() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert ran(10).warnings == ()
    assert ids() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
