"""Finds columns without a value in any row of a batch: a misspelt field is None in every row, and nothing else shows it."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from stateflow.pipelines.graph import SourceNode
from stateflow.pipelines.inputs.files import Files
from stateflow.pipelines.inputs.tables import DeltaTable
from stateflow.pipelines.rows.row_type import Field, RowType, nested_in, quoted, row_type


@dataclass(frozen=True, slots=True)
class Absence:
    """A field of a row class that the files do not have."""

    path: str
    alike: str = ""
    """A column of the files that the class lacks, and that is called nearly so."""
    wanted: bool = True
    """The class says that the field always has a value."""
    owner: str = dataclasses.field(default="", compare=False)
    """The class that declares the field."""
    part: str = ""
    """A field that would have what the source gives beside its texts, and that the class lacks."""
    unnamed: str = ""
    """What may have its values, in words, where what is read does not say its names."""

    @property
    def refused(self) -> bool:
        """True if the field is almost certainly misspelt: such a field is refused, while a field that may be missing is only
        reported."""
        return self.wanted and bool(self.alike)


@dataclass(frozen=True, slots=True)
class Watched:
    """A field of a row class, or of a class inside of it, with conditions in SQL."""

    path: str
    """Names with dots between them, such as `items.price`."""
    field: Field
    owner: RowType
    """The class that declares the field."""
    present: str
    """A condition for rows that have a value in the field; in a list or map, in any element."""
    lacking: str
    """A condition for rows that should have a value in the field and have none; in a list or map, in some element."""

    @property
    def whole(self) -> str:
        """The opposite of `lacking`."""
        return f"not {self.lacking}" if "." in self.path else self.present

    @property
    def may_not_be_null(self) -> bool:
        """The class says that it always has a value. A schema in words says so with `not null`."""
        return self.field.default is None and not self.field.nullable


def watched(rows: RowType) -> list[Watched]:
    """The fields of a row class, and behind them those of the classes inside of it."""
    own = [
        Watched(field.name, field, rows, f"{quoted(field.name)} is not null", f"{quoted(field.name)} is null")
        for field in rows.fields
    ]
    inside = (
        each for field in rows.fields for each in _inside(field.hint, quoted(field.name), field.name, _same)
    )
    return [*own, *inside]


def _same(condition: str) -> str:
    return condition


def _inside(hint: Any, sql: str, path: str, some: Callable[[str], str], depth: int = 0) -> Iterator[Watched]:
    """The fields inside of `sql`. `some` makes a condition about one element to one about the row."""
    kind, of = nested_in(hint)
    if kind in ("list", "dict"):
        each, values = f"x{depth}", sql if kind == "list" else f"map_values({sql})"
        yield from _inside(
            of,
            each,
            path,
            lambda condition: some(f"coalesce(exists({values}, {each} -> {condition}), false)"),
            depth + 1,
        )
    if kind != "record":
        return
    owner = row_type(of)
    for field in owner.fields:
        inner, name = f"{sql}.{quoted(field.name)}", f"{path}.{field.name}"
        lacking = some(f"({sql} is not null and {inner} is null)")
        yield Watched(name, field, owner, some(f"{inner} is not null"), lacking)
        yield from _inside(field.hint, inner, name, some, depth)


def absences(
    rows: RowType,
    without_value: Collection[str],
    in_files: Collection[str],
    parts: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Absence]:
    """The fields without a value in a batch that its files lack and that somebody should hear of. `in_files` are paths of columns
    in the files, in their own case, as the readers of files compare them. `parts`: what else the source gives, by the name that people know
    it by, with the name of its field.
    """
    by_parent: dict[str, set[str]] = defaultdict(set)
    for path in in_files:
        parent, _, name = path.rpartition(".")
        by_parent[parent].add(name)
    for each in watched(rows):
        parent = each.path.rpartition(".")[0]
        # Of a class whose rows the files do not have at all its own field is the absent one.
        if each.path in without_value and (not parent or by_parent[parent]):
            yield from _absence(each, by_parent[parent], "" if parent else parts.get(each.path, ""))


def _absence(each: Watched, there: Collection[str], part: str) -> Iterator[Absence]:
    rows, field = each.owner, each.field
    if any(name in there for name in (field.name, *field.aliases)):
        return
    declared = {name.lower() for other in rows.fields for name in (other.name, *other.aliases)}
    unknown = {name.lower(): name for name in there if name.lower() not in declared}
    # JSON's reader takes `Amount` for another column than `amount`.
    cased = {name.lower(): name for name in there if name.lower() in declared}
    near = get_close_matches(field.name.lower(), list(unknown), 1, 0.75)
    alike = cased.get(field.name.lower(), "") or (unknown[near[0]] if near else "")
    wanted, part = is_wanted(rows, field), "" if part in declared else part
    if wanted or alike or part:
        yield Absence(each.path, alike, wanted, rows.name, part)


def maps_in(rows: RowType) -> frozenset[str]:
    """Paths, with a dot behind them, at which the names in a JSON object are keys of a map and no fields."""

    def found(hint: Any, path: str) -> Iterator[str]:
        kind, of = nested_in(hint)
        if kind == "dict":
            yield f"{path}."
        if kind in ("list", "dict"):
            yield from found(of, path)
        if kind == "record":
            for field in row_type(of).fields:
                yield from found(field.hint, f"{path}.{field.name}")

    return frozenset(each for field in rows.fields for each in found(field.hint, field.name))


def is_watched(node: SourceNode) -> bool:
    """Whether a column may be missing in what the source reads. A Delta table has its columns, and a header is compared."""
    if node.rows is None or isinstance(node.factory, DeltaTable):
        return False
    return not isinstance(node.factory, Files) or node.factory.format not in ("csv", "text")


def may_have_nulls(node: SourceNode) -> bool:
    """Whether rows may come without a value that their class declares, and nobody asked for nulls."""
    if node.rows is None or isinstance(node.factory, DeltaTable):
        return False
    mode = {name.lower(): value.upper() for name, value in node.factory.reader_options.items()}.get("mode")
    return mode != "PERMISSIVE"


def is_wanted(rows: RowType, field: Field) -> bool:
    """Whether the class says that the field always has a value. A schema in words cannot say so, and means each field."""
    return field.default is None and (not field.nullable or not rows.typed)
