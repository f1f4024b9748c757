"""Reads from the source text of a step what it does, before Spark is there. Spark finds the rest when a run starts."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stateflow.pipelines.code.parsing import parsed

_AGGREGATES = {
    **dict.fromkeys(("groupBy", "groupby", "rollup", "cube", "agg"), "an aggregation"),
    **dict.fromkeys(("distinct", "dropDuplicates", "drop_duplicates"), "distinct or dropDuplicates"),
    "limit": "limit",
}
_FILTERS = dict.fromkeys(("where", "filter"), "a filter")
_Function = ast.Lambda | ast.FunctionDef


def shown_aggregation(function: Callable[..., Any]) -> str:
    """The method that aggregates the rows given to `function`; empty when the text shows none."""
    return _shown(function, _AGGREGATES)


def shown_filter(function: Callable[..., Any]) -> str:
    """The method that leaves out some of the rows given to `function`; empty when the text shows none."""
    return _shown(function, _FILTERS)


def _shown(function: Callable[..., Any], words: Mapping[str, str]) -> str:
    """Which of these methods the function calls on its rows, and what that is.

    Only a chain of calls counts that begins at the function's own frame and that it returns: a lookup table may be
    aggregated, and a value for a filter, too.
    """
    code = getattr(function, "__code__", None)
    if code is None or not code.co_argcount:
        return ""
    frame = code.co_varnames[0]
    found = [node for node in _functions(code.co_filename) if _is(node, code)]
    if len(found) != 1 or any(_sets(node, frame) for node in ast.walk(found[0])):
        return ""
    for returned in _returned(found[0]):
        for word in _chain(returned, frame):
            if word in words:
                return f"{words[word]} ({word})"
    return ""


def _functions(file: str) -> tuple[_Function, ...]:
    linecache.checkcache(
        file
    )  # a long-lived process, such as Airflow's, loads a file anew when it was edited
    try:
        tree = parsed("".join(linecache.getlines(file)), file)
    except (SyntaxError, ValueError):
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, _Function))


def _is(node: _Function, code: Any) -> bool:
    line = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    name = node.name if isinstance(node, ast.FunctionDef) else "<lambda>"
    given = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    return (line, name, given) == (
        code.co_firstlineno,
        code.co_name,
        list(code.co_varnames[: code.co_argcount]),
    )


def _sets(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)


def _returned(function: _Function) -> Iterator[ast.expr]:
    if isinstance(function, ast.Lambda):
        yield function.body
        return
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


def _chain(value: ast.expr, frame: str) -> list[str]:
    """The methods called one on the result of another, beginning at `frame`."""
    words: list[str] = []
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        words.append(value.func.attr)
        value = value.func.value
    return words if isinstance(value, ast.Name) and value.id == frame else []
