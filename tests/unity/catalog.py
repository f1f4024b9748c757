"""What a Unity Catalog server knows of schemas and tables: the part of its Delta API that clients ask, in memory."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_READS = ("catalogManaged", "vacuumProtocolCheck", "v2Checkpoint", "deletionVectors")
_WRITES = (*_READS, "inCommitTimestamp")
MOST_UNPUBLISHED = 50


class RefusedError(Exception):
    """An answer other than 200, with the type by which clients know it."""

    def __init__(self, code: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.body = {"error": {"code": code, "type": kind, "message": message}}


@dataclass
class Table:
    """A table, and for one whose commits go through the catalog those that are not in its log yet."""

    name: str
    location: str
    managed: bool
    columns: dict[str, Any]
    properties: dict[str, str]
    partition_columns: list[str] = field(default_factory=list)
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    commits: dict[int, dict[str, Any]] = field(default_factory=dict)
    latest: int = 0

    def loaded(self) -> dict[str, Any]:
        """The answer to `loadTable`."""
        metadata = {
            "etag": str(self.latest),
            "table-type": "MANAGED" if self.managed else "EXTERNAL",
            "table-uuid": self.id,
            "location": self.location,
            "created-time": 0,
            "updated-time": 0,
            "columns": self.columns,
            "partition-columns": self.partition_columns,
            "properties": self.properties,
        }
        if not self.managed:
            return {"metadata": metadata}
        newest_first = [self.commits[version] for version in sorted(self.commits, reverse=True)]
        return {"metadata": metadata, "commits": newest_first, "latest-table-version": self.latest}

    def update(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """One commit at most, which is the next version or is refused."""
        if any(each.get("uuid", self.id) != self.id for each in request["requirements"]):
            raise RefusedError(409, "UpdateRequirementConflictException", f"{self.name} has another id")
        for update in request["updates"]:
            match update["action"]:
                case "add-commit":
                    self._add(update["commit"])
                case "set-latest-backfilled-version":
                    published = int(update["latest-published-version"])
                    self.commits = {v: commit for v, commit in self.commits.items() if v > published}
                case "set-properties":
                    self.properties |= update["updates"]
                case "remove-properties":
                    for name in update["removals"]:
                        self.properties.pop(name, None)
                case "set-columns":
                    self.columns = update["columns"]
                case "set-protocol":
                    self.properties |= _features(update["protocol"])
        return self.loaded()

    def _add(self, commit: dict[str, Any]) -> None:
        version = int(commit["version"])
        if self.commits.get(version, {}).get("file-name") == commit["file-name"]:
            return
        if version != self.latest + 1:
            raise RefusedError(
                409,
                "CommitVersionConflictException",
                f"{self.name} is at version {self.latest}, not {version - 1}",
            )
        if len(self.commits) >= MOST_UNPUBLISHED:
            raise RefusedError(
                429, "ResourceExhaustedException", f"{self.name} has too many commits to publish"
            )
        self.commits[version] = commit
        self.latest = version


def _features(protocol: Mapping[str, Any]) -> dict[str, str]:
    names = {*protocol.get("reader-features", ()), *protocol.get("writer-features", ())}
    return {f"delta.feature.{name}": "supported" for name in names}


class UnityCatalog:
    """One catalog. Folders of managed tables are made below `warehouse`."""

    def __init__(self, name: str, warehouse: Path) -> None:
        self.name = name
        self.warehouse = warehouse
        self.schemas: dict[str, dict[str, Table]] = {}
        self._staged: dict[str, str] = {}

    def table(self, schema: str, name: str) -> Table:
        if (table := self.schemas.get(schema, {}).get(name)) is None:
            raise RefusedError(404, "NoSuchTableException", f"there is no table {schema}.{name}")
        return table

    def in_schema(self, schema: str) -> dict[str, Table]:
        if schema not in self.schemas:
            raise RefusedError(404, "NoSuchSchemaException", f"there is no schema {schema}")
        return self.schemas[schema]

    def rename(self, schema: str, name: str, new: str) -> None:
        """Of a table that keeps its place, as all of Unity Catalog's do."""
        table = self.schemas[schema].pop(name)
        table.name = new
        self.schemas[schema][new] = table

    def stage(self, schema: str) -> dict[str, Any]:
        """A place and an id for a managed table. Its client writes the first version there, and asks for the table then."""
        self.in_schema(schema)
        own = str(uuid.uuid4())
        location = (self.warehouse / own).as_uri()
        self._staged[location] = own
        return {
            "table-id": own,
            "table-type": "MANAGED",
            "location": location,
            "storage-credentials": [],
            "required-protocol": {
                "min-reader-version": 3,
                "min-writer-version": 7,
                "reader-features": list(_READS),
                "writer-features": list(_WRITES),
            },
            "suggested-protocol": {"writer-features": ["domainMetadata", "rowTracking"]},
            "required-properties": {
                "delta.checkpointPolicy": "v2",
                "delta.enableDeletionVectors": "true",
                "delta.enableInCommitTimestamps": "true",
                "io.unitycatalog.tableId": own,
            },
            "suggested-properties": {"delta.enableRowTracking": "true"},
        }

    def create(self, schema: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """A managed table whose first version is there."""
        tables, location = self.in_schema(schema), request["location"]
        if request["name"] in tables:
            raise RefusedError(409, "AlreadyExistsException", f"there is a table {request['name']}")
        table = Table(
            request["name"],
            location,
            True,
            request["columns"],
            {**request["properties"], **_features(request["protocol"])},
            list(request.get("partition-columns", ())),
            self._staged[location.removesuffix("/")],
        )
        tables[table.name] = table
        return table.loaded()

    def create_external(self, request: Mapping[str, Any]) -> Table:
        tables = self.in_schema(request["schema_name"])
        if request["name"] in tables:
            raise RefusedError(409, "ALREADY_EXISTS", f"there is a table {request['name']}")
        fields = [json.loads(column["type_json"]) for column in request["columns"]]
        table = Table(
            request["name"],
            request["storage_location"],
            False,
            {"type": "struct", "fields": fields},
            dict(request.get("properties") or {}),
        )
        tables[table.name] = table
        return table

    def described(self, schema: str, table: Table) -> dict[str, Any]:
        """A table as the older part of the API tells it."""
        return {
            "name": table.name,
            "catalog_name": self.name,
            "schema_name": schema,
            "table_type": "MANAGED" if table.managed else "EXTERNAL",
            "data_source_format": "DELTA",
            "columns": [],
            "storage_location": table.location,
            "properties": table.properties,
            "created_at": int(time.time() * 1000),
            "table_id": table.id,
        }

    def described_schema(self, name: str) -> dict[str, Any]:
        self.in_schema(name)
        return {"name": name, "catalog_name": self.name, "full_name": f"{self.name}.{name}"}
