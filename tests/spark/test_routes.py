"""Where the rows of an operator go follows from the flow, and from what batches have shown of the steps behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import stateflow as sf
from stateflow.pipelines.flow import Flow
from stateflow.spark.batches.routes import route_of, routes_of

ROWS = "user long, amount double"


@dataclass
class Row:
    user: int
    amount: float


class Totals(sf.KeyedProcess[int, Row, Any]):
    total = sf.ValueState(float, default=0.0)

    def process(self, key: int, rows: Iterator[Row], ctx: sf.Context) -> Iterator[Any]:
        yield from ()


def _step(rows: Any) -> Any:
    return rows.transform(lambda frame: frame, type=ROWS)


def _operator(rows: Any, uid: str = "totals", **options: Any) -> Any:
    return rows.key_by("user").process(uid, Totals, output=ROWS, **options)


def _append(rows: Any, uid: str = "out") -> None:
    rows.append(uid, sf.delta(f"/tables/{uid}"))


def _flow(declare: Callable[[Any], None]) -> Flow:
    @sf.pipeline("routes")
    def pipeline(flow: sf.Flow) -> None:
        declare(flow.source("in", sf.files("/in", "json"), ROWS))

    return pipeline.build({})


def _only_a_sink(rows: Any) -> None:
    _append(_operator(rows))


def _steps_and_a_sink(rows: Any) -> None:
    _append(_step(_step(_operator(rows))))


def _steps_and_a_function(rows: Any) -> None:
    _step(_operator(rows)).for_each_batch("out", lambda frame, delivery: None)


def _two_sinks(rows: Any) -> None:
    totals = _operator(rows)
    _append(totals)
    _append(totals, "other")


def _two_sinks_behind_a_step(rows: Any) -> None:
    totals = _step(_operator(rows))
    _append(totals)
    _append(totals, "other")


def _union(rows: Any) -> None:
    _append(_operator(rows).union(_operator(rows, "more")))


def _dead_letters_for_a_sink(rows: Any) -> None:
    totals = _operator(rows, on_error="dead_letter")
    _append(totals)
    _append(totals.dead_letters.transform(lambda frame: frame), "dead")


def _dead_letters_for_an_operator(rows: Any) -> None:
    totals = _operator(rows, on_error="dead_letter")
    _append(totals)
    dead = totals.dead_letters.transform(lambda frame: frame, type=ROWS)
    _append(_operator(dead, "more"), "dead")


def _another_operator(rows: Any) -> None:
    _append(_operator(_step(_operator(rows)), "more"))


def _nobody(rows: Any) -> None:
    _operator(rows)


@pytest.mark.parametrize(
    ("declare", "in_sink", "steps", "staged"),
    [
        (_only_a_sink, "out", 0, set()),
        (_steps_and_a_sink, "out", 2, set()),
        (_steps_and_a_function, None, 0, {"rows"}),
        (_two_sinks, None, 0, {"rows"}),
        (_two_sinks_behind_a_step, None, 0, {"rows"}),
        (_union, None, 0, {"rows"}),
        (_dead_letters_for_a_sink, "out", 0, {"dead"}),
        (_dead_letters_for_an_operator, None, 0, {"rows", "dead"}),
        (_another_operator, None, 0, {"rows"}),
        (_nobody, None, 0, set()),
    ],
)
def test_rows_go_to_their_only_reader_as_they_come_if_that_is_a_sink(
    declare: Callable[[Any], None], in_sink: str | None, steps: int, staged: set[str]
) -> None:
    route = routes_of(_flow(declare))["totals"]
    assert (route.in_sink and route.in_sink.uid) == in_sink
    assert route.own_job == (in_sink is None)
    assert len(route.steps) == steps
    assert {{"": "rows"}.get(name, "dead") for name in route.staged} == staged


def test_steps_that_cause_a_second_stage_take_the_rows_through_files() -> None:
    flow = _flow(_steps_and_a_sink)
    route = route_of(flow, flow.operators[0], in_one_stage=False)
    assert route.own_job
    assert len(route.staged) == 1
    # Where there are none, no batch can show that.
    flow = _flow(_only_a_sink)
    assert not route_of(flow, flow.operators[0], in_one_stage=False).own_job


def test_an_operator_behind_another_one_may_run_in_its_sink_s_job() -> None:
    routes = routes_of(_flow(_another_operator))
    assert routes["more"].in_sink is not None
