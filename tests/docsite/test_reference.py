"""The pages of the Python reference."""

from __future__ import annotations

import pytest

import stateflow as sf
from scripts.docsite import reference


def test_every_public_name_is_on_one_page() -> None:
    named = [name for page in reference.pages() for name in page.names]
    assert len(named) == len(set(named))
    assert {f"stateflow.{name}" for name in sf.__all__} - {"stateflow.testing"} <= set(named)
    assert "stateflow.testing.KeyedHarness" in named
    assert "stateflow.airflow.StateflowRunOperator" in named


def test_a_module_is_on_the_page_that_names_it_or_its_folder() -> None:
    assert reference.topic_of("stateflow.pipelines.processes.process") == "processes"
    assert reference.topic_of("stateflow.pipelines.ready.windows") == "operators"
    with pytest.raises(SystemExit, match="add it to TOPICS"):
        reference.topic_of("stateflow.nowhere.thing")
