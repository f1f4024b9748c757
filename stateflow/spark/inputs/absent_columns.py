"""Looks into a batch whose rows lack values: the field may be misspelt, in the row class or in some of the files. Spark only
sets a bit per field for this. If no row has a value, the run reads a few lines of one of the batch's files, once per source and
column. If some rows lack a value that their class always has, Spark reads that column of the batch's files again and counts, in
the first, second, fourth, eighth such batch of a source.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from stateflow.errors import IncompatibleError
from stateflow.format.records import SourceState
from stateflow.format.source_offsets import NOTHING
from stateflow.pipelines.absent import Absence, absences, is_wanted, is_watched, maps_in, watched
from stateflow.pipelines.graph import SourceNode
from stateflow.pipelines.inputs.files import Files
from stateflow.pipelines.inputs.recent_texts import RecentTexts
from stateflow.pipelines.inputs.source import ROWS_LOOKED_AT, DeclaredSource
from stateflow.pipelines.rows.row_type import RowType, quoted
from stateflow.spark.internals.file_systems import path_of_url
from stateflow.spark.internals.scratch_folder import files_between, log_folder, log_offset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stateflow.spark.inputs.observations import Observation
    from stateflow.spark.inputs.open_inputs import OpenInputs

MOST_FILES = 1_000
"""Files of a batch in which a column is looked for."""
_NOWHERE = (
    (Files, "no line of their files names it"),
    (RecentTexts, "no message names it"),
    (DeclaredSource, "what it reads has no such name"),
)
"""What is said of a column that a look found nowhere, by the kind of source that is looked into."""
_LOOKED_INTO = tuple(kind for kind, _ in _NOWHERE)
MANY = 100
"""Where there are no files to look into, a column without a value is reported from this many rows on."""


@dataclass
class AbsentColumns:
    """The columns without a value that a run has met."""

    spark: SparkSession
    inputs: OpenInputs
    warn: Callable[[str, str], None]
    _absences: dict[tuple[str, str], Absence | None] = field(default_factory=dict)
    """By source and column: the refusal, or None for a column that may be missing."""
    _rows: dict[tuple[str, str], int] = field(default_factory=dict)

    _null_rows: Counter[str] = field(default_factory=Counter)
    """By source: how many rows lack a value that their class always has, in the batches that were looked through."""
    _null_batches: Counter[str] = field(default_factory=Counter)
    _null: dict[str, dict[str, str]] = field(default_factory=dict)
    """By source the fields that they lack, with what a file has in their place."""

    def check(
        self,
        observed: Mapping[str, Observation],
        before: Mapping[str, SourceState],
        positions: Mapping[str, SourceState],
        location: Path,
    ) -> None:
        """Warns of fields that a batch lacks, which begins at the positions `before`. A misspelt field is an IncompatibleError before the batch
        is decided."""
        for node in self.inputs.nodes:
            seen = observed.get(node.uid)
            if seen is None or not seen.rows or node.rows is None:
                continue
            if any((node.uid, name) not in self._absences for name in seen.absent):
                self._look(node, seen, before, positions, location)
            for name in seen.absent:
                self._count(node, name, seen.rows)
            if some := [path for path in seen.null if self._absences.get((node.uid, path)) is None]:
                self._check_some(node, some, positions, location)

    def _check_some(
        self,
        node: SourceNode,
        some: Sequence[str],
        positions: Mapping[str, SourceState],
        location: Path,
    ) -> None:
        """For fields that some rows lack: are they nulls, or has a file another column in their place?"""
        number = self._null_batches[node.uid] = self._null_batches[node.uid] + 1
        fields = self._null.setdefault(node.uid, {})
        fields.update({path: "" for path in some if path not in fields})
        # Where nulls are ordinary, looks become rare.
        if isinstance(node.factory, Files) and number & (number - 1) == 0:
            self._look_through(node, node.factory, some, self._files(node, positions, location), fields)
        names = ", ".join(
            f"{path!r} ({file} has no such field)" if file else repr(path) for path, file in fields.items()
        )
        rows, batches = self._null_rows[node.uid], f"{number} batch{'es' if number > 1 else ''}"
        who = (
            f"{rows} rows"
            if rows and number < 3
            else f"at least {rows} rows"
            if rows
            else f"rows of {batches}"
        )
        self.warn(
            f"source {node.uid}: nulls",
            f"source {node.uid!r}: {who} have no value in {names}, which {node.rows.name if node.rows else ''} "
            "declares without `| None` or a default: it is None there; declare it so if it may be missing, or mend what is read",
        )

    def _look_through(
        self, node: SourceNode, files: Files, some: Sequence[str], urls: Sequence[str], fields: dict[str, str]
    ) -> None:
        """Counts the rows of a batch that lack one of the fields, and notes for each field a file that does not have it.

        IncompatibleError where a file has a field that is called nearly so.
        """
        assert node.rows is not None
        looked = [each for each in watched(node.rows) if each.path in some]
        broken = files.column_of_broken_rows
        fits = f"{quoted(broken)} is null and " if broken else ""
        lacking = " or ".join(f"({each.lacking})" for each in looked)
        values = [F.bool_or(F.expr(each.present)).alias(f"c{k}") for k, each in enumerate(looked)]
        try:
            frame = files.of(self.spark, [path_of_url(self.spark, url) for url in urls[:MOST_FILES]])
            counted = F.count_if(F.expr(f"{fits}({lacking})")).alias("rows")
            by_file = (
                frame.groupBy(F.input_file_name().alias("file"))
                .agg(counted, *values)
                .orderBy("file")
                .collect()
            )
        except PySparkException:
            # What the batch could read is gone, or the look is too much for it: the nulls are told all the same.
            return
        self._null_rows[node.uid] += sum(row["rows"] for row in by_file)
        for row in by_file if is_watched(node) else ():
            without = [each.path for k, each in enumerate(looked) if not row[f"c{k}"]]
            # What the names of folders say is no field that the file lacks.
            without = [path for path in without if f"/{path}=" not in row["file"]]
            names = columns_of(self.spark, files, row["file"]) if without else None
            for absence in absences(node.rows, without, names) if names else ():
                if absence.refused:
                    raise IncompatibleError(_refusal(node, absence, f"no row of {row['file']}", "it"))
                if absence.wanted:
                    fields[absence.path] = fields[absence.path] or row["file"]
            if all(fields[path] for path in some):
                break

    def _look(
        self,
        node: SourceNode,
        seen: Observation,
        before: Mapping[str, SourceState],
        positions: Mapping[str, SourceState],
        location: Path,
    ) -> None:
        assert node.rows is not None
        found: dict[str, Absence] = {}
        if isinstance(node.factory, _LOOKED_INTO):
            path, names = self._names_read(node, before, positions, location)
            if not names:
                return
            parts = node.factory.parts if isinstance(node.factory, RecentTexts) else {}
            found = {each.path: each for each in absences(node.rows, seen.absent, names, parts)}
            if refused := [absence for absence in found.values() if absence.refused]:
                raise IncompatibleError(_refusal(node, refused[0], "no row of the batch", path))
            if isinstance(node.factory, RecentTexts):
                found |= self._unnamed(node.rows, node.factory, seen.absent, positions[node.uid].lines[0])
        elif seen.rows >= MANY:
            wanted = (
                each
                for each in watched(node.rows)
                # Where no row has the nested class, no row has its fields.
                if each.path in seen.absent and each.path.rpartition(".")[0] not in seen.absent
            )
            found = {each.path: Absence(each.path) for each in wanted if is_wanted(each.owner, each.field)}
        else:
            return
        for name in seen.absent:
            self._absences[node.uid, name] = found.get(name)

    def _names_read(
        self,
        node: SourceNode,
        before: Mapping[str, SourceState],
        positions: Mapping[str, SourceState],
        location: Path,
    ) -> tuple[str, frozenset[str] | None]:
        """A file, topic or source of a connector, and the names of the fields in what the batch read of it; None when they cannot be told."""
        if isinstance(node.factory, Files):
            path = next(iter(self._files(node, positions, location)), "")
            return path, columns_of(self.spark, node.factory, path) if path else None
        line = positions[node.uid].lines[0] if node.uid in positions else NOTHING
        if line == NOTHING:
            return "", None
        if isinstance(node.factory, DeclaredSource):
            start = before[node.uid].lines[0] if node.uid in before else NOTHING
            begins = None if start == NOTHING else json.loads(start)
            return str(node.factory), node.factory.names_read(begins, json.loads(line))
        if not isinstance(node.factory, RecentTexts):
            return "", None
        try:
            names = node.factory.names(self.spark, line, ROWS_LOOKED_AT) or _fields_of(
                node.factory.recent(self.spark, line, ROWS_LOOKED_AT), node.rows
            )
        except PySparkException:
            # Retention has removed them meanwhile, or the broker is gone: the next batch will tell.
            return "", None
        return str(node.factory), names | node.factory.beside if names else None

    def _unnamed(
        self, rows: RowType, factory: RecentTexts, absent: Sequence[str], line: str
    ) -> dict[str, Absence]:
        try:
            found = factory.unnamed(self.spark, line, ROWS_LOOKED_AT, absent)
        except PySparkException:
            return {}
        return {
            name: Absence(name, wanted=False, owner=rows.name, unnamed=what) for name, what in found.items()
        }

    def _count(self, node: SourceNode, name: str, rows: int) -> None:
        absence = self._absences.get((node.uid, name))
        if absence is None or node.rows is None:
            return
        count = self._rows[node.uid, name] = self._rows.get((node.uid, name), 0) + rows
        alike = f"; they have {absence.alike!r}, which {absence.owner} lacks" if absence.alike else ""
        if absence.part:
            alike += f"; the message's own is in the field {absence.part!r}"
        lines = next(
            (said for kind, said in _NOWHERE if isinstance(node.factory, kind)), "it is null in each of them"
        )
        if absence.unnamed:
            lines = f"its messages have {absence.unnamed}, which may be it"
        owner = absence.owner or node.rows.name
        self.warn(
            f"source {node.uid}: column {name}",
            f"source {node.uid!r}: {count} rows have no {name!r} at all, a field of {owner}: "
            f"{lines}{alike}; {_to_do(absence)}",
        )

    def _files(self, node: SourceNode, positions: Mapping[str, SourceState], location: Path) -> list[str]:
        """The URLs of the files of the batch."""
        leaf = next(leaf for leaf in self.inputs.leaves if leaf.uid == node.uid)
        line = leaf.line_in(positions)
        if not line.startswith("{"):
            return []
        offset = log_offset(line)
        return [file.path for file in files_between(log_folder(location, leaf.number), offset - 1, offset)]


def columns_of(spark: SparkSession, files: Files, path: str) -> frozenset[str] | None:
    """The names of the columns that a file has, from its first lines where it is one of lines; None when it cannot be told."""
    options = {name.lower(): value for name, value in files.options.items()}
    try:
        if files.format == "json" and options.get("multiline", "false").lower() != "true":
            return _fields_of(
                (
                    row["value"]
                    for row in spark.read.text(path_of_url(spark, path)).limit(ROWS_LOOKED_AT).collect()
                ),
                files.rows,
            )
        reader = spark.read.format(files.format).options(**files.options)
        return frozenset(_paths_of(reader.load(path_of_url(spark, path)).schema))
    except PySparkException:
        return None


def _paths_of(type: DataType, before: str = "") -> Iterator[str]:
    """The names in a schema, also those inside of others, with dots between them."""
    if isinstance(type, StructType):
        for field in type.fields:
            yield before + field.name
            yield from _paths_of(field.dataType, f"{before}{field.name}.")
    elif isinstance(type, ArrayType):
        yield from _paths_of(type.elementType, before)
    elif isinstance(type, MapType):
        yield from _paths_of(type.valueType, before)


def _paths_in(value: Any, maps: Collection[str], before: str = "") -> Iterator[str]:
    """The same of JSON. The keys of a map are no names."""
    if isinstance(value, list):
        for each in value:
            yield from _paths_in(each, maps, before)
    elif isinstance(value, dict) and before in maps:
        for each in value.values():
            yield from _paths_in(each, (), before)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield before + name
            yield from _paths_in(each, maps, f"{before}{name}.")


def _fields_of(lines: Iterable[str], rows: RowType | None) -> frozenset[str] | None:
    maps = maps_in(rows) if rows is not None else ()
    names: set[str] = set()
    for line in lines:
        try:
            names.update(_paths_in(json.loads(line), maps))
        except ValueError:
            continue
    return frozenset(names) or None


def _refusal(node: SourceNode, absence: Absence, without: str, having: str) -> str:
    name = absence.owner
    return (
        f"source {node.uid!r}: {without} has the field {absence.path!r} of {name}, and {having} has {absence.alike!r}, "
        f"which {name} lacks: {_to_do(absence)}; no row was written"
    )


def _to_do(absence: Absence) -> str:
    if absence.unnamed:
        return "give schema= as its writer has it"
    name, alike = absence.path, absence.alike
    rename = (
        f"call the field {alike!r}, or give it its former name, `Annotated[..., sf.field(aliases=[{alike!r}])]`"
        if alike
        else "correct its name"
    )
    if absence.wanted:
        return f"{rename}, or, if {name!r} may be missing, declare it as `| None` or with a default"
    other = alike or absence.part
    if other.lower() == name.rpartition(".")[2].lower():
        # A class has no two fields whose names differ in their case alone.
        return rename
    return f"{rename}, or, if {other!r} is something else, declare it in {absence.owner}, too"
