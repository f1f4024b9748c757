"""The last line of a run."""

from __future__ import annotations

from stateflow.cli.progress import run_document, run_line
from stateflow.spark.runner import RunReport

SINCE = 1_767_225_600_000_000


def test_the_last_line_names_the_source_that_holds_the_watermark() -> None:
    plain = RunReport("orders", 1, 2, 1801, 3, "input drained")
    assert run_line(plain) == "orders: input drained at checkpoint 3 after 2 batches and 1,801 rows"
    assert run_document(plain)["watermarkHeld"] is None
    held = RunReport("orders", 1, 2, 1801, 3, "input drained", ("clicks", SINCE))
    assert run_line(held) == (
        "orders: input drained at checkpoint 3 after 2 batches and 1,801 rows; source clicks holds the watermark back, "
        "without rows since 2026-01-01 00:00:00"
    )
    assert run_document(held)["watermarkHeld"] == {"source": "clicks", "since": SINCE}
