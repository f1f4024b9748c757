"""Whether two spellings name one table or folder. Every guard that compares places asks here.

Spark opens what the user has written; the form made here is for comparing only.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from posixpath import normpath

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):(?://([^/]*))?(/.*)?")
_FAMILY = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "wasb", "adls": "adl"}
"""Schemes with which different clients reach one storage."""
_HDFS_PORT = ":8020"
"""The port that a name node listens to if none is given."""


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


def same_place(one: str, other: str) -> bool:
    """Whether two paths or URLs name one place."""
    return canonical(one) == canonical(other)


def between(upper: str, lower: str) -> tuple[str, ...] | None:
    """The names of the folders that lead from one place down to another; None if the other does not lie in it."""
    top, inner = canonical(upper).rstrip("/"), canonical(lower)
    if inner == top:
        return ()
    return tuple(inner.removeprefix(f"{top}/").split("/")) if inner.startswith(f"{top}/") else None


def _local(path: str) -> str:
    # Hadoop takes `..` out of a path before anybody follows a link.
    return os.path.realpath(_tidy(str(Path(path).absolute())))


def _tidy(path: str) -> str:
    return normpath(f"/{path.lstrip('/')}")
