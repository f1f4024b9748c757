"""Python files as trees, each parsed once per process: many tests read every file of the library."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path


@cache
def tree(path: Path) -> ast.Module:
    # A parser makes so many objects that Python looks for garbage all the time, and there is none.
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        if collects:
            gc.enable()


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file, as `ast.walk` finds them."""
    return tuple(ast.walk(tree(path)))
