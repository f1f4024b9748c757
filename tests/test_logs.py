"""Log lines that say what they are about."""

from __future__ import annotations

import io
import json
import logging

from stateflow import logs


def test_json_lines_have_job_epoch_and_slot_when_they_are_known() -> None:
    stream = io.StringIO()
    logs.set_up("json", stream=stream)
    log = logging.getLogger("stateflow.spark.loop")
    log.warning("early")
    logs.about(job="orders", epoch=7)
    log.warning("batch failed: %s", "disk", extra={"slot": 42})
    early, late = map(json.loads, stream.getvalue().splitlines())
    assert "job" not in early
    assert (late["job"], late["epoch"], late["slot"]) == ("orders", 7, 42)
    assert late["message"] == "batch failed: disk"
    assert late["level"] == "WARNING"
    assert late["at"].endswith("+00:00")


def test_text_lines_put_them_in_brackets() -> None:
    stream = io.StringIO()
    logs.set_up("text", stream=stream)
    logs.about(job="orders", epoch=7, slot=42)
    logging.getLogger("stateflow").warning("slow")
    logs.about(slot=None)
    logging.getLogger("stateflow").warning("slower")
    first, second = stream.getvalue().splitlines()
    assert first.endswith("WARNING [orders e7 c42] slow")
    assert second.endswith("WARNING [orders e7] slower")


def test_setting_up_twice_does_not_say_everything_twice() -> None:
    stream = io.StringIO()
    logs.set_up("text", stream=stream)
    logs.set_up("json", stream=stream)
    logging.getLogger("stateflow").warning("once")
    assert len(stream.getvalue().splitlines()) == 1


def test_an_exception_is_part_of_its_line() -> None:
    stream = io.StringIO()
    logs.set_up("json", stream=stream)
    try:
        raise ValueError("odd")
    except ValueError:
        logging.getLogger("stateflow").exception("failed")
    assert "ValueError: odd" in json.loads(stream.getvalue())["exception"]
