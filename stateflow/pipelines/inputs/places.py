"""Whether two spellings name one table or folder. Every guard that compares places asks here.

Spark opens what the user has written; the form made here is for comparing only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import normpath
from urllib.parse import unquote

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):(?://([^/]*))?(/.*)?")
_FAMILY = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "wasb", "adls": "adl"}
"""Schemes with which different clients reach one storage."""
_HDFS_PORT = ":8020"
"""The port that a name node listens to if none is given."""

PATTERN = frozenset("*?[]{}\\")
"""Characters of a path that Spark and Hadoop take for a pattern of several files or folders."""

_PIECE = re.compile(r"\\.|\[[^]/]+]|.", re.DOTALL)
_MEANT = {"*": "[^/]*", "?": "[^/]", "{": "(?:", ",": "|", "}": ")"}


def canonical(path: str) -> str:
    """The one spelling of a place: no trailing slash, `.` or `..`; of a local one, the absolute path behind all links."""
    url = _URL.fullmatch(path)
    if url is None:
        return _local(path)
    scheme, host, below = url[1].lower(), (url[2] or "").lower(), url[3] or "/"
    if scheme == "file":
        return _local(below)
    scheme = _FAMILY.get(scheme, scheme)
    if scheme == "hdfs":
        host = host.removesuffix(_HDFS_PORT)
    return f"{scheme}://{host}{_tidy(below)}".rstrip("/")


def depends_on_folder(path: str) -> bool:
    """Whether a path leads elsewhere from another working folder."""
    return _URL.fullmatch(path) is None and not path.startswith("/")


def on_s3(path: str) -> bool:
    """Whether a path is one of a bucket of S3, or of a store that speaks its protocol."""
    url = _URL.fullmatch(path)
    return url is not None and _FAMILY.get(url[1].lower(), url[1].lower()) == "s3"


def same_place(one: str, other: str) -> bool:
    """Whether two paths or URLs name one place."""
    return canonical(one) == canonical(other)


def between(upper: str, lower: str) -> tuple[str, ...] | None:
    """The folders that lead from one place down to another; None if the other place does not lie in it."""
    top, inner = canonical(upper).rstrip("/"), canonical(lower)
    if inner == top:
        return ()
    return tuple(inner.removeprefix(f"{top}/").split("/")) if inner.startswith(f"{top}/") else None


def shown(url: str) -> str:
    """The path of a file that Spark has listed, as people write it."""
    path = unquote(url)
    return _tidy(path.removeprefix("file:")) if path.startswith("file:/") else path


def same_spelling(one: str, other: str) -> bool:
    """Whether a file has the same path for Spark under both names of its place."""
    ones, others = _spelled(one), _spelled(other)
    return _alike(ones, others) and ones[2] == others[2]


def spelled_below(file: str, folder: str) -> bool:
    """Whether a file that Spark has listed lies in a folder, or in one of a pattern's, by its spelling alone: Spark follows no links
    when it compares files."""
    above, inner = _spelled(folder), _spelled(file)
    if not _alike(above, inner):
        return False
    try:
        pattern = re.compile("".join(_expressions(above[2].rstrip("/"))) + "(?:/.*)?", re.DOTALL)
    except re.error:
        return False
    return pattern.fullmatch(inner[2]) is not None


def _expressions(pattern: str) -> Iterator[str]:
    """A path with a pattern of Hadoop's as a regular expression, piece by piece."""
    depth = 0
    for part in _PIECE.findall(pattern):
        depth += (part == "{") - (part == "}")
        if part in _MEANT and not (part == "," and depth == 0):
            yield _MEANT[part]
        elif part[0] == "[" and part[-1] == "]":
            yield part.replace("[!", "[^", 1)
        else:
            yield re.escape(part[1:] if part[0] == "\\" else part)


def _alike(one: tuple[str, str, str], other: tuple[str, str, str]) -> bool:
    """Whether scheme and host are the same. One without them is Spark's default, mostly that of the other."""
    return all(a == b or "" in (a, b) for a, b in zip(one[:2], other[:2], strict=True))


def _spelled(path: str) -> tuple[str, str, str]:
    """Scheme, host and path. Hadoop takes `..` out of a path, and makes it absolute."""
    url = _URL.fullmatch(path)
    if url is None:
        return "", "", _tidy(str(Path(path).absolute()))
    host = (url[2] or "").lower()
    return url[1].lower(), host, _tidy(url[3] or "/")


def _local(path: str) -> str:
    # Hadoop takes `..` out of a path before anybody follows a link.
    return os.path.realpath(_tidy(str(Path(path).absolute())))


def _tidy(path: str) -> str:
    return normpath(f"/{path.lstrip('/')}")
