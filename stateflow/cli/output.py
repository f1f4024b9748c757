"""What goes where: data on stdout, everything else on stderr; text for people, JSON for programs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stateflow.quantities import size_text as size
from stateflow.quantities import time_text as moment

__all__ = [
    "Format",
    "document",
    "err",
    "facts",
    "line",
    "moment",
    "number",
    "out",
    "plain",
    "seconds",
    "size",
    "table",
]

Format = Literal["text", "json"]
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
WIDE = 200
"""Columns of a table that goes into a pipe: nothing there should be cut off."""


def out() -> Console:
    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)


def err() -> Console:
    return Console(stderr=True, width=None if sys.stderr.isatty() else WIDE, highlight=False)


def document(body: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(plain(body), indent=2, ensure_ascii=False) + "\n")


def line(body: Any) -> None:
    """One JSON object on a line of its own, at once."""
    sys.stdout.write(json.dumps(plain(body), ensure_ascii=False, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def plain(body: Any) -> Any:
    """Values as JSON has them."""
    if is_dataclass(body) and not isinstance(body, type):
        return plain(asdict(body))
    if isinstance(body, dict):
        return {str(name): plain(value) for name, value in body.items()}
    if isinstance(body, list | tuple | set | frozenset):
        return [plain(value) for value in body]
    if isinstance(body, str | int | float | bool) or body is None:
        return body
    return str(body)


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[str] = ()
) -> None:
    """A table on stdout. A row's text is shown as it is, brackets and all."""
    made = Table(title=title or None, title_justify="left", header_style="bold", box=None, pad_edge=False)
    numbers = set(right)
    for name in columns:
        made.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    for row in rows:
        made.add_row(*("" if cell is None else _shown(cell) for cell in row))
    out().print(made)


def facts(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values, one pair a line."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="bold")
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(name, _shown("-" if value in (None, "") else value))
    out().print(made)


def _shown(value: object) -> str:
    """Without what a terminal obeys: notes and names may be somebody else's."""
    return escape(_CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", str(value)))


def seconds(length: float) -> str:
    if length < 0.0995:
        return f"{length * 1000:.0f} ms"
    if length < 120:
        return f"{length:.1f} s"
    return f"{length / 60:.0f} min" if length < 7200 else f"{length / 3600:.1f} h"


def number(count: float) -> str:
    return f"{count:,.0f}"
