"""No error advises what everybody knows, such as to repair the code: its next step can be tried. No test repeats a whole sentence."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.parsed import nodes, tree

REPOSITORY = Path(__file__).resolve().parents[1]
EMPTY = re.compile(
    r"\b(fix|mend|repair|correct) (it|that|this|the (code|data|file|pipeline|function|input))\b(?! (to|at|on) )"
    r"|code or the data",
    re.I,
)


def sentences(path: Path) -> list[str]:
    """The texts of a module that are no docstrings."""
    bare = {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare
    ]


def test_no_error_only_says_that_something_should_be_repaired() -> None:
    files = [*(REPOSITORY / "stateflow").rglob("*.py"), *(REPOSITORY / "plugins").rglob("*.py")]
    assert len(files) > 200
    empty = [f"{file.name}: {text}" for file in files for text in sentences(file) if EMPTY.search(text)]
    assert not empty


LONGEST_QUOTE = 40
"""Characters of our sentences that a test may repeat in one piece: enough for a name, a path or a command."""


@cache
def our_errors() -> frozenset[str]:
    """Names of the library's error classes, by what its files say: which of them are loaded differs from run to run."""
    bases = {
        node.name: {called(base) for base in node.bases}
        for file in (REPOSITORY / "stateflow").rglob("*.py")
        for node in nodes(file)
        if isinstance(node, ast.ClassDef)
    }
    ours = {"StateflowError"}
    while more := {name for name, those in bases.items() if those & ours} - ours:
        ours |= more
    return frozenset(ours)


def called(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def quotes(source: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each piece of a message that a test expects of one of our errors."""
    for node in ast.walk(source):
        if isinstance(node, ast.Call) and node.args and called(node.func) in ("raises", "refused"):
            errors = node.args[0].elts if isinstance(node.args[0], ast.Tuple) else [node.args[0]]
            if not {ast.unparse(error).rpartition(".")[2] for error in errors} & our_errors():
                continue
            for text in [*node.args[1:], *(keyword.value for keyword in node.keywords)]:
                pieces = text.values if isinstance(text, ast.JoinedStr) else [text]
                said = [piece.value for piece in pieces if isinstance(piece, ast.Constant)]
                yield node.lineno, "".join(piece for piece in said if isinstance(piece, str))


def test_no_test_repeats_a_whole_sentence_of_ours() -> None:
    """Else a sentence in other words breaks tests far away: say what it names, with `refused` or a row of `tests/refusals`."""
    long = [
        f"{path.relative_to(REPOSITORY)}:{line}: {text}"
        for path in (REPOSITORY / "tests").rglob("test_*.py")
        for line, text in quotes(tree(path))
        if len(text) > LONGEST_QUOTE
    ]
    assert not long


def test_a_whole_sentence_would_be_noticed() -> None:
    source = "pytest.raises(sf.UsageError, match=f'{a} is what nobody knows'); refused((ValueError, BusyError), 'x', 'y')"
    assert sorted(text for _, text in quotes(ast.parse(source))) == [" is what nobody knows", "x", "y"]
    assert not list(quotes(ast.parse("pytest.raises(ValueError, match='no'), refused(UsageError)")))
