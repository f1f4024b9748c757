"""Folders as URLs, and back: the URL that a store says opens the same folder again, whatever its name."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote, unquote

from stateflow.errors import UsageError

_QUOTED = re.compile(r"[\x00-\x1f\x7f#?\udc80-\udcff]|%(?=[0-9A-Fa-f]{2})")
"""What would be read as something else, or not at all. All else stands as it is: for people, and because URLs are
compared, also with those in records from before anything was quoted."""


def file_url(folder: Path) -> str:
    """The one URL of an absolute folder."""
    return "file://" + _QUOTED.sub(lambda found: quote(os.fsencode(found[0]), safe=""), str(folder))


def hadoop_path(path: Path) -> str:
    """What Spark takes for an absolute path of this host: it looks like a URL, but Hadoop unquotes nothing in it."""
    return f"file://{path}"


def file_folder(url: str) -> Path:
    """The folder of a `file:` URL. A `#` or `?` in it is taken for a part of the name: folders have nothing else."""
    path = url[len("file:") :]
    if path.startswith("//"):
        host, slash, rest = path[2:].partition("/")
        path = slash + rest if host in ("", "localhost") else ""
    folder = unquote(path, errors="surrogateescape")
    if not folder.startswith("/") or "\0" in folder:
        raise UsageError(f"{url!r} is not a local folder: write file:///absolute/path or the plain path")
    return Path(os.path.normpath(folder))
