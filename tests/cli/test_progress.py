"""What a run prints: a line per batch, and the last line."""

from __future__ import annotations

import io
import logging
from typing import Any

import pytest
from rich.console import Console

from stateflow import logs
from stateflow.cli.output import ConsoleOutput
from stateflow.cli.progress import WIDTH, batch_line, full_line, run_document, run_line
from stateflow.format.instants import END_OF_TIME
from stateflow.pipelines.lost_rows import LostRows
from stateflow.spark.inputs.watermark import Holder
from stateflow.spark.runner import RunReport

SINCE = 1_767_225_600_000_000


def test_the_last_line_names_the_source_that_holds_the_watermark() -> None:
    plain = RunReport("orders", 1, 2, 1801, 3, "input drained")
    assert run_line(plain) == "orders: input drained at checkpoint 3 after 2 batches and 1,801 rows"
    assert run_document(plain)["watermarkHeld"] is None
    held = RunReport("orders", 1, 2, 1801, 3, "input drained", Holder("clicks", SINCE))
    assert run_line(held) == (
        "orders: input drained at checkpoint 3 after 2 batches and 1,801 rows; source clicks holds the watermark back, "
        "without rows since 2026-01-01 00:00:00"
    )
    assert run_document(held)["watermarkHeld"] == {"source": "clicks", "since": SINCE}


def test_the_last_line_names_the_partition_that_holds_the_watermark() -> None:
    held = RunReport("orders", 1, 2, 1801, 3, "input drained", Holder("clicks", SINCE, "clicks/7"))
    assert run_line(held) == (
        "orders: input drained at checkpoint 3 after 2 batches and 1,801 rows; partition clicks/7 of source clicks holds the "
        "watermark back, whose last rows came at 2026-01-01 00:00:00"
    )
    assert run_document(held)["watermarkHeld"] == {
        "source": "clicks",
        "since": SINCE,
        "partition": "clicks/7",
    }


def test_the_last_line_counts_one_of_each() -> None:
    assert run_line(RunReport("orders", 1, 1, 1, 3, "input drained")) == (
        "orders: input drained at checkpoint 3 after 1 batch and 1 row"
    )


def test_the_last_line_names_late_rows_that_nobody_reads_and_what_to_read() -> None:
    lost = (LostRows("per-minute", ("late",), 1_200), LostRows("paid", ("late_left", "late_right"), 3))
    report = RunReport("orders", 1, 2, 1801, 3, "input drained", lost=lost)
    assert run_line(report) == (
        "orders: input drained at checkpoint 3 after 2 batches and 1,801 rows; 1,203 late rows went nowhere: read "
        '.side("late") of per-minute, .side("late_left") or .side("late_right") of paid'
    )
    assert run_document(report)["lateRowsUnread"] == {"per-minute": 1_200, "paid": 3}
    assert run_line(
        RunReport("orders", 1, 2, 9, 3, "input drained", lost=(LostRows("a", ("late",), 1),))
    ).endswith('; 1 late row went nowhere: read .side("late") of a')


def test_the_last_lines_are_the_warnings_of_the_run() -> None:
    report = RunReport(
        "orders", 1, 1, 9, 3, "input drained", warnings=("2 rows were odd", "a column is empty")
    )
    assert run_line(report).splitlines()[1:] == ["warning: 2 rows were odd", "warning: a column is empty"]
    assert run_document(report)["warnings"] == ["2 rows were odd", "a column is empty"]


MINUTE = 60_000
SHOWN = "\x1b[?25h"


def body(**others: Any) -> dict[str, Any]:
    return {
        "id": 42, "input_free": False, "processed_rows": 20_000, "rows_per_second": 9_830.0, "keys": 500,
        "dead_letters": 0, "state_size": 42_257_613, "uploaded_bytes": 1_048_576, "compacted_bytes": 0,
        "inlined_bytes": 100_352, "end_to_end_duration": 2034, "sync_duration": 1600, "upload_duration": 61,
        "commit_duration": 300, "cache_hits": 4, "cache_misses": 0, "watermark": SINCE, "event_time_lag": 3000,
        "counters": {"orders": 20_000}, "sinks": {"totals": 512},
    } | others  # fmt: skip


