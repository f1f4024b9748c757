"""What counts as a change: NaN is the same as before, a set in whatever order it was stored, and 1 is another value than true."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import pytest

import stateflow as sf
from stateflow.debugging.past_key import PastKey
from stateflow.debugging.trial import Trial
from stateflow.format.records import Record
from stateflow.jobs.job import Job
from stateflow.replay.states import state_changes
from tests.jobs.builder import options_of
from tests.jobs.queried import QueriedJob, Row, entries_of

STATES = ("mean", "kept", "flag", "ids")


class Measured(sf.KeyedProcess[int, Row, Row]):
    mean = sf.ValueState(float)
    kept = sf.ValueState(float, ttl="30 days")
    flag = sf.ValueState(int | bool)
    ids = sf.ValueState(set[int])

    def process(self, key: int, rows: Any, ctx: Any) -> None:
        amount = next(iter(rows)).amount
        self.mean.value = self.kept.value = math.nan
        self.flag.value = 1 if amount else True
        # Both have the same place in the set, and so come out as they went in.
        self.ids.value = set([0, 8] if amount else [8, 0])


@pytest.fixture
def measured(tmp_path: Path) -> tuple[QueriedJob, list[Record]]:
    """Of user 1 `flag` is True, and then 1; the others stay NaN. Other users come, so that the shard has other files."""
    job = QueriedJob(tmp_path / "root", process=Measured, retained=9)
    harness, records = sf.testing.KeyedHarness(Measured), []
    for number in range(3):
        job.clock.forward(minutes=1)
        harness.rows(Row(1, amount=float(number)), Row(10 + number))
        job.checkpoint(entries_of(harness))
        records.append(job.head())
    return job, records


def test_of_a_history(measured: tuple[QueriedJob, list[Record]]) -> None:
    job, records = measured
    whats = {
        state: [
            version.what
            for version in Job(job.root, "orders")
            .history_of("balance", state, "1", options=options_of(job.root))
            .versions
        ]
        for state in STATES
    }
    assert whats == {"mean": ["kept"], "kept": ["kept"], "flag": ["kept", "changed"], "ids": ["kept"]}
    assert len(records) == 3


def test_of_a_diff(measured: tuple[QueriedJob, list[Record]]) -> None:
    job, records = measured
    first, second, _ = (str(record.slot) for record in records)
    with Job(job.root, "orders").diff(first, second, options=options_of(job.root), look_up=True) as found:
        changes = [(change.state, change.kind) for change in found.changes() if change.key == 1]
    assert changes == [("flag", "changed")]


def test_of_a_replay(measured: tuple[QueriedJob, list[Record]], tmp_path: Path) -> None:
    job, records = measured
    readers = [job.reader(tmp_path / f"host{at}", record) for at, record in enumerate(records[:2])]
    changed = {
        state.state: [change.kind for change in state.changes if change.key == 1]
        for state in state_changes(readers[0], readers[1], 10)
    }
    assert changed == {"mean": [], "kept": [], "flag": ["different"], "ids": []}
    for reader in readers:
        reader.close()


def test_of_a_trial() -> None:
    then = {"mean": math.nan, "flag": True, "gone": 1}
    now = {"mean": math.nan, "flag": 1, "new": 1}
    trial = Trial(cast(PastKey, None), (), {}, {}, now, then)
    assert trial.differences == ["flag", "gone", "new"]
