"""Tables that tests of sinks look at, and the log of one of their jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from stateflow.spark.internals.delta_log import Transaction
from tests.spark import by_hand


def contents(spark: SparkSession, path: Path | str, *columns: str) -> list[Any]:
    """The rows of a Delta table, sorted; plain values when there is one column."""
    rows: Iterable[Any] | None = by_hand.rows(Path(path), columns)
    if rows is None:
        rows = spark.read.format("delta").load(str(path)).select(*columns or ["*"]).collect()
    return sorted(row[0] if len(columns) == 1 else tuple(row) for row in rows)


def versions(path: Path) -> int:
    """How many commits a table has had."""
    return len(list((path / "_delta_log").glob("*.json")))


def while_writing(monkeypatch: pytest.MonkeyPatch, first: Callable[[], Any]) -> None:
    """Lets another writer commit once, after this one has begun its transaction and before it commits."""
    write, waiting = Transaction.write, [first]

    def slowly(self: Transaction, frame: DataFrame) -> list[str]:
        if waiting:
            waiting.pop()()
        return write(self, frame)

    monkeypatch.setattr(Transaction, "write", slowly)
