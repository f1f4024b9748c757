"""Delta tables written and read by hand: each costs milliseconds where Spark computes for a third of a second or more."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

_KINDS = {
    "int": ("integer", pa.int32()),
    "long": ("long", pa.int64()),
    "double": ("double", pa.float64()),
    "string": ("string", pa.string()),
    "timestamp": ("timestamp", pa.timestamp("us", tz="UTC")),
}


def columns(schema: str) -> dict[str, str]:
    """Of `user long, sku string`: each column's kind."""
    return dict(column.split() for column in schema.split(","))


def arrow(rows: Sequence[tuple[Any, ...]], schema: Mapping[str, str]) -> pa.Table:
    """The rows in Arrow. Spark plans with what `createDataFrame` makes of that; rows of Python's objects cost a job each time."""
    values = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table(
        {
            name: pa.array(column, _KINDS[kind][1])
            for (name, kind), column in zip(schema.items(), values, strict=True)
        }
    )


def append(
    table: Path, rows: Sequence[tuple[Any, ...]], schema: Mapping[str, str], *, id: str = "", name: str = ""
) -> None:
    """One more version of the table, with one file. The first one makes the table."""
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    version = max((int(file.stem) for file in log.glob("*.json")), default=-1) + 1
    file = table / (name or f"part-{version:05d}-{uuid.uuid4().hex}.parquet")
    pq.write_table(arrow(rows, schema), file)
    now = time.time_ns() // 1_000_000
    commit: dict[str, Any] = {"timestamp": now, "operation": "WRITE", "operationParameters": {}}
    actions: list[dict[str, Any]] = [{"commitInfo": commit}]
    if version == 0:
        fields = [
            {"name": name, "type": _KINDS[kind][0], "nullable": True, "metadata": {}}
            for name, kind in schema.items()
        ]
        metadata = {
            "id": id or str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": [],
            "configuration": {},
            "createdTime": now,
        }
        actions += [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]
    added = {
        "path": file.name,
        "partitionValues": {},
        "size": file.stat().st_size,
        "modificationTime": now,
        "dataChange": True,
        "stats": json.dumps({"numRecords": len(rows)}),
    }
    actions.append({"add": added})
    _commit(log, version, actions)


def go_back(table: Path, version: int) -> None:
    """What `RESTORE TABLE ... TO VERSION AS OF` commits."""
    actions = _logged(table)
    assert actions is not None
    log = table / "_delta_log"
    newest = max(int(file.stem) for file in log.glob("*.json"))
    then = _added(action for number in range(version + 1) for action in _actions(log / f"{number:020d}.json"))
    now, at = _added(actions), time.time_ns() // 1_000_000
    info = {
        "timestamp": at,
        "operation": "RESTORE",
        "operationParameters": {"version": version, "timestamp": None},
    }
    kept = ("path", "partitionValues", "size")
    taken_out = [
        {
            **{name: add[name] for name in kept},
            "deletionTimestamp": at,
            "dataChange": True,
            "extendedFileMetadata": True,
        }
        for path, add in now.items()
        if path not in then
    ]
    brought_back = [add for path, add in then.items() if path not in now]
    _commit(
        log,
        newest + 1,
        [
            {"commitInfo": info},
            *({"add": each} for each in brought_back),
            *({"remove": each} for each in taken_out),
        ],
    )


def _commit(log: Path, version: int, actions: Sequence[Mapping[str, Any]]) -> None:
    temporary = log / ".temporary"
    temporary.write_text("\n".join(map(json.dumps, actions)) + "\n")
    temporary.rename(log / f"{version:020d}.json")


_READ: dict[str, tuple[pa.DataType, Callable[[str], Any]]] = {
    "byte": (pa.int8(), int),
    "short": (pa.int16(), int),
    "integer": (pa.int32(), int),
    "long": (pa.int64(), int),
    "float": (pa.float32(), float),
    "double": (pa.float64(), float),
    "boolean": (pa.bool_(), "true".__eq__),
    "string": (pa.string(), str),
    "date": (pa.date32(), date.fromisoformat),
}
"""Types of which a file's values are those that `collect` gives: what a file has, and what a partition's text says."""


def rows(table: Path, columns: Sequence[str] = ()) -> list[tuple[Any, ...]] | None:
    """What readers of the newest version find. What Spark goes by has to be right: sizes, counts and types of files.

    None where that takes more: a later protocol for readers (deletion vectors, other names in the files), a checkpoint, files of another
    table, or other types.
    """
    actions = _logged(table)
    if actions is None or any(each.get("protocol", {}).get("minReaderVersion", 1) > 1 for each in actions):
        return None
    metadata = [each["metaData"] for each in actions if "metaData" in each][-1]
    kinds = {field["name"]: field["type"] for field in json.loads(metadata["schemaString"])["fields"]}
    chosen = columns or list(kinds)
    if not all(name in kinds and isinstance(kinds[name], str) and kinds[name] in _READ for name in chosen):
        return None
    added = _added(actions)
    if any(":" in path for path in added):  # of a clone
        return None
    return [
        row for add in added.values() for row in _rows(table, add, {name: kinds[name] for name in chosen})
    ]


def _added(actions: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The files that are in the table after these actions, by their paths."""
    added: dict[str, dict[str, Any]] = {}
    for action in actions:
        if "remove" in action:
            added.pop(action["remove"]["path"], None)
        elif "add" in action:
            added[action["add"]["path"]] = action["add"]
    return added


def _rows(table: Path, add: Mapping[str, Any], kinds: Mapping[str, str]) -> list[tuple[Any, ...]]:
    path = table / unquote(add["path"])
    assert path.stat().st_size == add["size"], path
    file = pq.ParquetFile(path)
    count = file.metadata.num_rows
    assert "stats" not in add or json.loads(add["stats"])["numRecords"] == count, path
    there = [name for name in kinds if name in file.schema_arrow.names]
    read = file.read(there)
    found: list[list[Any]] = []
    for name, kind in kinds.items():
        if name in add["partitionValues"]:
            text = add["partitionValues"][name]
            found.append([None if text in (None, "") else _READ[kind][1](text)] * count)
        elif name in there:
            assert read.schema.field(name).type == _READ[kind][0], (path, name)
            found.append(read[name].to_pylist())
        else:
            found.append([None] * count)
    return list(zip(*found, strict=True))


def _logged(table: Path) -> list[dict[str, Any]] | None:
    """All actions of the table's log; None where its first versions are gone."""
    commits = sorted((table / "_delta_log").glob("*.json"))
    if [int(commit.stem) for commit in commits] != list(range(len(commits))):
        return None
    return [action for commit in commits for action in _actions(commit)]


def _actions(commit: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in commit.read_text(encoding="utf-8").splitlines()]


def told(table: Path) -> dict[str, Any]:
    """What the newest version says of itself, as `DESCRIBE HISTORY` shows it."""
    newest = max((table / "_delta_log").glob("*.json"))
    [found] = [each["commitInfo"] for each in _actions(newest) if "commitInfo" in each]
    return dict(found)
