"""A description as plain data, and its printers: text, Markdown and JSON. They do not know what it describes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stateflow.restore.visible import code, prose, quoted, visible


@dataclass(frozen=True)
class Marked:
    """Words that text and Markdown show differently."""

    text: str


class Name(Marked):
    """A name, a path or a value, which somebody else may have chosen. It cannot pose as the description's own words."""


class Sentence(Marked):
    """Words that have their names in quotes already."""


class Strong(Marked):
    """What Markdown has in bold."""


class Aside(Marked):
    """What Markdown alone has: its reader has not typed the command."""


Words = Sequence[str | Marked]
"""What people read; a bare text is the description's own words."""


@dataclass(frozen=True)
class Row:
    """One fact. A form that is empty leaves it out."""

    label: str
    line: Words = ()
    """As text has it, behind the label."""
    cells: Sequence[Words] = ()
    """As Markdown has it, by column."""


@dataclass(frozen=True)
class Section:
    title: str = ""
    columns: Sequence[str] = ()
    """Of Markdown's table. Without columns its lines are a list; without a title, too, text alone has them."""
    rows: Sequence[Row] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    """The same for programs."""


@dataclass(frozen=True)
class Description:
    title: Words
    sections: Sequence[Section]
    introduction: Words = ()


_Forms = Mapping[type[Marked], Callable[[str], str]]
_TEXT: _Forms = {Name: quoted, Sentence: str, Strong: str, Aside: lambda text: ""}
_MARKDOWN: _Forms = {Name: code, Sentence: prose, Strong: "**{}**".format, Aside: str}


def text(description: Description) -> str:
    rows = (row for section in description.sections for row in section.rows if row.line)
    lines = (f"  {row.label:<12}{_shown(row.line, _TEXT)}" for row in rows)
    return "\n".join(map(visible, (_shown(description.title, _TEXT), *lines)))


def markdown(description: Description) -> str:
    return "\n\n".join(_paragraphs(description))


def document(description: Description) -> dict[str, Any]:
    """As JSON has it."""
    return {name: value for section in description.sections for name, value in section.data.items()}


def _paragraphs(description: Description) -> Iterator[str]:
    yield f"**{_shown(description.title, _MARKDOWN)}**"
    if description.introduction:
        yield _shown(description.introduction, _MARKDOWN)
    for section in description.sections:
        rows = [[_shown(cell, _MARKDOWN) for cell in row.cells] for row in section.rows if row.cells]
        table = (section.columns, ["---"] * len(section.columns), *rows)
        facts = [f"- {_shown(row.line, _MARKDOWN)}" for row in section.rows if not section.columns]
        if section.title and section.rows:
            yield f"**{section.title}**"
        if rows or (section.title and facts):
            yield "\n".join(map(_row, table) if rows else facts)


def _row(cells: Iterable[str]) -> str:
    # A bar inside a cell would end the cell, even in code.
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _shown(words: Words, forms: _Forms) -> str:
    return "".join(word if isinstance(word, str) else forms[type(word)](word.text) for word in words)
