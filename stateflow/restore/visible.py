"""Shows foreign text, such as a name in a savepoint, so that nothing in it can hide or pose as the plan's own words."""

from __future__ import annotations

import re
import unicodedata

_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0\U00013441\U00013442\U0001d159")
"""Letters and symbols that Unicode calls printable and that a screen leaves blank."""
_UNSEEN = frozenset({"Mn", "Me", "Cf", "Zs"})
"""Marks that change or hide the letter before them, what only directs the display, and spaces."""
_PLAIN = re.compile(r"[\w./:@%+~*?&=#,\[\]{}-]+")
_LINK = re.compile(r"(?i)(?<=https:)/|(?<=http:)/|(?<=www)\.|(?<=[\w.+-])@(?=\w)")
"""What a renderer makes links of, also where it is written with entities."""
_MARKDOWN = frozenset("\\`*_{}[]<>()#+!|~&@:")


def visible(text: str) -> str:
    """The text on one line. Characters that are invisible or blank, or that move the cursor, become escapes."""
    return "".join(c if _seen(c) else ascii(c)[1:-1] for c in text)


def _seen(c: str) -> bool:
    if c == " ":
        return True
    return c.isprintable() and c not in _BLANK and unicodedata.category(c) not in _UNSEEN


def quoted(text: str) -> str:
    """The text in quotes that nothing in it can end. One word that cannot pose as anything else needs none."""
    if text != "unset" and _PLAIN.fullmatch(text) and visible(text) == text:
        return text
    return "'" + visible(text.replace("\\", "\\\\").replace("'", "\\'")) + "'"


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
    """Markdown that shows the text as plain words. An address in it is no link: a person who approves must not follow one."""
    plain = _LINK.sub(lambda match: f"\\x{ord(match[0]):02x}", visible(text))
    return "".join(f"&#{ord(c)};" if c in _MARKDOWN else c for c in plain)
