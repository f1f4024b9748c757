"""Values as people read them."""

from __future__ import annotations

import re
import shlex
from typing import Any

from stateflow.masking import without_secrets
from stateflow.quantities import several
from stateflow.quantities import size_text as size
from stateflow.quantities import time_text as moment

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ADVISED = re.compile(r"`(stateflow (?!host\b|package\b|trust\b)[a-z][^`\n]*)`")
"""A command of stateflow that takes a checkpoint root."""

__all__ = ["advised", "amount", "harmless", "in_json", "moment", "number", "seconds", "several", "size"]


def harmless(value: object) -> str:
    """Without what a terminal obeys: notes and names may be somebody else's."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", str(value))


def advised(text: str, root: str | None) -> str:
    """The text, with the checkpoint root that was typed in each command that it advises: pasted without it, the command would be carried
    out in the root of the environment."""
    if root is None:
        return text
    typed = f" --checkpoint-dir {shlex.quote(without_secrets(root))}"

    def with_root(found: re.Match[str]) -> str:
        if "--checkpoint-dir" in found[1]:
            return found[0]
        words, dashes, behind = found[1].partition(" -- ")  # behind them no option is read
        return f"`{words}{typed}{dashes}{behind}`"

    return _ADVISED.sub(with_root, text)


def in_json(value: Any) -> str:
    """A text as it is, any other value as JSON."""
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def seconds(length: float) -> str:
    if length < 0.0995:
        return f"{length * 1000:.0f} ms"
    if length < 120:
        return f"{length:.1f} s"
    return f"{length / 60:.0f} min" if length < 7200 else f"{length / 3600:.1f} h"


def number(count: float) -> str:
    return f"{count:,.0f}"


def amount(count: int, unit: str) -> str:
    """So many rows, bytes or files."""
    return size(count) if unit == "bytes" else several(count, unit.removesuffix("s"))
