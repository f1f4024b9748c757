"""Shows foreign text, such as a name in a savepoint, so that nothing in it can hide or pose as the plan's own words."""

from __future__ import annotations

_MARKDOWN = frozenset("\\`*_{}[]<>()#+!|~&@:")


def visible(text: str) -> str:
    """The text on one line. Invisible characters, and those that move the cursor, become escapes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def code(text: str) -> str:
    r"""A code span of Markdown that nothing in the text can end, also in a table: `a|b` becomes a\x7cb.

    Markdown reads neither entities nor backslashes in a code span, so a forbidden character becomes its number.
    """
    if not text:
        return ""
    escaped = "".join(f"\\x{ord(c):02x}" if c in "`|\\" else visible(c) for c in text)
    # A renderer removes one space at both ends.
    return f"`` {escaped} ``" if escaped != escaped.strip() else f"`{escaped}`"


def prose(text: str) -> str:
    """Markdown that shows the text as plain words."""
    return "".join(f"&#{ord(c)};" if c in _MARKDOWN else c for c in visible(text))
