"""Patterns of LIKE, as Spark's SQL reads them: `%` is any text, `_` any one character, and a backslash takes either as itself."""

from __future__ import annotations

from collections.abc import Iterator


class WrongPatternError(ValueError):
    """A backslash before something else; the text says before what."""


def parts(pattern: str) -> Iterator[tuple[str, bool]]:
    """The characters of a pattern, each with whether it stands for others. Raises WrongPatternError."""
    characters = iter(pattern)
    for character in characters:
        if character != "\\":
            yield character, character in "%_"
            continue
        escaped = next(characters, "")
        if escaped not in ("%", "_", "\\"):
            raise WrongPatternError(f"before {escaped!r}" if escaped else "at the end")
        yield escaped, False
