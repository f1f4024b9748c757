"""What Delta's VACUUM deletes of state in the folder of a table, and what it leaves: the refusals of `storage/probe.py` go by it."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from stateflow.errors import UsageError
from stateflow.storage.local import LocalStore
from stateflow.storage.probe import probe


@pytest.mark.parametrize("folder", ["state", "jobs/_state", "_state", "_state/jobs", ".state"])
def test_what_vacuum_leaves_is_taken_and_what_it_deletes_is_refused(
    spark: SparkSession, tmp_path: Path, folder: str
) -> None:
    table = tmp_path / "table"
    spark.range(1).write.format("delta").save(str(table))
    file = table / folder / "file.sst"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"state")
    refused = False
    try:
        probe(LocalStore(file.parent), lambda: uuid4().hex)
    except UsageError:
        refused = True
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        spark.sql(f"VACUUM delta.`{table}` RETAIN 0 HOURS")
    finally:
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    assert refused is not file.exists()
