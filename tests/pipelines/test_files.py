"""`sf.files`: a folder of files as a source, as far as it shows without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import stateflow as sf
from stateflow.pipelines.inputs.files import Files


@dataclass
class Order:
    user: int
    amount: float
    ts: datetime


def source_of(factory: Any, type: Any = None) -> Files:
    @sf.pipeline("test")
    def declared(flow: sf.Flow) -> None:
        flow.source("in", factory, type).for_each_batch("out", lambda frame, id: None)

    found = declared.build().sources[0].factory
    assert isinstance(found, Files)
    return found


def test_the_row_class_gives_the_columns() -> None:
    rows = source_of(sf.files("/in", "json"), Order).rows
    assert rows is not None
    assert rows.ddl == "`user` bigint, `amount` double, `ts` timestamp"


def test_lines_of_text_have_one_column() -> None:
    rows = source_of(sf.files("/in", "text")).rows
    assert rows is not None
    assert rows.names == ("value",)
