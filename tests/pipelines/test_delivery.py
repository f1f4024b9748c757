"""What a function that is a sink is called with, told from its parameters."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import stateflow as sf
from stateflow.compatibility.flows import compare
from stateflow.pipelines.delivery import takes_id


def by_name(frame: Any, checkpoint_id: Any) -> None: ...
def by_type(frame: Any, number: int) -> None: ...
def of_a_delivery(frame: Any, delivery: sf.Delivery) -> None: ...
def with_more(connection: Any, frame: Any, checkpoint_id: int) -> None: ...


class Callable:
    def __call__(self, frame: Any, checkpoint_id: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (by_name, True),
        (by_type, True),
        (Callable(), True),
        (partial(with_more, None), True),
        (of_a_delivery, False),
        (lambda frame, slot: None, False),
        (lambda *given: None, False),
        (print, False),
    ],
)
def test_a_function_says_by_its_second_parameter_what_it_takes(function: Any, expected: bool) -> None:
    assert takes_id(function) is expected


def test_check_says_what_to_write_in_place_of_a_function_that_takes_the_number() -> None:
    flow = sf.Flow("orders")
    rows = flow.source("in", sf.delta("/data/in"))
    rows.for_each_batch("old", by_type)
    rows.for_each_batch("new", of_a_delivery)
    (warning,) = compare(flow, "orders", None).warnings
    assert warning.startswith(
        "sink 'old' calls a function of (frame, checkpoint_id): ids begin again in a new job"
    )
    assert "write it as (frame, delivery), keep delivery.key with delivery.slot" in warning
