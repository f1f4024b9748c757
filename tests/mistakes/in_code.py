"""Mistakes in a pipeline's file: each changes one word of a recipe."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.mistakes.case import CASES, Case
from tests.mistakes.play import Mistake

_DURATION = re.compile(r"\d+ [a-z]+")
_VALUES = {"json", "csv", "left", "event", "dead_letter"}
_OTHER_QUESTIONS = {"how", "per", "delete_when", "order_by"}
"""Arguments without which a pipeline answers another question, and answers it right."""
_OTHER_TYPES = {
    "float": ("int", "str", "bool", "datetime"),
    "int": ("str", "bool", "datetime"),
    "str": ("int", "float", "datetime"),
    "datetime": ("str", "date", "int", "float"),
    "date": ("datetime", "str", "int"),
}


def misspelt(word: str) -> str:
    """Two letters changed places, or the last one twice."""
    for place in range(len(word) // 2, len(word) - 1):
        if word[place] != word[place + 1] and word[place : place + 2].isalpha():
            return word[:place] + word[place + 1] + word[place] + word[place + 2 :]
    return word + word[-1]


def mistakes() -> Iterator[Mistake]:
    for case in CASES.values():
        yield from _Recipe(case).mistakes()


class _Recipe:
    def __init__(self, case: Case) -> None:
        self.case, self.text = case, case.text
        self.tree = ast.parse(self.text)
        self.starts = [0]
        for line in self.text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line.encode()))
        self.classes = [node for node in self.tree.body if isinstance(node, ast.ClassDef)]
        (self.function,) = (node for node in self.tree.body if isinstance(node, ast.FunctionDef))
        self.calls = [node for node in ast.walk(self.function) if isinstance(node, ast.Call)]
        self.read = {
            argument.id
            for call in self.calls
            if isinstance(call.func, ast.Attribute) and call.func.attr == "source"
            for argument in call.args
            if isinstance(argument, ast.Name)
        }

    def mistakes(self) -> Iterator[Mistake]:
        yield from self._fields()
        yield from self._calls()
        yield from self._strings()

    def _fields(self) -> Iterator[Mistake]:
        for of in self.classes:
            side = "read" if of.name in self.read else "written"
            for field in of.body:
                assert isinstance(field, ast.AnnAssign)
                assert isinstance(field.target, ast.Name)
                name = field.target.id
                yield self._made(
                    f"a misspelt field of the rows {side}", f"{of.name}.{name}", field.target, misspelt(name)
                )
                kind = ast.unparse(field.annotation)
                for other in _OTHER_TYPES.get(kind, ()):
                    # A number of JSON in a field of `str` is its text, as the page on sources says.
                    if other == "str" and kind in ("int", "float") and side == "read":
                        continue
                    yield self._made(
                        f"another type of a field of the rows {side}",
                        f"{of.name}.{name}: {other} for {kind}",
                        field.annotation,
                        other,
                        imports="from datetime import date, datetime\n",
                    )

    def _calls(self) -> Iterator[Mistake]:
        for call in self.calls:
            if isinstance(call.func, ast.Attribute):
                name, owner = call.func.attr, call.func.value
                kind = (
                    "a misspelt function"
                    if isinstance(owner, ast.Name) and owner.id == "sf"
                    else "a misspelt step"
                )
                end = self._at(call.func, end=True)
                yield self._with(
                    kind,
                    f"{name} at {call.lineno}:{call.end_col_offset}",
                    end - len(name),
                    end,
                    misspelt(name),
                )
                if name in ("append", "upsert", "key_by", "side"):
                    yield self._made(
                        "a step left out",
                        f"{name} at {call.lineno}:{call.end_col_offset}",
                        call,
                        ast.unparse(owner),
                    )
            for given in call.keywords:
                assert given.arg is not None
                start, end = self._at(given), self._at(given, end=True)
                yield self._with(
                    "a misspelt argument",
                    f"{given.arg} at {call.lineno}:{call.end_col_offset}",
                    start,
                    start + len(given.arg),
                    misspelt(given.arg),
                )
                if given.arg in _OTHER_QUESTIONS:
                    continue
                after = end + len(re.match(r"\s*,?\s*", self.text[end:]).group())  # type: ignore[union-attr]
                yield self._with(
                    "an argument left out",
                    f"{given.arg} at {call.lineno}:{call.end_col_offset}",
                    start,
                    after,
                    "",
                )

    def _strings(self) -> Iterator[Mistake]:
        columns = {field.target.id for of in self.classes for field in of.body}  # type: ignore[union-attr, attr-defined]
        for node in ast.walk(self.function):
            if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                continue
            value, where = node.value, f"{node.value!r} at {node.lineno}:{node.col_offset}"
            if value in columns and value != self.case.recipe:
                yield self._made("a misspelt column", where, node, repr(misspelt(value)))
            elif _DURATION.fullmatch(value):
                number, unit = value.split()
                for wrong in (
                    repr(number),
                    number,
                    repr(f"{number} {misspelt(unit)}"),
                    repr(f"-{value}"),
                    repr(f"{number},5 {unit}"),
                ):
                    yield self._made("a duration in another form", f"{wrong} for {where}", node, wrong)
            elif value in _VALUES:
                yield self._made("a misspelt value of an option", where, node, repr(misspelt(value)))
            elif value == "op = 'delete'":
                yield self._made("a misspelt column", where, node, "\"po = 'delete'\"")

    def _at(self, node: ast.expr | ast.keyword | ast.stmt, *, end: bool = False) -> int:
        line, column = (node.end_lineno, node.end_col_offset) if end else (node.lineno, node.col_offset)
        assert line is not None
        assert column is not None
        return self.starts[line - 1] + column

    def _made(self, kind: str, what: str, node: ast.expr | ast.stmt, new: str, imports: str = "") -> Mistake:
        return self._with(kind, what, self._at(node), self._at(node, end=True), new, imports)

    def _with(self, kind: str, what: str, start: int, end: int, new: str, imports: str = "") -> Mistake:
        return Mistake(kind, what, self.case, imports + self.text[:start] + new + self.text[end:])
