"""No error advises what everybody knows, such as to repair the code: its next step can be tried."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.parsed import nodes

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
