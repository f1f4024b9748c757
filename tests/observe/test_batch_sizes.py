"""What a batch notes of its size is shown; what is no such note is not, since a run may have noted anything."""

from __future__ import annotations

from typing import Any

import pytest

from stateflow.observe.batch_sizes import hot_key_of, sizes_document, sources_that_waited
from stateflow.spark.inputs.batch_size import BatchSize, Share, note

DIGITS = 10**400
SIZE = BatchSize((Share("orders", "rows", 1000, 900), Share("visits", "bytes", 4096)))


def test_what_a_run_notes_is_what_is_shown() -> None:
    assert sizes_document({"batch_size": note(SIZE, 30)}, 900, 28_000) == {
        "target_ms": 30_000,
        "duration_ms": 28_000,
        "rows": 900,
        "streams": [
            {"source": "orders", "unit": "rows", "most": 1000, "took": 900},
            {"source": "visits", "unit": "bytes", "most": 4096, "took": None},
        ],
    }
    assert sizes_document({}, 900, 28_000) == {}
    assert sources_that_waited({"waited": {"orders": "payments"}}) == {"orders": "payments"}
    hot = hot_key_of({"hot_key": {"share": 0.52, "subtask": 3}})
    assert hot is not None
    assert (hot.share, hot.subtask) == (0.52, 3)
    assert hot_key_of({"rows_in": 5}) is None


@pytest.mark.parametrize(
    "noted",
    [
        "soon",
        {"target_ms": DIGITS},
        {"target_ms": 0},
        {"streams": []},
        {"target_ms": 1, "streams": [{"source": "s" * 10_000, "unit": "rows", "most": 1}]},
        {"target_ms": 1, "streams": [{"source": "s", "unit": "apples", "most": 1}]},
        {"target_ms": 1, "streams": [{"source": "s", "unit": "rows", "most": -1}]},
        {"target_ms": 1, "streams": [{"source": "s", "unit": "rows", "most": 1}] * 10_000},
    ],
    ids=range(8),
)
def test_a_size_that_is_none_is_not_shown(noted: Any) -> None:
    assert sizes_document({"batch_size": noted}, 1, 1) == {}


@pytest.mark.parametrize(
    "noted", ["all", {"a": 1}, {"a": "b" * 1000}, {str(n): "" for n in range(2000)}], ids=range(4)
)
def test_a_wait_that_is_none_is_not_shown(noted: Any) -> None:
    assert sources_that_waited({"waited": noted}) == {}


@pytest.mark.parametrize(
    "noted",
    [None, 7, {"hot_key": {"share": 7, "subtask": 0}}, {"hot_key": {"share": 0.5, "subtask": DIGITS}}],
    ids=range(4),
)
def test_a_hot_key_that_is_none_is_not_shown(noted: Any) -> None:
    assert hot_key_of(noted) is None