@pytest.mark.parametrize(
    ("others", "line"),
    [
        ({}, "chk 42  20,000 rows  9,830/s  2.0 s  state 40.3 MB  watermark 00:00:00  to totals 512"),
        (
            {"event_time_lag": 7694 * 60 * MINUTE},
            "chk 42  20,000 rows  9,830/s  2.0 s  state 40.3 MB  backfill at 2026-01-01  to totals 512",
        ),
        (
            {"event_time_lag": None},
            "chk 42  20,000 rows  9,830/s  2.0 s  state 40.3 MB  watermark 2026-01-01 00:00:00  to totals 512",
        ),
        (
            {"event_time_lag": 7694 * 60 * MINUTE, "watermark": END_OF_TIME},
            "chk 42  20,000 rows  9,830/s  2.0 s  state 40.3 MB  watermark the end of time  to totals 512",
        ),
        ({"watermark": None}, "chk 42  20,000 rows  9,830/s  2.0 s  state 40.3 MB  to totals 512"),
        (
            {"input_free": True, "processed_rows": 0, "rows_per_second": 0.0, "dead_letters": 3, "sinks": {}},
            "chk 42  timers  0/s  2.0 s  state 40.3 MB  watermark 00:00:00  3 dead letters",
        ),
        (
            {"counters": {"late_rows": 1_200, "orders": 7}},
            "chk 42  20,000 rows  9,830/s  2.0 s  state 40.3 MB  watermark 00:00:00  1,200 late  to totals 512",
        ),
        (
            {"counters": {"late_rows": 1_200, "partly_late_rows": 30}},
            "chk 42  20,000 rows  9,830/s  2.0 s  state 40.3 MB  watermark 00:00:00  1,200 late  30 partly late",
        ),
        (
            {"sinks": {"totals": 512, "audit": 20_000, "alerts": 3}},
            "chk 42  20,000 rows  9,830/s  2.0 s  state 40.3 MB  watermark 00:00:00  to 3 sinks 20,515",
        ),
    ],
)
def test_a_batch_is_one_line_of_what_one_looks_for(others: dict[str, Any], line: str) -> None:
    assert batch_line(body(**others)) == line


def test_the_line_of_a_large_batch_fits_into_its_width() -> None:
    large = body(
        id=1_234_567, processed_rows=12_000_000, rows_per_second=1_234_567.0, dead_letters=1_000,
        end_to_end_duration=119_900, sinks={"a-sink-of-a-long-name": 12_000_000}, counters={"late_rows": 12_000_000},
    )  # fmt: skip
    assert "12,000,000 late" in batch_line(large)
    assert len(batch_line(large)) <= WIDTH


def test_what_a_batch_might_take_is_there_for_who_asks() -> None:
    chosen = [
        {"source": "orders", "unit": "rows", "most": 20_000, "took": 20_000},
        {"source": "visits", "unit": "bytes", "most": 8 << 20},
        {"source": "old", "unit": "files", "most": 1},
    ]
    assert "  at most 20,000 rows of orders  at most 8.0 MB of visits  at most 1 file of old  " in full_line(
        body(batch_size=chosen)
    )
    assert "  orders waits for payments  " in full_line(body(waited={"orders": "payments"}))


def test_all_figures_are_there_for_who_asks() -> None:
    assert full_line(body()) == (
        "chk 42  20,000 rows  9,830/s  500 keys  state 40.3 MB  new 1.1 MB (1.1 MB flushed, 0 B compacted, 98.0 KB inline)  "
        "2.0 s (evaluate 1.6 s, upload 61 ms, commit 0.3 s)  cache 4/4  watermark 2026-01-01 00:00:00  lag 3.0 s  "
        "orders 20,000  to totals 512"
    )
    assert "lag" not in full_line(body(event_time_lag=7694 * 60 * MINUTE))


def test_at_a_terminal_batches_share_one_line_below_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    output = ConsoleOutput()
    output._err = Console(file=screen, force_terminal=True, width=60, highlight=False)
    with output.live() as show:
        assert screen.getvalue().endswith(SHOWN), "a run that is killed leaves the cursor"
        show("chk 1")
        handler = logs.set_up("text")
        logging.getLogger("stateflow").warning("a cache is full")
        show("chk 2")
    logging.getLogger().removeHandler(handler)
    before, found, after = screen.getvalue().partition("a cache is full")
    assert found
    assert "chk 1" in before
    assert "chk 2" in after
    erased = "\r\x1b[2K"
    assert "\n" not in before, "the log's line takes the place of the live one"
    assert erased in before
    assert after.count(erased) >= 1
    assert after.removesuffix(SHOWN).endswith("chk 2\n")


def test_elsewhere_each_batch_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with ConsoleOutput().live() as show:
        show("chk 1")
        show("chk 2")
    assert capsys.readouterr().err == "chk 1\nchk 2\n"
