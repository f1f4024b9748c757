"""The metrics page, read as Prometheus reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stateflow.errors import CorruptError
from stateflow.storage.roots import open_store
from stateflow_ui.cached_value import CacheState
from stateflow_ui.catalog import JobState, RootState
from stateflow_ui.job_reader import JobFacts, JobReader
from stateflow_ui.metrics import METRICS, page
from stateflow_ui.reader_threads import ReaderThreads
from stateflow_ui.stale_after import StaleAfter
from tests.jobs.records import Made, make_job

NOW = 1_800_000_000_000_000
MICROS = 1_000_000
ROOT = RootState("main", "file:///root", "", True)
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def facts(folder: Path, job: Made, now: int = NOW) -> JobFacts:
    make_job(folder, job, NOW)
    reader = JobReader(
        "main",
        open_store(str(folder)),
        job.name,
        patience=10,
        clock=lambda: now,
        fetchers=ReaderThreads(1, "test"),
    )
    return reader.read(whole=False)


def state(found: JobFacts) -> JobState:
    return JobState("main", found.name, CacheState(found, None, 1.0, None))


def scraped(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(samples: Samples, name: str, **labels: str) -> float:
    return samples[(name, frozenset({"conn_id": "main", **labels}.items()))]


def test_every_metric_is_there_and_says_what_the_job_is(tmp_path: Path) -> None:
    idle = facts(tmp_path, Made("orders", standing=60))
    running = facts(tmp_path, Made("clicks", running=True, sized=True))
    text = page([ROOT], [state(idle), state(running)], NOW, StaleAfter(""))
    found = scraped(text)
    assert {name for name, _ in found} == {metric.name for metric in METRICS}
    job = {"stateflow_job": "orders"}
    assert of(found, "stateflow_root_up") == 1
    assert of(found, "stateflow_root_jobs") == 2
    assert of(found, "stateflow_job_readable", **job) == 1
    assert of(found, "stateflow_job_last_checkpoint_id", **job) == 60
    assert of(found, "stateflow_job_last_checkpoint_timestamp_seconds", **job) == NOW / 1e6 - 60
    assert of(found, "stateflow_job_state_bytes", **job) == idle.status.state_size
    assert of(found, "stateflow_job_state_files", **job) == 12
    assert of(found, "stateflow_job_running", **job) == 0
    assert of(found, "stateflow_job_running", stateflow_job="clicks") == 1
    assert of(found, "stateflow_job_pending_records", **job) == 0
    assert of(found, "stateflow_job_last_run_exit_code", **job) == 0
    assert of(found, "stateflow_job_watermark_seconds", **job) == NOW / 1e6 - 660
    assert of(found, "stateflow_job_last_checkpoint_duration_seconds", **job) == 2.8
    assert of(found, "stateflow_job_recent_checkpoint_duration_seconds", quantile="1", **job) == 2.8
    assert of(found, "stateflow_job_rows_per_second", stateflow_job="clicks") > 0
    sized = {"stateflow_job": "clicks"}
    assert of(found, "stateflow_job_target_batch_duration_seconds", **sized) == 30
    assert of(found, "stateflow_job_batch_limit", source="events", unit="bytes", **sized) == 4096 + 1024
    assert of(found, "stateflow_job_waiting_source", source="clicks", waits_for="events", **sized) == 1
    assert of(found, "stateflow_job_hot_key_share", operator="balance", subtask="3", **sized) == 0.52
    assert (
        "stateflow_job_target_batch_duration_seconds",
        frozenset({("conn_id", "main"), *job.items()}),
    ) not in found
    assert ("stateflow_job_rows_per_second", frozenset({"conn_id": "main", **job}.items())) not in found


@pytest.mark.parametrize(
    ("later", "bound", "expected"), [(0, "1 hour", "ok"), (7200, "1 hour", "stale"), (7200, "never", "ok")]
)
def test_exactly_one_state_of_health_is_on(tmp_path: Path, later: int, bound: str, expected: str) -> None:
    found = scraped(
        page([ROOT], [state(facts(tmp_path, Made("orders")))], NOW + later * MICROS, StaleAfter(bound))
    )
    on = {
        dict(labels)["state"]: value
        for (name, labels), value in found.items()
        if name == "stateflow_job_health"
    }
    assert set(on) == {"ok", "stale", "lost", "blocked", "new", "failed", "unreadable"}
    assert [name for name, value in on.items() if value] == [expected]


def test_a_run_without_a_sign_of_life_is_lost(tmp_path: Path) -> None:
    lost = facts(tmp_path, Made("orders", running=True), now=NOW + 3600 * MICROS)
    found = scraped(page([ROOT], [state(lost)], NOW + 3600 * MICROS, StaleAfter("")))
    assert of(found, "stateflow_job_health", stateflow_job="orders", state="lost") == 1
    assert of(found, "stateflow_job_running", stateflow_job="orders") == 0
    assert (
        "stateflow_job_last_run_exit_code",
        frozenset({("conn_id", "main"), ("stateflow_job", "orders")}),
    ) not in found


def test_what_cannot_be_read_is_told_as_such() -> None:
    roots = [ROOT, RootState("away", "s3://away", "the network is down", False)]
    broken = JobState("main", "orders", CacheState(None, CorruptError("damaged"), None, None))
    found = scraped(page(roots, [broken], NOW, StaleAfter("")))
    assert found == {
        ("stateflow_root_up", frozenset({("conn_id", "main")})): 1,
        ("stateflow_root_up", frozenset({("conn_id", "away")})): 0,
        ("stateflow_root_jobs", frozenset({("conn_id", "main")})): 1,
        ("stateflow_job_readable", frozenset({("conn_id", "main"), ("stateflow_job", "orders")})): 0,
    }


def test_labels_may_hold_anything() -> None:
    text = page([RootState('a"b\\c\nd', "", "", True)], [], NOW, StaleAfter(""))
    assert ("stateflow_root_up", frozenset({("conn_id", 'a"b\\c\nd')})) in scraped(text)
