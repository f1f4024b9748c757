"""A job that has read is told that it does not begin anew where its sources say now."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

import stateflow as sf
from stateflow.format.records import SourceState
from stateflow.pipelines.rows.row_type import row_type
from stateflow.pipelines.step_checks import declared_input
from stateflow.spark.inputs.beginnings import tell_of_beginnings


def topic(**given: Any) -> Any:
    return sf.kafka("orders", bootstrap="broker:9092", **given).declared("rows", row_type("id long"))


AT = topic(since=datetime(2026, 1, 1, tzinfo=UTC))
VERSION = sf.delta("/data/orders", options={"startingVersion": "5"})


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (topic(), topic(), ""),
        (AT, AT, ""),
        (topic(), AT, "since=2026-01-01T00:00:00+00:00 does not count any more"),
        (AT, topic(since="latest"), "since=latest does not count any more"),
        (AT, topic(), "the default does not count any more as where it begins (since=2026-01-01"),
        (VERSION, VERSION, ""),
        (sf.delta("/data/orders"), VERSION, "startingVersion=5 does not count any more"),
        (sf.files("/data/in", "json"), lambda spark: None, ""),
    ],
)
def test_another_beginning_of_a_source_that_has_read_is_told(before: Any, now: Any, told: str) -> None:
    recorded = {"rows": SourceState(lines=("{}",), since=node(before).factory.since)}
    warned: list[str] = []
    tell_of_beginnings(None, [node(now)], recorded, {}, lambda _, said: warned.append(said))  # type: ignore[arg-type]
    assert len(warned) == bool(told)
    assert told in "".join(warned)


def node(factory: Any) -> Any:
    return SimpleNamespace(uid="rows", factory=declared_input("rows", factory, row_type("id long")))
