"""Collections and records as Arrow columns, and from the tree of a type to its shape."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from stateflow.format.scalars import BY_NAME
from stateflow.state.keys.arrow_types import ARROW
from stateflow.state.values import schema_text as text
from stateflow.state.values.arrow.shapes import (
    BoundedShape,
    DateShape,
    DecimalShape,
    Doubts,
    Element,
    InstantShape,
    Mode,
    OpaqueShape,
    SimpleShape,
    TypeShape,
    Writing,
)

_UNSET = msgspec.UNSET
_LEFT_OUT = msgspec.Raw(b"\xc0")
"""Stands for a field that was left out, by identity: Raw cannot be in a union with UNSET."""


class ListShape(TypeShape):
    def __init__(self, item: Element) -> None:
        self._item = item
        self.arrow = pa.list_(item.shape.arrow)
        _inherit(self, (item,))

    def hint(self, mode: Mode) -> Any:
        # Tuples, because keys of maps are hashed.
        return tuple[self._item.hint(mode), ...]  # type: ignore[misc]

    def build(self, values: Sequence[Any], doubts: Doubts) -> Any:
        values, mask = _filled(values, ())
        items = self._item.shape.build(list(chain.from_iterable(values)), doubts)
        return pa.ListArray.from_arrays(_offsets(values), items, type=self.arrow, mask=mask)

    def values(self, column: Any, writing: Writing, path: str) -> Sequence[Any]:
        offsets = column.offsets.to_numpy()
        items = column.values.slice(offsets[0], offsets[-1] - offsets[0])
        flat = tuple(self._item.values(items, writing, f"{path}[]"))
        return [flat[begin:end] for begin, end in pairwise((offsets - offsets[0]).tolist())]


class MapShape(TypeShape):
    def __init__(self, key: Element, value: Element) -> None:
        self._key, self._value = key, value
        self.arrow = pa.map_(key.shape.arrow, value.shape.arrow)
        _inherit(self, (key, value))

    def hint(self, mode: Mode) -> Any:
        return dict[self._key.hint(mode), self._value.hint(mode)]  # type: ignore[misc]

    def build(self, values: Sequence[Any], doubts: Doubts) -> Any:
        filled, mask = _filled(values, {})
        # Arrow refuses null keys, which are what does not fit its type; such a value is null as a whole.
        keys = self._key.shape.build(list(chain.from_iterable(filled)), doubts)
        items = self._value.shape.build(list(chain.from_iterable(map(dict.values, filled))), doubts)
        return pa.MapArray.from_arrays(_offsets(filled), keys, items, type=self.arrow, mask=mask)

    def values(self, column: Any, writing: Writing, path: str) -> Sequence[Any]:
        offsets = column.offsets.to_numpy()
        begin, count = offsets[0], offsets[-1] - offsets[0]
        keys = self._key.values(column.keys.slice(begin, count), writing, f"{path}.key")
        items = self._value.values(column.items.slice(begin, count), writing, f"{path}.value")
        spans = list(pairwise((offsets - begin).tolist()))
        maps = [dict(zip(keys[at:end], items[at:end], strict=True)) for at, end in spans]
        for made, (at, end) in zip(maps, spans, strict=True):
            if len(made) < end - at and not writing.lenient:
                twice = next(key for place, key in enumerate(keys[at:end]) if key in keys[at : at + place])
                raise writing.wrong(
                    path, f"has the key {twice!r} twice, and one of its values would be lost: keep one"
                )
        return maps


class StructShape(TypeShape):
    """Structs by field name, some with a tag; `by_position` named tuples and tuples."""

    def __init__(
        self,
        names: Sequence[str],
        elements: Sequence[Element],
        by_position: bool,
        tag: text.TagText | None = None,
    ) -> None:
        self._names = tuple(names)
        self._elements = tuple(elements)
        self._by_position = by_position
        self._attributes = tuple(f"f{index}" for index in range(len(names)))
        self._rename = dict(zip(self._attributes, names, strict=True))
        self._fields = [
            pa.field(name, element.shape.arrow) for name, element in zip(names, elements, strict=True)
        ]
        self._read: dict[Mode, Any] = {}
        self._tag: dict[str, Any] = {} if tag is None else {"tag_field": tag.field, "tag": tag.value}
        self.row = msgspec.defstruct(
            "Row",
            [(attribute, Any, _UNSET) for attribute in self._attributes],
            rename=self._rename,
            frozen=True,
            gc=False,
            **self._tag,
        )
        self.arrow = pa.struct(self._fields)
        _inherit(self, elements)

    def hint(self, mode: Mode) -> Any:
        if mode not in self._read:
            fields = [
                self._declared(*pair, mode) for pair in zip(self._attributes, self._elements, strict=True)
            ]
            if not self._by_position:
                # Without this, a required field could not follow one with a default.
                fields.sort(key=len)
            self._read[mode] = msgspec.defstruct(
                "Record",
                fields,
                rename=self._rename,
                array_like=self._by_position,
                forbid_unknown_fields=mode == "exact",
                frozen=True,
                gc=False,
                **self._tag,
            )
        return self._read[mode]

    def _declared(self, attribute: str, element: Element, mode: Mode) -> tuple[Any, ...]:
        hint = element.hint(mode)
        if not element.defaulted:
            return attribute, hint
        if hint is msgspec.Raw:
            return attribute, hint, _LEFT_OUT
        if element.optional or mode == "strict":
            return attribute, hint | msgspec.UnsetType, _UNSET
        return attribute, hint | None, None

    def build(self, values: Sequence[Any], doubts: Doubts) -> Any:
        mask = None
        try:
            columns = [list(map(attrgetter(attribute), values)) for attribute in self._attributes]
        except AttributeError:
            # Some are None.
            blank = self.row(*[None] * len(self._elements))
            mask = pa.array([value is None for value in values])
            values = [blank if value is None else value for value in values]
            columns = [list(map(attrgetter(attribute), values)) for attribute in self._attributes]
        arrays = [
            element.shape.build(self._marked(element, column, doubts), doubts)
            for element, column in zip(self._elements, columns, strict=True)
        ]
        return pa.StructArray.from_arrays(arrays, fields=self._fields, mask=mask)

    def _marked(self, element: Element, column: list[Any], doubts: Doubts) -> list[Any]:
        """Fields that were left out become null, like those that are None; the column `stored` tells them apart."""
        if not (element.defaulted and element.optional):
            return column
        absent = _LEFT_OUT if element.hint("exact") is msgspec.Raw else _UNSET
        if id(absent) not in map(id, column):
            return column
        doubts.any = True
        return [None if value is absent else value for value in column]

    def values(self, column: Any, writing: Writing, path: str) -> Sequence[Any]:
        columns = [
            element.values(column.field(index), writing, f"{path}.{name}")
            for index, (name, element) in enumerate(zip(self._names, self._elements, strict=True))
        ]
        if not self._by_position:
            return list(map(self.row, *columns))
        rows: list[tuple[Any, ...]] = list(zip(*columns, strict=True))
        if any(
            _UNSET in values
            for element, values in zip(self._elements, columns, strict=True)
            if element.defaulted
        ):
            return [self._cut(row, writing, path) for row in rows]
        return rows

    def _cut(self, row: tuple[Any, ...], writing: Writing, path: str) -> tuple[Any, ...]:
        """Without the fields at its end that are left out."""
        end = len(row)
        while end and row[end - 1] is _UNSET:
            end -= 1
        if _UNSET not in row[:end]:
            return row[:end]
        if writing.lenient:
            return tuple(None if value is _UNSET else value for value in row[:end])
        name = self._names[row.index(_UNSET)]
        raise writing.wrong(
            f"{path}.{name}",
            "is null in front of fields that are not, and only the last ones can be left out: fill it",
        )


def _inherit(shape: TypeShape, elements: Sequence[Element]) -> None:
    shape.checked = any(element.shape.checked for element in elements)
    shape.doubtful = any(element.shape.doubtful for element in elements)
    shape.opaque = any(element.shape.opaque for element in elements)


def _filled(values: Sequence[Any], empty: Any) -> tuple[Sequence[Any], Any]:
    """The values with something empty for None, and Arrow's mask of those."""
    if None not in values:
        return values, None
    return [empty if value is None else value for value in values], pa.array(
        [value is None for value in values]
    )


