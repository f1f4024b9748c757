"""Runs in Flink's environment: a query in SQL over Parquet files, to see its rows and for the clock.

The argument is JSON: `query`, `keys` (by which its rows replace each other), `settings`, `jars`, and `passes`. A pass has its `tables` (DDL texts), a folder
for `checkpoints`, and what is asked of it: `rows`, `seconds`, or `inserted` of a statement that writes. The answer has a value for each. All run in one virtual machine, so that a pass is
the warm-up of the next.
"""

from __future__ import annotations

import datetime
import decimal
import json
import sys
import time
from collections import Counter
from typing import Any

from pyflink.common import Configuration, RowKind
from pyflink.table import EnvironmentSettings, TableDescriptor, TableEnvironment
from pyflink.table.types import LocalZonedTimestampType

SETTINGS = {
    "parallelism.default": "2",
    "state.backend.type": "rocksdb",
    "execution.checkpointing.incremental": "true",
    "execution.checkpointing.interval": "5 s",
    "execution.checkpointing.storage": "filesystem",
    "taskmanager.memory.managed.size": "512m",
    "taskmanager.memory.process.size": "2500m",
    "taskmanager.numberOfTaskSlots": "2",
    "table.local-time-zone": "UTC",
}


def environment(request: dict[str, Any], each: dict[str, Any]) -> TableEnvironment:
    """An environment of its own for a pass."""
    settings = Configuration()
    given = {
        **SETTINGS,
        "execution.checkpointing.dir": f"file://{each['checkpoints']}",
        "pipeline.jars": ";".join(f"file://{jar}" for jar in request["jars"]),
        **request["settings"],
    }
    for name, value in given.items():
        settings.set_string(name, value)
    chosen = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(settings).build()
    tables = TableEnvironment.create(chosen)
    for text in each["tables"]:
        tables.execute_sql(text)
    return tables


def plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return {"at": value.replace(tzinfo=datetime.UTC).timestamp()}
    if isinstance(value, datetime.date):
        return {"day": value.isoformat()}
    return float(value) if isinstance(value, decimal.Decimal) else value


def without_instants(tables: TableEnvironment, query: str) -> str:
    """The query with instants as timestamps of UTC, which are no event time any more: Python cannot be given instants."""
    schema = tables.sql_query(query).get_schema()
    columns = [
        f"cast(`{name}` as timestamp(3)) as `{name}`"
        if isinstance(schema.get_field_data_type(name), LocalZonedTimestampType)
        else f"`{name}`"
        for name in schema.get_field_names()
    ]
    return f"select {', '.join(columns)} from ({query})"


def rows(tables: TableEnvironment, query: str, keys: list[str]) -> list[list[Any]]:
    """The rows that are left when every change has been taken in."""
    result = tables.execute_sql(without_instants(tables, query))
    left: Counter[str] = Counter()
    of_key: dict[str, str] = {}
    names = result.get_table_schema().get_field_names()
    with result.collect() as changes:
        for row in changes:
            values = [plain(value) for value in row]
            text = json.dumps(values)
            more = row.get_row_kind() in (RowKind.INSERT, RowKind.UPDATE_AFTER)
            if keys:
                # Flink may leave out what a row replaces where the key tells it.
                key = json.dumps([values[names.index(name)] for name in keys])
                if key in of_key:
                    left[of_key.pop(key)] -= 1
                if more:
                    of_key[key] = text
            if more:
                left[text] += 1
            elif not keys:
                left[text] -= 1
    return [names, *(json.loads(text) for text in left.elements())]


def seconds(tables: TableEnvironment, query: str, keys: list[str]) -> float:
    """How long the query takes to the end of its input. Its rows go nowhere, which is the fastest sink."""
    # A sink takes one column of event time at most, and a join has two.
    plain_columns = tables.sql_query(without_instants(tables, query))
    began = time.perf_counter()
    plain_columns.execute_insert(TableDescriptor.for_connector("blackhole").build()).wait()
    return time.perf_counter() - began


def inserted(tables: TableEnvironment, query: str, keys: list[str]) -> float:
    """How long a statement takes that writes into a table, to the end of its input."""
    began = time.perf_counter()
    tables.execute_sql(query).wait()
    return time.perf_counter() - began


ASKED = {"rows": rows, "seconds": seconds, "inserted": inserted}


def main(request: dict[str, Any]) -> None:
    answers = [
        ASKED[each["asked"]](environment(request, each), request["query"], request["keys"])
        for each in request["passes"]
    ]
    print(json.dumps(answers))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
