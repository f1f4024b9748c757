"""The warnings of a run: once in the log, and at the end with their newest words."""

from __future__ import annotations

import logging

import pytest

from stateflow.spark.run_warnings import RunWarnings


def test_a_matter_is_logged_once_and_ends_with_its_newest_sentence(caplog: pytest.LogCaptureFixture) -> None:
    warnings = RunWarnings()
    with caplog.at_level(logging.WARNING):
        warnings.add("odd rows", "1 row was odd")
        warnings.add("empty column", "column b is empty")
        warnings.add("odd rows", "3 rows were odd")
    assert caplog.messages == ["1 row was odd", "column b is empty"]
    assert warnings.sentences == ("3 rows were odd", "column b is empty")
