"""Columns that the Delta table of an output or an input lacks, told without Spark, so that `check` tells them before a run does.

Only tables in local folders are looked at, and only columns that the pipeline declares. A run finds the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from stateflow.errors import UsageError
from stateflow.names import suggestion
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import KeyedNode, Node
from stateflow.pipelines.inputs.tables import FEED_COLUMNS, DeltaTable
from stateflow.pipelines.ready.operators import RunningAggregate, WindowAggregate
from stateflow.pipelines.rows.row_type import Field
from stateflow.spark.sinks.fit import added_by, renamed_by
from stateflow.storage.roots import local_folder


def unwritable(flow: Flow, *, renamed: bool = False) -> dict[str, str]:
    """A sentence by the uid of each sink whose table lacks columns; with `renamed`, of those alone that lack one since it was renamed."""
    problems = {}
    for node in flow.sinks:
        stream, table = node.inputs[0], node.target
        if not isinstance(table, DeltaTable) or not table.path or stream.rows is None:
            continue
        columns = columns_of(table.path)
        there = None if columns is None else frozenset(name.lower() for name in columns)
        fields = [f for f in stream.rows.fields if f.name != node.options.get("operation")]
        absent = [f for f in fields if there is not None and f.name.lower() not in there]
        if not absent or there is None:
            continue
        names = ", ".join(repr(field.name) for field in absent)
        begin_anew = _aggregates(stream.node)
        kept = [field for field in absent if field.name not in begin_anew]
        former = _former(kept, there - {field.name.lower() for field in fields})
        if renamed and not former:
            continue
        added = [(field.name, _upper(field.type)) for field in absent if field.name not in former.values()]
        steps = [renamed_by(former, table.in_sql)] if former else []
        steps += [added_by(added, table.in_sql)] if added else []
        problems[node.uid] = (
            f"sink {node.uid!r}: {table} has no column {names}: change the output or alter the table: {'; '.join(steps)}"
        )
    return problems


def unreadable(flow: Flow) -> Iterator[str]:
    """A sentence for each column that a source declares and its table lacks. A run refuses it once Spark is there."""
    for node in flow.sources:
        table, rows = node.factory, node.rows
        if not isinstance(table, DeltaTable) or not table.path or rows is None:
            continue
        if (there := columns_of(table.path)) is None:
            continue
        known = (*there, *(FEED_COLUMNS if table.reads_changes else ()))
        free = [name for name in there if rows.field(name) is None]
        for field in rows.fields:
            if field.name not in known:
                meant = suggestion(field.name, free) or f": it has {', '.join(there)}"
                yield f"source {node.uid!r} declares {field.name!r}, and {table} has no such column{meant}"


def _aggregates(node: Node) -> frozenset[str]:
    """The columns that are aggregates of the operator. Under another name one begins anew, so no row of before has its value."""
    declared = node.columnar if isinstance(node, KeyedNode) else None
    known = declared.aggregates if isinstance(declared, RunningAggregate | WindowAggregate) else ()
    return frozenset(each.name for each in known)


def _former(absent: Iterable[Field], there: frozenset[str]) -> dict[str, str]:
    """Columns that the table has under an earlier name, by that name."""
    found = {}
    for field in absent:
        old = next((alias for alias in field.aliases if alias.lower() in there and alias not in found), None)
        if old is not None:
            found[old] = field.name
    return found


def _upper(kind: str) -> str:
    """As statements are written; names of fields inside keep their case."""
    return kind if "<" in kind else kind.upper()


def columns_of(path: str) -> list[str] | None:
    """The names of a table's columns; None when there is no table, or this process cannot tell."""
    try:
        folder = local_folder(path)
        schema = None if folder is None else _newest_schema(folder / "_delta_log")
        return None if schema is None else [f["name"] for f in json.loads(schema)["fields"]]
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
