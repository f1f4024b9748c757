"""Names in docstrings, in comments and on pages are there."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.parsed import tree

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(
    path for folder in ("stateflow", "plugins", "demo", "scripts") for path in (ROOT / folder).rglob("*.py")
)
PAGES = [
    "README.md",
    "CHANGELOG.md",
    *(
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "docs").rglob("*.md"))
        if path.parent.name != "coming-from"
    ),
]
"""Pages for who comes from another system name what that one has."""
BEGINS_A_SENTENCE = re.compile(r"(?:\A|[.:;]\s+)`([A-Za-z_]\w*)`(?=[ :,])")
"""So docstrings speak of a parameter, and of a neighbour in the file."""
OF_CODE = re.compile(r"\b(?:[A-Z][A-Z0-9]*_[A-Z0-9_]+|[a-z]+_[a-z_0-9]+|[A-Z][a-z]+[A-Z]\w+|_[A-Za-z]\w+)\b")
"""Words that only code has: LONGEST_LINE, save_entries, BatchLoop, _pending."""


def is_text(statement: ast.AST) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements below a node. `ast.walk` would go through their expressions as well, which takes five times as long."""
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        inner = getattr(node, name, ())
        for each in inner if isinstance(inner, list) else ():
            yield each
            yield from statements(each)


def words_of_code(source: str, module: ast.Module) -> set[str]:
    """All words of a file but those of its docstrings."""
    lines = source.split("\n")
    for node in statements(module):
        if is_text(node):
            assert isinstance(node, ast.Expr)
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or 0) - node.lineno + 1)
    return set(re.findall(r"\w+", "\n".join(lines)))


def unknown_names(source: str, module: ast.Module) -> Iterator[str]:
    """Names that the docstring of a function begins a sentence with, and that its file does not have."""
    words = words_of_code(source, module)
    for node in statements(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for name in BEGINS_A_SENTENCE.findall(ast.get_docstring(node) or ""):
                if name not in words:
                    yield f"line {node.lineno}, {node.name}: {name}"


def test_docstrings_speak_of_names_that_their_file_has() -> None:
    """If this fails: take the name out, or write where it is: `room.name`."""
    unknown = {
        str(path.relative_to(ROOT)): list(unknown_names(path.read_text(encoding="utf-8"), tree(path)))
        for path in FILES
    }
    assert len(unknown) > 500
    assert {path: names for path, names in unknown.items() if names} == {}


def test_a_parameter_that_is_gone_is_noticed() -> None:
    source = '''def saved(refs: list[str]) -> list[str]:
    """The references. Saves only what `refs` lacks.

    `known` must come from the parent record.
    """
    return refs
'''
    assert list(unknown_names(source, ast.parse(source))) == ["line 1, saved: known"]
    mended = source.replace("`known`", "`refs`")
    assert list(unknown_names(mended, ast.parse(mended))) == []


NOT_IN_THE_CODE = frozenset({
    "AIRFLOW__STATEFLOW__", "_CMD",  # parts of names of variables
    "lake_savepoint", "lake_stop", "savepoint_dag", "stop_dag", "their_savepoint",  # names that a user has made up
    "rates_stream",
    "stateflow_last_checkpoint_duration_seconds",  # made of the name of a measure and its unit
    "AccountKey", "NO_CLAIM", "multi_team",  # of Azure, Flink and Airflow
    "a_1",  # a text
})  # fmt: skip
NO_CODE = (".gz", ".md", ".png", ".svg", ".txt")


@cache
def words_and_notes() -> tuple[set[str], dict[str, str]]:
    """The words of all code, without its docstrings and comments; and the docstrings and comments, by place."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    words: set[str] = set()
    notes: dict[str, str] = {}
    for name in listed.split("\0"):
        path = ROOT / name
        if path.suffix in NO_CODE or path == Path(__file__) or not path.is_file():
            continue
        words.update(re.findall(r"\w+", name))
        text = path.read_text(encoding="utf-8", errors="ignore")
        if path.suffix == ".py":
            lines, texts = text.split("\n"), {}
            for node in statements(tree(path)):
                if is_text(node):
                    assert isinstance(node, ast.Expr)
                    place = slice(node.lineno - 1, node.end_lineno)
                    texts[node.lineno] = "\n".join(lines[place])
                    lines[place] = [""] * len(lines[place])
            comments = {number: line for number, line in enumerate(lines, 1) if line.lstrip().startswith("#")}
            words.update(
                re.findall(
                    r"\w+", "\n".join(line for number, line in enumerate(lines, 1) if number not in comments)
                )
            )
            notes |= {f"{name}:{number}": note for number, note in (texts | comments).items()}
        else:
            words.update(re.findall(r"\w+", text))
    return words, notes


def names_in(text: str) -> set[str]:
    """The names of code between backticks."""
    return {word for code in re.findall(r"`([^`\n]+)`", text) for word in OF_CODE.findall(code)}


def test_names_in_docstrings_and_comments_are_there() -> None:
    """If this fails: the name is gone, or another program's: then it belongs to NOT_IN_THE_CODE."""
    words, notes = words_and_notes()
    gone = {
        place: left for place, note in notes.items() if (left := names_in(note) - words - NOT_IN_THE_CODE)
    }
    assert gone == {}


def test_no_name_is_excused_that_is_there() -> None:
    assert NOT_IN_THE_CODE & words_and_notes()[0] == set()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_what_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    examples = " ".join(re.findall(r"^```.*?^```|^(?:    .*\n)+", text, re.M | re.S))
    gone = names_in(text) - words_and_notes()[0] - set(re.findall(r"\w+", examples)) - NOT_IN_THE_CODE
    assert gone == set()