def _offsets(values: Sequence[Any]) -> Any:
    offsets = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum(np.fromiter(map(len, values), dtype=np.int32, count=len(values)), out=offsets[1:])
    return pa.array(offsets)


class _NoKeyError(Exception):
    """The type cannot be the key of an Arrow map."""


def element_of(tree: text.Tree, *, hashed: bool = False) -> Element:
    """The place for values of a type; `hashed` when they are keys of a map."""
    optional = False
    while isinstance(tree, text.OptionalText):
        tree, optional = tree.item, True
    if isinstance(tree, text.ChoiceText) and None in tree.values:
        tree = text.ChoiceText(tree.name, tuple(member for member in tree.members if member[1] is not None))
        optional = True
    element = Element(_shape(tree, hashed), optional or tree == text.ScalarText("null"))
    if hashed and (element.optional or isinstance(element.shape, OpaqueShape)):
        raise _NoKeyError
    return element


def _shape(tree: text.Tree, hashed: bool) -> TypeShape:
    match tree:
        case text.ScalarText("datetime"):
            return InstantShape(hashed)
        case text.ScalarText(name) if name in _PLAIN:
            return _PLAIN[name]
        case text.ChoiceText():
            kinds = set(map(type, tree.values))
            if kinds in ({str}, {int}):
                (kind,) = kinds
                return SimpleShape(kind, pa.string() if kind is str else pa.int64(), Literal[tree.values])
        case text.ListText():
            return ListShape(element_of(tree.item, hashed=hashed))
        case text.MapText():
            try:
                return MapShape(element_of(tree.key, hashed=True), element_of(tree.value, hashed=hashed))
            except _NoKeyError:
                return OpaqueShape()
        case text.TupleText():
            names = [f"_{number}" for number in range(1, len(tree.items) + 1)]
            return _record(
                [text.FieldText(*pair) for pair in zip(names, tree.items, strict=True)], True, hashed
            )
        case text.StructText():
            return _record(tree.fields, tree.by_position, hashed, tree.tag)
    return OpaqueShape()


def _record(
    fields: Sequence[text.FieldText], by_position: bool, hashed: bool, tag: text.TagText | None = None
) -> TypeShape:
    names = [field.name for field in fields]
    if not names or len({name.lower() for name in names}) < len(names):
        return OpaqueShape()
    if hashed and any(field.defaulted for field in fields):
        raise _NoKeyError
    elements = []
    for index, field in enumerate(fields):
        # By position, only what is behind every required field can be missing.
        defaulted = field.defaulted and not (by_position and not all(f.defaulted for f in fields[index:]))
        element = element_of(field.type, hashed=hashed)
        elements.append(Element(element.shape, element.optional, defaulted))
    return StructShape(names, elements, by_position, tag)


_CLASSES = {"int": BoundedShape, "date": DateShape, "timedelta": BoundedShape, "decimal": DecimalShape}
_PLAIN: dict[str, TypeShape] = {
    name: SimpleShape(str, ARROW[name], scalar.type)
    if name in ("time", "uuid")
    else _CLASSES.get(name, SimpleShape)(scalar.type, ARROW[name])
    for name, scalar in BY_NAME.items()
}
