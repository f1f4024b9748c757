from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

import stateflow as sf
from stateflow.config.options import load
from stateflow.errors import UsageError
from stateflow.pipelines.bounds import parse_bounds
from stateflow.spark.runner import RunRequest, run
from tests.refusals.refusal import refused


@pytest.mark.parametrize(
    ("texts", "bound"),
    [
        ([], None),
        (["17"], 17),
        (["2026-01-31T12:00:00+00:00"], datetime(2026, 1, 31, 12, tzinfo=UTC)),
        (["2026-01-31"], datetime(2026, 1, 31, tzinfo=UTC)),
        (["a=17", "b=2026-01-31"], {"a": 17, "b": datetime(2026, 1, 31, tzinfo=UTC)}),
    ],
)
def test_a_bound_is_of_all_sources_or_of_each(texts: list[str], bound: object) -> None:
    assert parse_bounds(texts) == bound


@pytest.mark.parametrize("texts", [["soon"], ["a=soon"], ["17", "18"], ["17", "a=18"], ["a=17", "a=18"]])
def test_bounds_that_say_nothing_or_two_things_are_refused(texts: list[str]) -> None:
    with refused(UsageError, "--until"):
        parse_bounds(texts)


def test_a_bound_of_a_source_that_is_not_there_is_refused_before_spark(tmp_path: Path) -> None:
    """A source without a bound is not read, so that the run would be done with nothing."""

    @sf.pipeline("pay")
    def pay(flow: sf.Flow) -> None:
        paid = flow.source("payments", sf.delta(str(tmp_path / "in")), "user long")
        paid.append("out", sf.delta(str(tmp_path / "out")))

    options = load(code={"checkpoint_dir": str(tmp_path / "root")}, env={}, folder=tmp_path)
    with refused(UsageError, "'payment'", "it has payments"):
        run(RunRequest(pay, options, until={"payment": 3}))
