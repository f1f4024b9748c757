"""Metrics go where the user wants them, and nowhere when not."""

from __future__ import annotations

import socket
import sys
import urllib.request

import pytest

from stateflow.errors import UnavailableError, UsageError
from stateflow.logs import on_wait
from stateflow.metrics import MEASURES, numbers, reporter, user_counters
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
    assert user_counters(STATISTICS) == {("balance", "big-orders"): 4}


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


def no_warning(about: str, sentence: str) -> None:
    raise AssertionError(f"{about}: {sentence}")


def fetched(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        text: str = page.read().decode()
    return text


def test_prometheus_serves_sums_and_last_values() -> None:
    port = free_port()
    with reporter("prometheus", "orders", no_warning, port) as report:
        report(numbers(42, 1.5, None, 99, STATISTICS), user_counters(STATISTICS))
        report(numbers(43, 0.5, None, 101, STATISTICS), user_counters(STATISTICS))
        text = fetched(port)
    assert 'stateflow_rows_in_total{job="orders"} 10.0' in text
    assert 'stateflow_last_checkpoint_id{job="orders"} 43.0' in text
    assert 'stateflow_user_counter_total{counter="big-orders",job="orders",operator="balance"} 8.0' in text


COUNTERS: dict[tuple[str, str], float] = {
    # In the name of a measure each of these would be refused, or be one with another.
    ("a", "orders"): 1,
    ("a", "orders_total"): 2,
    ("a", "ORDERS"): 3,
    ("a", "late rows"): 4,
    ("a", "late_rows"): 5,
    ("a", "größe"): 6,
    ("a", "long" * 100): 7,
    ("a", "b_c"): 8,
    ("a_b", "c"): 9,
    ("a-b", "c"): 10,
}


def test_prometheus_keeps_counters_apart_whatever_their_names() -> None:
    port = free_port()
    with reporter("prometheus", "orders", no_warning, port) as report:
        report({}, COUNTERS)
        text = fetched(port)
    for (operator, name), count in COUNTERS.items():
        assert f'{{counter="{name}",job="orders",operator="{operator}"}} {float(count)}\n' in text


def test_opentelemetry_keeps_counters_apart_whatever_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    reader = pytest.importorskip("opentelemetry.sdk.metrics.export").InMemoryMetricReader()
    monkeypatch.setattr("opentelemetry.metrics.get_meter", sdk.MeterProvider([reader]).get_meter)
    with reporter("opentelemetry", "orders", no_warning) as report:
        report({}, COUNTERS)
    (of_resource,) = reader.get_metrics_data().resource_metrics
    (metric,) = of_resource.scope_metrics[0].metrics
    assert metric.name == "stateflow.user_counter"
    assert {
        (point.attributes["operator"], point.attributes["counter"]): point.value
        for point in metric.data.data_points
    } == COUNTERS


def test_what_prometheus_does_not_take_is_warned_of_and_the_rest_is_reported() -> None:
    port = free_port()
    warned: dict[str, str] = {}
    with reporter("prometheus", "orders", warned.setdefault, port) as report:
        for _ in range(2):
            report({"watermark_seconds": object(), "rows_out": 1}, {("a", "open"): -1, ("a", "closed"): 1})  # type: ignore[dict-item]
        text = fetched(port)
    assert 'stateflow_rows_out_total{job="orders"} 2.0' in text
    assert 'counter="closed",job="orders",operator="a"} 2.0' in text
    assert '"open"' not in text
    (measure, counter) = warned.values()
    assert "watermark_seconds" in measure
    assert "metrics=none" in measure
    assert "'open'" in counter
    assert "'a'" in counter


def test_a_taken_port_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with (
            refused(UnavailableError, "metrics_port"),
            reporter("prometheus", "orders", no_warning, taken.getsockname()[1]),
        ):
            pass


def test_a_free_port_is_told_and_is_free_again_after_the_run(request: pytest.FixtureRequest) -> None:
    told: list[str] = []
    on_wait(told.append)
    request.addfinalizer(lambda: on_wait(None))
    with reporter("prometheus", "orders", no_warning) as report:
        report({"rows_in": 1}, {})
        port = int(told[0].rpartition(":")[2].removesuffix("/metrics"))
        assert 'stateflow_rows_in_total{job="orders"} 1.0' in fetched(port)
    with reporter("prometheus", "orders", no_warning, port):
        assert "stateflow_rows_in" not in fetched(port), "these are the numbers of the run before"


def test_opentelemetry_uses_the_process_own_provider() -> None:
    with reporter("opentelemetry", "orders", no_warning) as report:
        report(numbers(42, 1.5, None, 99, STATISTICS), user_counters(STATISTICS))


def test_nothing_is_imported_when_no_metrics_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with reporter("none", "orders", no_warning) as report:
        report({"rows_in": 1}, {})
    with refused(UsageError, "stateflow-spark[prometheus]"), reporter("prometheus", "orders", no_warning):
        pass
