"""Pictures in pages: tables of what goes into an operator and what comes out, made by running it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def with_picture(text: str, name: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The page's text with a picture in its place, between two comments."""
    lines = [_line(headings), _line(["---"] * len(headings)).replace(" ", ""), *map(_line, rows)]
    place = re.compile(rf"(<!-- picture: {name} -->\n).*?(<!-- end of picture -->)", re.DOTALL)
    if not place.search(text):
        raise SystemExit(
            f"no page has a place for picture {name}: write <!-- picture: {name} --> and its end"
        )
    return place.sub(lambda found: found[1] + "\n".join(["", *lines, "", ""]) + found[2], text)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
