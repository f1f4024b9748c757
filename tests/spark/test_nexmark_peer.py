"""What Spark's own streaming answers to the questions of Nexmark, beside which we are measured, is right."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bench import sides
from bench.nexmark import spark as peer
from bench.nexmark.events import write
from bench.nexmark.expected import comparable, differences, expected
from tests.long_form import BEFORE_A_RELEASE

CLOSED = {"q3", "q5", "q7", "q8", "q11", "q20"}
"""Whose rows come out when the watermark has passed them: those of the end do not."""


@BEFORE_A_RELEASE
@pytest.mark.system
def test_sparks_answers_are_those_of_duckdb(spark: SparkSession, tmp_path: Path) -> None:
    events = tmp_path / "events"
    write(events, [2000] * 3, per_second=100)
    wrong = {}
    for query in peer.SQL:
        found = comparable(query, _rows(spark, query, events, tmp_path / query))
        wanted = expected(query, events)
        too_many, missing = differences(found, wanted)
        if too_many or (missing and (query not in CLOSED or not found)):
            wrong[query] = (too_many[:1], missing[:1], Counter(found=len(found), wanted=len(wanted)))
    assert not wrong


def _rows(spark: SparkSession, query: str, events: Path, work: Path) -> list[dict[str, Any]]:
    keys, output = peer.UPSERTED.get(query), work / "output"

    def merged(frame: Any, batch_id: int) -> None:
        peer.merged(spark, keys or (), output, frame)

    body = sides.appended(work) if keys is None else merged
    frame = peer.asked(spark, query, events)
    sides.peer(spark, frame, work, body, mode="append" if keys is None else "update")
    read: list[dict[str, Any]] = spark.read.format("delta").load(str(output)).toArrow().to_pylist()
    return read
