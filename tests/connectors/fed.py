"""A job whose feed goes to a sink of any kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.restore.planned import RestorePlan
from tests.spark import pipelines
from tests.spark.pipelines import ORDER, Order, Sum, Workbench, at


class FedJob:
    """Sums by user, and the changes of the sums in `target`."""

    def __init__(self, spark: SparkSession, folder: Path, target: Any, mode: str, **options: Any) -> None:
        from stateflow.spark.session.shipping import by_value

        by_value([pipelines])
        self.bench, self.batches = Workbench(spark, folder), 0

        @sf.pipeline("fed")
        def fed(flow: sf.Flow) -> None:
            rows = flow.source("orders", self.bench.source("orders", ORDER), Order)
            rows.key_by("user").process("sum", Sum)
            getattr(flow.state_changes("sum"), mode)("changes", target, **options)

        self.pipeline = fed

    def batch(self, *users: int) -> int:
        """One more order of each of these users; its amount is the user's number. The slot of the batch."""
        self.batches += 1
        self.bench.rows("orders", [Order(user, "a", float(user), at(self.batches)) for user in users])
        self.bench.run(self.pipeline, retained_checkpoints=20)
        return self.bench.records("fed")[-1].slot

    def forget_input(self) -> None:
        """Of the newest batch, as if nobody had ordered."""
        newest = max((self.bench.folder / "orders").glob("*.json"))
        newest.unlink()

    def restored(self, slot: int, **options: Any) -> RestorePlan:
        return self.bench.job("fed").restore(
            f"checkpoint:{slot}", self.pipeline, options=self.bench.options(), **options
        )
