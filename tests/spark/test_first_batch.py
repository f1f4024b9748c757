"""Which batch is the first of a run, by the record before it. Without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from stateflow.checkpoint.statistics import POSITIONS
from stateflow.format.records import Record
from stateflow.spark.inputs.reread import BEFORE_FIRST_BATCH, is_before_first_batch
from tests.jobs import log


def record(kind: Any = "checkpoint", epoch: int = 4, **statistics: Any) -> Record:
    return log.record(kind=kind, epoch=epoch, statistics=statistics)


@pytest.mark.parametrize(
    ("parent", "first"),
    [
        (None, True),
        (record(), False),
        (record(epoch=3), True),
        (record("edit"), True),
        # The run met a new source before it had a batch; what it began from may be gone by now.
        (record(**{POSITIONS: ["orders"], BEFORE_FIRST_BATCH: True}), True),
        # In the middle of the run a source went round an undone version.
        (record(**{POSITIONS: ["orders"]}), False),
        (record(epoch=3, **{POSITIONS: ["orders"], BEFORE_FIRST_BATCH: True}), True),
    ],
)
def test_a_batch_is_a_runs_first_by_what_the_record_before_it_says(
    parent: Record | None, first: bool
) -> None:
    assert is_before_first_batch(parent, 4) is first
