from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

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


@pytest.fixture
def asked(tmp_path: Path) -> Callable[[Any], object]:
    """Asks for a run up to a bound."""

    @sf.pipeline("pay")
    def pay(flow: sf.Flow) -> None:
        paid = flow.source("payments", sf.delta(str(tmp_path / "in")), "user long")
        paid.append("out", sf.delta(str(tmp_path / "out")))

    options = load(code={"checkpoint_dir": str(tmp_path / "root")}, env={}, folder=tmp_path)
    return lambda until: run(RunRequest(pay, options, until=until))


def test_a_bound_of_a_source_that_is_not_there_is_refused_before_spark(
    asked: Callable[[Any], object],
) -> None:
    """A source without a bound is not read, so that the run would be done with nothing."""
    with refused(UsageError, "'payment'", "it has payments"):
        asked({"payment": 3})


@pytest.mark.parametrize("bound", ["17", "2026-01-31", True, 1.5, date(2026, 1, 31)])
def test_what_is_no_version_and_no_time_is_no_bound(asked: Callable[[Any], object], bound: Any) -> None:
    for until in (bound, {"payments": bound}):
        with refused(UsageError, repr(bound), "until=17", "until=datetime("):
            asked(until)
