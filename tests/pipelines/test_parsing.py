"""The parser, when Python's own says of a sound text that it cannot."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from stateflow.pipelines.code import parsing


@pytest.mark.parametrize("failures", [0, 1, parsing.TRIES - 1])
def test_a_sound_text_is_parsed_though_another_thread_parses(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse, left = ast.parse, [None] * failures

    def disturbed(*given: Any, **named: Any) -> ast.Module:
        if left:
            left.pop()
            raise SystemError("AST constructor recursion depth mismatch (before=168, after=72)")
        return parse(*given, **named)

    monkeypatch.setattr(ast, "parse", disturbed)
    assert ast.dump(parsing.parsed("a = 1", "a.py")) == ast.dump(parse("a = 1"))


def test_what_is_no_python_is_so_at_once() -> None:
    with pytest.raises(SyntaxError, match="invalid syntax") as error:
        parsing.parsed(b"a = = 1", "a.py")
    assert error.value.filename == "a.py"
