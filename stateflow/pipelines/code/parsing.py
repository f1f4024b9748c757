"""Python's own parser, for threads that parse at once."""

from __future__ import annotations

import ast

TRIES = 5


def parsed(text: str | bytes, file: str) -> ast.Module:
    """The tree of a file's text, with the errors of `ast.parse`.

    Python 3.11 counts the parser's depth for all threads in one place: of two that parse at once, one may get a SystemError for a sound text.
    """
    for _ in range(TRIES - 1):
        try:
            return ast.parse(text, filename=file)
        except SystemError:
            continue
    return ast.parse(text, filename=file)
