"""The warnings of a run: once in the log, and at the end with their newest words; also of a run that was killed."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.checkpoint.control import Heartbeat, RunOutcome
from stateflow.checkpoint.draft import Draft
from stateflow.config.options import load
from stateflow.format.records import Kind, Owner, Record
from stateflow.jobs.job import Job
from stateflow.spark.loop import BatchReport
from stateflow.spark.run_warnings import RunWarnings, unsaid
from stateflow.spark.runner import RunRequest, run
from tests.refusals.refusal import lacking, refused
from tests.spark.pipelines import Workbench
from tests.spark.standalone import free_port
from tests.spark.test_rewound_tables import go_back, reader, total, write


def test_a_matter_is_logged_once_and_ends_with_its_newest_sentence(caplog: pytest.LogCaptureFixture) -> None:
    warnings = RunWarnings()
    with caplog.at_level(logging.WARNING):
        warnings.add("odd rows", "1 row was odd")
        warnings.add("empty column", "column b is empty")
        warnings.add("odd rows", "3 rows were odd")
    assert caplog.messages == ["1 row was odd", "column b is empty"]
    assert warnings.sentences == ("3 rows were odd", "column b is empty")


def checkpoint(slot: int, epoch: int, *warnings: str, kind: Kind = "checkpoint") -> Record:
    noted = {"warnings": list(warnings)} if warnings else {}
    draft = Draft(kind, based_on=slot - 1 or None, statistics=noted)
    return draft.record(job="job", slot=slot, epoch=epoch, writer="w", owner=Owner(run="run"), at=0)


def beat(epoch: int, exit_code: int | None) -> Heartbeat:
    ended = exit_code is not None
    outcome = RunOutcome(exit_code=exit_code) if exit_code is not None else None
    return Heartbeat(epoch=epoch, counter=1, owner=Owner(run="run"), ended=ended, outcome=outcome)


@pytest.mark.parametrize(
    ("records", "ends", "left"),
    [
        ([], {}, ()),
        ([checkpoint(1, 1)], {}, ()),
        # Killed, failed, and ended well.
        ([checkpoint(1, 1, "a")], {1: None}, ("a",)),
        ([checkpoint(1, 1, "a")], {1: 7}, ("a",)),
        ([checkpoint(1, 1, "a")], {1: 0}, ()),
        # A run after it said it, or was killed as well.
        ([checkpoint(1, 1, "a")], {1: None, 2: 0}, ()),
        ([checkpoint(1, 1, "a")], {1: None, 2: None}, ("a",)),
        # What was said before that record is in it, too.
        ([checkpoint(1, 1, "a"), checkpoint(2, 2, "a", "b")], {1: None, 2: None}, ("a", "b")),
        ([checkpoint(1, 1, "a"), checkpoint(2, 2)], {1: 0, 2: None}, ()),
        # An edit is no run: it has nothing to say.
        ([checkpoint(1, 1, "a"), checkpoint(2, 2, kind="rescale")], {1: None}, ("a",)),
        ([checkpoint(1, 1, "a"), checkpoint(2, 2, kind="rescale")], {1: 0}, ()),
    ],
)
def test_what_a_run_did_not_live_to_say_is_left_to_the_next(
    records: list[Record], ends: dict[int, int | None], left: tuple[str, ...]
) -> None:
    epoch = max([*ends, *(record.epoch for record in records)], default=0) + 1
    log = SimpleNamespace(chain=tuple(records))
    beats = {each: beat(each, code) for each, code in ends.items()}
    assert unsaid(log, epoch, beats.get) == left  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_warning_of_a_run_that_fails_is_said_by_the_next_that_ends(
    spark: SparkSession, bench: Workbench
) -> None:
    """A table goes back while a run reads it, and the run fails behind the batch that read across: no run sees it again."""
    write(bench.folder, 1, 2)
    pipeline = reader(bench, skipChangeCommits="true")
    seen: list[int] = []

    def listen(report: BatchReport) -> None:
        seen.append(report.rows)
        if sum(seen) == 2:
            go_back(bench.folder, 0)
            write(bench.folder, 16)
        if sum(seen) >= 3:
            raise InterruptedError

    code = {
        "checkpoint_dir": str(bench.folder / "root"),
        "cache_dir": str(bench.folder / "cache"),
        "trigger": "until-stopped",
    }
    with refused(sf.StateflowError, "the batch failed"):
        run(RunRequest(pipeline, load(code=code, env={}, folder=bench.folder), listener=listen))
    [warning] = bench.run(pipeline).warnings
    assert warning.startswith("source 'orders': version 2 took the Delta table ")
    assert "counts again when they are written again" in warning
    assert total(bench) == 19
    assert bench.run(pipeline).warnings == ()


@dataclass
class Kept:
    n: int
    gone: str = "x"


@dataclass
class KeptNow:
    n: int


def keeping(declared: type, bench: Workbench) -> sf.Pipeline:
    class Keeping(sf.KeyedProcess):
        kept = sf.ValueState(declared)

        def process(self, user, rows, ctx):
            n = self.kept.value.n if self.kept.value else 0
            self.kept.value = declared(n + len(list(rows)))
            yield user, self.kept.value.n

    @sf.pipeline("losing")
    def losing(flow: sf.Flow) -> None:
        keyed = flow.source("in", bench.source("in", "user long"), "user long").key_by("user")
        counted = keyed.process("count", Keeping, output="user long, n long", on_error="dead_letter")
        counted.collect("out", sf.memory("losing"))

    return losing


def test_a_run_says_once_what_check_warns_of(
    spark: SparkSession, bench: Workbench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.rows("in", [{"user": 1}])
    bench.run(keeping(Kept, bench))
    release, job = keeping(KeptNow, bench), Job(str(bench.folder / "root"), "losing")
    warned = job.check(release).warnings
    losses, unread = warned
    before = job.log().head.slot
    named = (
        "'count'",
        "'kept'",
        "field gone is gone",
        f"restore checkpoint {before}",
        f"tag:before-drop-{before}",
    )
    assert lacking(losses, named) == []
    assert job.status().tags == {}
    assert "diverts rows to .dead_letters" in unread
    bench.rows("in", [{"user": 1}])
    bench.rows("in", [{"user": 1}])
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert bench.run(release).warnings == warned
    assert [caplog.messages.count(sentence) for sentence in warned] == [1, 1]
    assert job.status().tags == {f"before-drop-{before}": before}
    assert bench.run(release).warnings == (unread,), "the values are of today's type now"
    assert len(job.status().tags) == 1


class Open(sf.KeyedProcess):
    def process(self, user, rows, ctx):
        opened = sum(row.opened for row in rows)
        ctx.metrics.counter("open").inc(opened)
        ctx.metrics.counter("open_total").inc(1)
        yield user, opened


def test_a_counter_that_no_metrics_take_ends_no_run_and_the_port_is_free_for_the_next(
    bench: Workbench,
) -> None:
    @sf.pipeline("opening")
    def opening(flow: sf.Flow) -> None:
        rows = flow.source("in", bench.source("in", "user long, opened long"), "user long, opened long")
        rows.key_by("user").process("count", Open, output="user long, n long").collect(
            "out", sf.memory("opened")
        )

    metrics = {"metrics": "prometheus", "metrics_port": free_port()}
    bench.rows("in", [{"user": 1, "opened": 1}])
    bench.rows("in", [{"user": 1, "opened": -1}])
    report = bench.run(opening, **metrics)
    assert report.batches == 2
    [warning] = report.warnings
    assert "'open'" in warning
    bench.rows("in", [{"user": 1, "opened": 1}])
    assert bench.run(opening, **metrics).warnings == ()
