"""Doubles without an end, or near it: an aggregate has its result, and numpy's warnings do not reach stderr."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

import stateflow as sf
from stateflow.testing import ColumnarHarness

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ENDED = timedelta(minutes=1)


@dataclass
class Measured:
    sensor: str
    at: datetime
    value: float | None


@dataclass
class Spread:
    sensor: str
    total: float | None
    middle: float | None
    around: float | None
    squared: float | None


SPREAD = {
    "total": sf.sum("value"),
    "middle": sf.mean("value"),
    "around": sf.stddev("value"),
    "squared": sf.variance("value"),
}


@sf.pipeline("spread")
def spread(flow: sf.Flow, *, base: str) -> None:
    measured = flow.source(
        "measured", sf.files(base + "/in", "json"), Measured, event_time="at", watermark="1 second"
    )
    by_sensor = measured.key_by("sensor")
    by_sensor.aggregate("running", Spread, **SPREAD).upsert("now", sf.delta(base + "/now"))
    minutes = by_sensor.window(sf.tumbling("1 minute")).aggregate("minutes", Spread, **SPREAD)
    minutes.append("past", sf.delta(base + "/past"))


@pytest.mark.parametrize("accuracy", [0.1, 0.9, 0.999])
def test_a_quantile_near_the_largest_double_is_as_near_as_its_accuracy_says(accuracy: float) -> None:
    @sf.pipeline("far")
    def far(flow: sf.Flow) -> None:
        measured = flow.source("measured", sf.delta("/in"), Measured, event_time="at", watermark="1 second")
        measured.key_by("sensor").aggregate(
            "op", "sensor string, q double", q=sf.quantile("value", 0.5, accuracy=accuracy)
        ).upsert("now", sf.delta("/now"))

    run = ColumnarHarness.of(far.build(), "op")
    for power in range(300, 309):
        value = 10.0**power
        [row] = run.rows(Measured(f"at {power}", NOON, value))
        assert abs(row["q"] - value) <= accuracy * 1.0001 * value


@pytest.mark.parametrize(
    ("values", "together", "one_by_one"),
    [
        ([math.inf, -math.inf], (math.nan, math.nan, math.nan), (math.nan, math.nan, math.nan)),
        ([math.inf, 1.0, None], (math.inf, math.inf, math.nan), (math.inf, math.inf, math.nan)),
        ([math.inf, math.inf], (math.inf, math.inf, math.nan), (math.inf, math.inf, math.nan)),
        ([1e308, -1e308], (0.0, 0.0, math.inf), (0.0, 0.0, math.inf)),
        ([1e308, 1e308], (math.inf, math.inf, math.inf), (math.inf, math.inf, 0.0)),
        ([-1.7e308, 1.7e308, 1.7e308], (1.7e308, 1.7e308 / 3, math.inf), (1.7e308, 1.7e308 / 3, math.inf)),
    ],
)
@pytest.mark.parametrize("uid", ["running", "minutes"])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_infinities_and_the_largest_doubles_have_a_result_and_no_warning(
    values: list[float | None],
    together: tuple[float, float, float],
    one_by_one: tuple[float, float, float],
    uid: str,
) -> None:
    rows = [Measured("a", NOON, value) for value in values]
    for batches, expected in (([rows], together), ([[row] for row in rows], one_by_one)):
        harness = ColumnarHarness.of(spread.build({"base": "b"}), uid)
        put_out = [harness.rows(*batch) for batch in batches]
        put_out.append(harness.advance(NOON + ENDED) if uid == "minutes" else [])
        [found] = [rows for rows in put_out if rows][-1]
        assert (found.total, found.middle, found.around) == pytest.approx(expected, nan_ok=True)
        assert found.squared == pytest.approx(expected[-1], nan_ok=True)
