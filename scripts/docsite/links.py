"""Pages that lie elsewhere in the repository, and links that lead there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

ROOT = Path(__file__).resolve().parents[2]

ELSEWHERE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "docker/README.md": "containers.md"}
"""Files outside docs/ that are pages of the site, and the page's path in it."""

_FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def led(text: str, page: str) -> str:
    """The text of a page with links that hold in the site; `page` is its file, from the repository's root.

    A file that is no page of the site is named instead of linked: nobody knows where a reader has the repository.
    """
    parts = _FENCE.split(text)
    parts[::2] = [_LINK.sub(_rewritten(page), part) for part in parts[::2]]
    return "".join(parts)


def _rewritten(page: str) -> Callable[[re.Match[str]], str]:
    here = PurePosixPath(site_path(page) or page).parent

    def rewrite(link: re.Match[str]) -> str:
        mark, words, target = link.groups()
        path, hash_, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target) or not path:
            return link[0]
        file = normpath((PurePosixPath(page).parent / path).as_posix())
        there = site_path(file)
        if there is None:
            return f"`{file}`" if words in (file, f"{file}/") else f"{words} (`{file}` in the repository)"
        return f"{mark}[{words}]({relpath(there, here.as_posix())}{hash_}{anchor})"

    return rewrite


def site_path(file: str) -> str | None:
    """Where the site has a file of the repository, from the site's root."""
    if file in ELSEWHERE:
        return ELSEWHERE[file]
    return file.removeprefix("docs/") if file.startswith("docs/") else None
