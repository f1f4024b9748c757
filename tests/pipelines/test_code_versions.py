"""A loaded pipeline knows which version of its file it is."""

from __future__ import annotations

import hashlib
from pathlib import Path

from stateflow.pipelines.loading import load_pipeline
from tests.jobs.made import ORDERS


def test_a_loaded_pipeline_carries_its_files_checksum_and_the_revision_it_was_told(tmp_path: Path) -> None:
    checksum = hashlib.sha256(ORDERS.read_bytes()).hexdigest()
    assert load_pipeline(str(ORDERS), tmp_path).pipeline.versions == {
        "pipeline": f"orders.py@sha256:{checksum}"
    }
    assert load_pipeline(str(ORDERS), tmp_path, "1a2b").pipeline.versions["revision"] == "1a2b"


def test_the_pipeline_in_the_file_is_left_as_it_is(tmp_path: Path) -> None:
    loaded = load_pipeline(str(ORDERS), tmp_path, "1a2b")
    assert loaded.module.orders.versions == {}, "it is shipped to workers, who need no version"
    assert loaded.module.orders == loaded.pipeline
