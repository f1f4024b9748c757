"""Columns of an output that its Delta table lacks, told without Spark, so that `check` tells them before a run does.

Only tables in local folders are looked at, and only columns that the pipeline declares. A run finds the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from stateflow.errors import UsageError
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.tables import DeltaTable
from stateflow.spark.sinks.fit import added_by
from stateflow.storage.roots import local_folder


def lacking(flow: Flow) -> dict[str, str]:
    """A sentence by the uid of each sink whose table lacks columns."""
    problems = {}
    for node in flow.sinks:
        stream, table = node.inputs[0], node.target
        if not isinstance(table, DeltaTable) or stream.rows is None:
            continue
        there = columns_of(table.path)
        fields = [f for f in stream.rows.fields if f.name != stream.operation]
        absent = [
            (f.name, _upper(f.type)) for f in fields if there is not None and f.name.lower() not in there
        ]
        if absent:
            names = ", ".join(repr(name) for name, _ in absent)
            problems[node.uid] = (
                f"sink {node.uid!r}: {table} has no column {names}: change the output or alter the table: "
                f"{added_by(absent, table.path)}"
            )
    return problems


def _upper(kind: str) -> str:
    """As statements are written; names of fields inside keep their case."""
    return kind if "<" in kind else kind.upper()


def columns_of(path: str) -> frozenset[str] | None:
    """The names of a table's columns in lower case; None when there is no table, or this process cannot tell."""
    try:
        folder = local_folder(path)
        schema = None if folder is None else _newest_schema(folder / "_delta_log")
        return None if schema is None else frozenset(f["name"].lower() for f in json.loads(schema)["fields"])
    except (OSError, ValueError, KeyError, UsageError):
        return None


def _newest_schema(log: Path) -> str | None:
    if not log.is_dir():
        return None
    commits = {int(file.stem): file for file in log.glob("*.json") if file.stem.isdigit()}
    snapshots = [file for file in log.glob("*.checkpoint.parquet") if file.name.partition(".")[0].isdigit()]
    newest = max(snapshots, key=lambda file: file.name, default=None)
    since = -1 if newest is None else int(newest.name.partition(".")[0])
    for version in sorted((v for v in commits if v > since), reverse=True):
        if (schema := _changed_by(commits[version])) is not None:
            return schema
    return None if newest is None else _of_snapshot(newest)


def _changed_by(commit: Path) -> str | None:
    with commit.open(encoding="utf-8") as lines:
        return _last(
            json.loads(line)["metaData"]["schemaString"] for line in lines if line.startswith('{"metaData"')
        )


def _of_snapshot(file: Path) -> str | None:
    import pyarrow.parquet as pq

    column = pq.ParquetFile(file).read(columns=["metaData.schemaString"])["metaData"]
    return _last(row["schemaString"] for row in column.drop_null().to_pylist())


def _last(found: Iterable[str]) -> str | None:
    return next(reversed([text for text in found if text]), None)
