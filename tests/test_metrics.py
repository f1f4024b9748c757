"""Metrics go where the user wants them, and nowhere when not."""

from __future__ import annotations

import socket
import sys
import urllib.request

import pytest

from stateflow.errors import UnavailableError, UsageError
from stateflow.metrics import MEASURES, numbers, reporter
from tests.refusals.refusal import refused
from tests.spark.standalone import free_port

STATISTICS = {
    "processed_rows": 5,
    "operators": {
        "balance": {"rows_out": 3, "keys": 2, "timers": 1, "dead_letters": 0, "counters": {"big-orders": 4}},
    },
    "metrics": {"uploaded_bytes": 10, "inlined_bytes": 2, "cache_hits": 7},
}


def test_a_batch_becomes_numbers_under_flinks_meanings() -> None:
    found = numbers(42, 1.5, 2_000_000, 99, STATISTICS)
    assert found["rows_in"] == 5
    assert found["rows_out"] == 3
    assert found["last_checkpoint_size_bytes"] == 12
    assert found["watermark_seconds"] == 2.0
    assert found["user_balance_big-orders"] == 4


def test_a_batch_against_its_target_has_gauges() -> None:
    operators = {**STATISTICS["operators"]["balance"], "hot_key": {"share": 0.52, "subtask": 3}}  # type: ignore[index]
    noted = {"batch_size": {"target_ms": 30_000, "streams": []}, "waited": {"orders": "payments"}}
    found = numbers(42, 1.5, None, 99, {**STATISTICS, **noted, "operators": {"balance": operators}})
    assert found["target_batch_duration_seconds"] == 30
    assert found["last_checkpoint_rows"] == 5
    assert found["waiting_sources"] == 1
    assert found["hot_key_share"] == 0.52
    known = {measure.name: measure.kind for measure in MEASURES}
    assert {known[name] for name in found if "share" in name or "wait" in name or "target" in name} == {
        "gauge"
    }
    # A key that is hot no more is seen to be so.
    assert numbers(43, 1.5, None, 99, {**STATISTICS, **noted})["hot_key_share"] == 0
    assert "target_batch_duration_seconds" not in numbers(42, 1.5, None, 99, STATISTICS)
    # Sources also wait for each other in a run without a target.
    assert (
        numbers(42, 1.5, None, 99, {**STATISTICS, "waited": {"orders": "payments"}})["waiting_sources"] == 1
    )
    assert numbers(43, 1.5, None, 99, STATISTICS)["waiting_sources"] == 0


def test_prometheus_serves_sums_and_last_values() -> None:
    port = free_port()
    report = reporter("prometheus", "orders", port)
    report(numbers(42, 1.5, None, 99, STATISTICS))
    report(numbers(43, 0.5, None, 101, STATISTICS))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        text = page.read().decode()
    assert 'stateflow_rows_in_total{job="orders"} 10.0' in text
    assert 'stateflow_last_checkpoint_id{job="orders"} 43.0' in text
    assert 'stateflow_user_balance_big_orders_total{job="orders"} 8.0' in text


def test_a_taken_port_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with refused(UnavailableError, "metrics_port"):
            reporter("prometheus", "orders", taken.getsockname()[1])


def test_opentelemetry_uses_the_process_own_provider() -> None:
    report = reporter("opentelemetry", "orders")
    report(numbers(42, 1.5, None, 99, STATISTICS))


def test_nothing_is_imported_when_no_metrics_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    reporter("none", "orders")({"rows_in": 1})
    with refused(UsageError, "stateflow-spark[prometheus]"):
        reporter("prometheus", "orders")
