"""Text that somebody else has written, such as a name in a savepoint, so that a reader of the plan sees it as it is."""

from __future__ import annotations

_MARKDOWN = frozenset("\\`*_{}[]<>()#+!|~&@:")


def visible(text: str) -> str:
    """On one line: what cannot be seen, or would move the cursor, is written as an escape."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def code(text: str) -> str:
    r"""A code span of Markdown that nothing in the text can end, in a table or not: `a|b` is written as a\x7cb.

    Neither entities nor backslashes are read in there, so a character that has to go is named by its number.
    """
    if not text:
        return ""
    escaped = "".join(f"\\x{ord(c):02x}" if c in "`|\\" else visible(c) for c in text)
    # A renderer takes one space off at both ends.
    return f"`` {escaped} ``" if escaped != escaped.strip() else f"`{escaped}`"


def prose(text: str) -> str:
    """Words of Markdown in which nothing is marked up."""
    return "".join(f"&#{ord(c)};" if c in _MARKDOWN else c for c in visible(text))
