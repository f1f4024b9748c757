"""Which keys of a state table the conditions of a query leave."""

from __future__ import annotations

from datetime import UTC, date, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

datasource: Any = pytest.importorskip("pyspark.sql.datasource")
if not hasattr(datasource, "EqualTo"):
    pytest.skip("Spark 4.0 pushes no conditions down", allow_module_level=True)


def table(kind: str) -> Any:
    operator = SimpleNamespace(key=(("t", kind),), max_parallelism=8)
    return cast(
        Any, SimpleNamespace(operator=operator, codec=SimpleNamespace(names={"key_group": "key_group"}))
    )


@pytest.mark.parametrize(
    ("kind", "value", "narrows"),
    [
        ("datetime", datetime(2026, 1, 1, tzinfo=UTC), True),
        ("date", date(1583, 1, 1), True),
        # Spark hands these over by the calendar of the time, as other days than those that state has.
        ("datetime", datetime(1582, 10, 15, tzinfo=UTC), False),
        ("date", date(1500, 3, 1), False),
    ],
)
def test_days_of_an_older_calendar_narrow_nothing(kind: str, value: Any, narrows: bool) -> None:
    from stateflow.spark.state_tables.pushed_filters import selected

    assert selected([datasource.EqualTo(("t",), value)], table(kind)).everything is not narrows
    assert selected([datasource.In(("t",), (value, None))], table(kind)).everything is not narrows
