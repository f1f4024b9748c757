"""Folders as URLs, and back. The URL of a store opens the same folder again, whatever characters its name has."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote, unquote

from stateflow.errors import UsageError
from stateflow.masking import without_secrets

_QUOTED = re.compile(r"[\x00-\x1f\x7f#?\udc80-\udcff]|%(?=[0-9A-Fa-f]{2})")
"""Characters that a reader of the URL would misread. Everything else stays unquoted: people read URLs, and those in records are
compared."""


def file_url(folder: Path) -> str:
    """The one URL of an absolute folder."""
    return "file://" + _QUOTED.sub(lambda match: quote(os.fsencode(match[0]), safe=""), str(folder))


def hadoop_path(path: Path) -> str:
    """An absolute path of this host as Spark takes it. It looks like a URL, but Hadoop unquotes nothing in it."""
    return f"file://{path}"


def file_folder(url: str) -> Path:
    """The folder of a `file:` URL. A `#` or `?` in it is part of the name, since a folder has no query or fragment."""
    path = url[len("file:") :]
    if path.startswith("//"):
        host, slash, rest = path[2:].partition("/")
        path = slash + rest if host in ("", "localhost") else ""
    folder = unquote(path, errors="surrogateescape")
    if not folder.startswith("/") or "\0" in folder:
        raise UsageError(
            f"{without_secrets(url)!r} is not a local folder: write file:///absolute/path or the plain path"
        )
    return plain_folder(folder)


def plain_folder(path: str | Path) -> Path:
    """The absolute folder without `..`. UsageError where the system goes elsewhere: on from where a link before the `..` leads."""
    plain = os.path.normpath(path)
    if ".." in Path(path).parts and (real := os.path.realpath(path)) != os.path.realpath(plain):
        raise UsageError(
            f"{path} is {real} for the system and {plain} for Spark, since a link stands before its '..': write the folder that you mean"
        )
    return Path(plain)
