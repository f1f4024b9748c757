"""Looks at a batch whose rows have no value in a column at all: the field may be misspelt, in the row class or in the files.

Spark counts nothing for it but a bit per column. Only where a column has no value, a few lines of one of the batch's
files are read, once per source and column in a run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from stateflow.errors import IncompatibleError
from stateflow.format.records import SourceState
from stateflow.pipelines.absent import Absence, absences, is_wanted
from stateflow.pipelines.files import Files
from stateflow.pipelines.graph import SourceNode
from stateflow.spark.internals.file_systems import path_of_url
from stateflow.spark.internals.scratch_folder import files_between, log_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stateflow.spark.inputs import Observation, OpenInputs

LINES = 20
"""Lines of JSON whose fields are taken for those of a file."""
MANY = 100
"""From so many rows on, a column without a value is reported where there are no files to look into."""


@dataclass
class AbsentColumns:
    """The columns without a value that a run has met."""

    spark: SparkSession
    inputs: OpenInputs
    warn: Callable[[str, str], None]
    _absences: dict[tuple[str, str], Absence | None] = field(default_factory=dict)
    """By source and column; None for one that may be missing."""
    _rows: dict[tuple[str, str], int] = field(default_factory=dict)

    def check(
        self, observed: Mapping[str, Observation], positions: Mapping[str, SourceState], location: Path
    ) -> None:
        """Warns of fields that a batch lacks. A misspelt field is an IncompatibleError before the batch is decided."""
        for node in self.inputs.nodes:
            seen = observed.get(node.uid)
            if seen is None or not seen.rows or not seen.absent or node.rows is None:
                continue
            if any((node.uid, name) not in self._absences for name in seen.absent):
                self._look(node, seen, positions, location)
            for name in seen.absent:
                self._count(node, name, seen.rows)

    def _look(
        self,
        node: SourceNode,
        seen: Observation,
        positions: Mapping[str, SourceState],
        location: Path,
    ) -> None:
        assert node.rows is not None
        found: dict[str, Absence] = {}
        if isinstance(node.factory, Files):
            path = self._file(node, positions, location)
            names = columns_of(self.spark, node.factory, path) if path else None
            if names is None:
                return
            found = {absence.field: absence for absence in absences(node.rows, seen.absent, names)}
            if refused := [absence for absence in found.values() if absence.refused]:
                raise IncompatibleError(_refusal(node, refused[0], path))
        elif seen.rows >= MANY:
            wanted = (f for f in node.rows.fields if f.name in seen.absent and is_wanted(node.rows, f))
            found = {f.name: Absence(f.name) for f in wanted}
        else:
            return
        for name in seen.absent:
            self._absences[node.uid, name] = found.get(name)

    def _count(self, node: SourceNode, name: str, rows: int) -> None:
        absence = self._absences.get((node.uid, name))
        if absence is None or node.rows is None:
            return
        count = self._rows[node.uid, name] = self._rows.get((node.uid, name), 0) + rows
        alike = f"; they have {absence.alike!r}, which {node.rows.name} lacks" if absence.alike else ""
        files = isinstance(node.factory, Files)
        self.warn(
            f"source {node.uid}: column {name}",
            f"source {node.uid!r}: {count} rows have no {name!r} at all, a field of {node.rows.name}: "
            f"{'no line of their files names it' if files else 'it is null in each of them'}{alike}; {_to_do(name, absence.alike)}",
        )

    def _file(self, node: SourceNode, positions: Mapping[str, SourceState], location: Path) -> str:
        """One of the files of the batch."""
        layout = self.inputs.layout
        at = next(k for k, source in enumerate(layout) if source.uid == node.uid)
        leaf = (0, *accumulate(source.leaves for source in layout))[at]
        line = positions[node.uid].lines[0] if node.uid in positions else "-"
        if not line.startswith("{"):
            return ""
        offset = int(json.loads(line)["logOffset"])
        files = files_between(log_folder(location, leaf), offset - 1, offset)
        return files[0].path if files else ""


def columns_of(spark: SparkSession, files: Files, path: str) -> frozenset[str] | None:
    """The names of the columns that a file has, from its first lines where it is one of lines; None when it cannot be told."""
    options = {name.lower(): value for name, value in files.options.items()}
    try:
        if files.format == "json" and options.get("multiline", "false").lower() != "true":
            return _fields_of(
                row["value"] for row in spark.read.text(path_of_url(spark, path)).limit(LINES).collect()
            )
        return frozenset(
            spark.read.format(files.format).options(**files.options).load(path_of_url(spark, path)).columns
        )
    except PySparkException:
        return None


def _fields_of(lines: Any) -> frozenset[str] | None:
    names: set[str] = set()
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:
            continue
        for each in found if isinstance(found, list) else [found]:
            names |= each.keys() if isinstance(each, dict) else set()
    return frozenset(names) or None


def _refusal(node: SourceNode, absence: Absence, path: str) -> str:
    name = node.rows.name if node.rows else ""
    return (
        f"source {node.uid!r}: no row of the batch has the field {absence.field!r} of {name}, and {path} has {absence.alike!r}, "
        f"which {name} lacks: {_to_do(absence.field, absence.alike)}; nothing was written"
    )


def _to_do(name: str, alike: str) -> str:
    rename = (
        f"call the field {alike!r}, or give it sf.field(aliases=[{alike!r}])" if alike else "correct its name"
    )
    return f"{rename}, or, if {name!r} may be missing, declare it as `| None` or with a default"
