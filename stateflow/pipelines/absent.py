"""Columns that no row of a batch has a value in: a misspelt field is None in every row, and nothing else tells of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from stateflow.pipelines.files import Files
from stateflow.pipelines.graph import SourceNode
from stateflow.pipelines.rows import Field, RowType
from stateflow.pipelines.tables import DeltaTable


@dataclass(frozen=True, slots=True)
class Absence:
    """A field of a row class that the files do not have."""

    field: str
    alike: str = ""
    """A column of the files that the class lacks, and that is called nearly so."""
    wanted: bool = True
    """The class says that the field always has a value."""

    @property
    def refused(self) -> bool:
        """It is as good as certain that the field is misspelt. One that may be missing is only told of."""
        return self.wanted and bool(self.alike)


def absences(rows: RowType, without_value: Collection[str], in_files: Collection[str]) -> Iterator[Absence]:
    """The fields without a value in a batch that its files lack and that somebody should hear of. `in_files` are names of columns
    in the files, in their own case, as the readers of files compare them.
    """
    declared = {name.lower() for field in rows.fields for name in (field.name, *field.aliases)}
    unknown = {name.lower(): name for name in in_files if name.lower() not in declared}
    # JSON's reader takes `Amount` for another column than `amount`.
    cased = {name.lower(): name for name in in_files if name.lower() in declared}
    for field in rows.fields:
        names = (field.name, *field.aliases)
        if field.name not in without_value or any(name in in_files for name in names):
            continue
        near = get_close_matches(field.name.lower(), list(unknown), 1, 0.75)
        alike = cased.get(field.name.lower(), "") or (unknown[near[0]] if near else "")
        wanted = is_wanted(rows, field)
        if wanted or alike:
            yield Absence(field.name, alike, wanted)


def is_watched(node: SourceNode) -> bool:
    """Whether a column may be missing in what the source reads. A Delta table has its columns, and a header is compared."""
    if node.rows is None or isinstance(node.factory, DeltaTable):
        return False
    return not isinstance(node.factory, Files) or node.factory.format not in ("csv", "text")


def is_wanted(rows: RowType, field: Field) -> bool:
    """Whether the class says that the field always has a value. A schema in words cannot say so, and means each field."""
    return field.default is None and (not field.nullable or not rows.typed)
