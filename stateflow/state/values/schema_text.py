"""The canonical text of a type as `schema` writes it, read as a tree. That needs none of the classes that it names."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from stateflow.format.scalars import BY_NAME

T = TypeVar("T")

_SHOWN = 200
_PLAIN = frozenset((*BY_NAME, "null"))
_COLLECTIONS = frozenset({"list", "set", "frozenset"})
_WORD = re.compile(r"[a-z]+")
_NAME = re.compile(r"[^{},<>?:]+")
_RECORD = re.compile(r"[^{},<>?:(]+")
_FIELD = re.compile(r"[^:{}<>]+:")
DEEPEST = 100
"""How deep types may be nested in each other: a savepoint that somebody else has made names any."""
WAS = " was "
"""Between a field's name and each of its aliases, in texts that were asked for with them."""
_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_TAG_FIELD, _TAG = re.compile(_QUOTED), re.compile(rf"{_QUOTED}|-?\d+", re.ASCII)
_LITERAL = re.compile(r"""[bB]?'(?:[^'\\]|\\.)*'|[bB]?"(?:[^"\\]|\\.)*"|[^,<>]+""")


@dataclass(frozen=True, slots=True)
class ScalarText:
    name: str


@dataclass(frozen=True, slots=True)
class OptionalText:
    item: Tree


@dataclass(frozen=True, slots=True)
class UnionText:
    members: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class ListText:
    """Lists, sets and tuples of any length."""

    kind: str
    item: Tree


@dataclass(frozen=True, slots=True)
class TupleText:
    items: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class MapText:
    key: Tree
    value: Tree


@dataclass(frozen=True, slots=True)
class FieldText:
    name: str
    type: Tree
    defaulted: bool = False
    """It has a default, so stored values may lack it."""
    aliases: tuple[str, ...] = ()
    """Its earlier names, as far as its declaration gives them."""


@dataclass(frozen=True, slots=True)
class TagText:
    """What the stored values of a class are told by in a union."""

    field: str
    value: str | int


@dataclass(frozen=True, slots=True)
class StructText:
    name: str
    fields: tuple[FieldText, ...]
    by_position: bool = False
    tag: TagText | None = None


@dataclass(frozen=True, slots=True)
class ReferenceText:
    """A record that is named inside itself."""

    name: str


@dataclass(frozen=True, slots=True)
class ChoiceText:
    """An enum or literals: `values` as they are stored."""

    name: str
    members: tuple[tuple[str, Any], ...]
    """Of an enum, names and values; literals have no names."""

    @property
    def values(self) -> tuple[Any, ...]:
        return tuple(value for _, value in self.members)


Tree = (
    ScalarText
    | OptionalText
    | UnionText
    | ListText
    | TupleText
    | MapText
    | StructText
    | ReferenceText
    | ChoiceText
)


class UnreadableText(ValueError):
    """The text is not one that `schema` of this version writes."""


def read_schema(text: str) -> Tree:
    """The tree of a structured or plain type; `custom:...` has none."""
    reader = _Reader(text)
    tree = reader.tree()
    if reader.at != len(text):
        raise reader.stuck()
    return tree


def read_columns(text: str) -> tuple[FieldText, ...]:
    """The columns of a state of kind `columns`."""
    reader = _Reader(text)
    reader.expect("columns{")
    fields = reader.until("}", reader.field)
    if reader.at != len(text):
        raise reader.stuck()
    return fields


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = self.depth = 0

    def stuck(self) -> UnreadableText:
        return UnreadableText(
            f"cannot read the type {self.text[:_SHOWN]!r} from {self.text[self.at : self.at + 20]!r} on"
        )

    def skip(self, wanted: str) -> bool:
        if self.text.startswith(wanted, self.at):
            self.at += len(wanted)
            return True
        return False

    def expect(self, wanted: str) -> None:
        if not self.skip(wanted):
            raise self.stuck()

    def match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise self.stuck()
        self.at = match.end()
        return match.group()

    def until(self, end: str, item: Callable[[], T]) -> tuple[T, ...]:
        """Items parted by commas."""
        items: list[T] = []
        if self.skip(end):
            return ()
        while True:
            items.append(item())
            if self.skip(end):
                return tuple(items)
            self.expect(",")

    def tree(self) -> Tree:
        if self.depth == DEEPEST:
            raise self.stuck()
        self.depth += 1
        tree = self._tree()
        self.depth -= 1
        return tree

    def _tree(self) -> Tree:
        word = self.match(_WORD)
        if word in _PLAIN:
            return ScalarText(word)
        if word in ("struct", "namedtuple"):
            return self.record(word == "namedtuple")
        if word == "enum":
            self.expect(" ")
            name = self.match(_NAME)
            self.expect("<")
            return ChoiceText(name, self.until(">", self.member))
        self.expect("<")
        if word == "literal":
            return ChoiceText("", self.until(">", lambda: ("", self.literal())))
        if word == "tuple":
            return self.tuple_type()
        arguments = self.until(">", self.tree)
        if word == "union" and arguments:
            return UnionText(arguments)
        if word == "map" and len(arguments) == 2:
            return MapText(*arguments)
        if len(arguments) == 1:
            if word == "optional":
                return OptionalText(arguments[0])
            if word in _COLLECTIONS:
                return ListText(word, arguments[0])
        raise self.stuck()

    def tuple_type(self) -> Tree:
        if self.skip(">"):
            return TupleText(())
        items = [self.tree()]
        if self.skip(",...>"):
            return ListText("tuple", items[0])
        while self.skip(","):
            items.append(self.tree())
        self.expect(">")
        return TupleText(tuple(items))

    def record(self, by_position: bool) -> Tree:
        self.expect(" ")
        name = self.match(_RECORD)
        tag = self.tag() if self.skip("(") else None
        if tag is None and not self.skip("{"):
            return ReferenceText(name)
        return StructText(name, self.until("}", self.field), by_position, tag)

    def tag(self) -> TagText:
        field = self.literal(_TAG_FIELD)
        self.expect("=")
        value = self.literal(_TAG)
        self.expect("){")
        return TagText(field, value)

    def field(self) -> FieldText:
        names = self.match(_FIELD)[:-1]
        defaulted = names.endswith("?")
        name, *aliases = names.removesuffix("?").split(WAS)
        return FieldText(name, self.tree(), defaulted, tuple(aliases))

    def member(self) -> tuple[str, Any]:
        at = self.text.find("=", self.at)
        if at < 0:
            raise self.stuck()
        name, self.at = self.text[self.at : at], at + 1
        return name, self.literal()

    def literal(self, pattern: re.Pattern[str] = _LITERAL) -> Any:
        begin = self.at
        try:
            return ast.literal_eval(self.match(pattern))
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            self.at = begin
            raise self.stuck() from None
