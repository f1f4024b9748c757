"""Records that only say where sources are, written without Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stateflow.format.records import SourceState
from stateflow.spark.batch_record import MadeBy
from stateflow.spark.run_warnings import RunWarnings
from stateflow.spark.source_records import SourceRecords
from tests.jobs.builder import T0
from tests.jobs.made import MadeJob

AHEAD = 86_400_000_000


def test_the_time_of_a_job_stays_where_it_is_when_its_sources_are_put_somewhere_by_a_clock_behind(
    tmp_path: Path,
) -> None:
    job = MadeJob(tmp_path, clock=lambda: T0 + AHEAD)
    job.batch()
    records = source_records(job, clock=T0)
    source = SourceState(lines=("{}",))
    records.begin({"new": source})
    records.extend({"new": source})
    records.move({"new": source}, {"new": 1})
    chain = [record for record in job.writer.log.chain if record.carries_state]
    assert [record.now for record in chain] == [T0 + AHEAD] * 4
    begun = chain[1].sources["new"]
    assert (begun.active, begun.looked) == (T0 + AHEAD, T0), "nobody has looked later than the clock says"


def source_records(job: MadeJob, clock: int) -> SourceRecords:
    inputs: Any = SimpleNamespace(since={})
    commits: Any = SimpleNamespace(noted=lambda sources, before: sources)
    return SourceRecords(
        inputs, job.writer, MadeBy({}, {}), RunWarnings(), lambda: clock, commits, settle=lambda: None
    )
