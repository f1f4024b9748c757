"""Whether a folder lies in a checkpoint root, however the two are written: through a link, as `s3a://`, by another port of a NameNode.

Guards ask this before something is written. What records name is compared by its text (`stateflow.format.references`), but for the HDFS
that it is in.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from stateflow.errors import UsageError
from stateflow.format.references import path_inside
from stateflow.masking import without_secrets
from stateflow.storage.file_urls import file_folder, file_url

_ONE_NAME = {
    **dict.fromkeys(("s3a", "s3n"), "s3"),
    **dict.fromkeys(("webhdfs", "swebhdfs"), "hdfs"),
    **dict.fromkeys(("azure", "abfs", "abfss", "adl"), "az"),
}
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)


def paths_inside(url: str, root: str) -> set[str]:
    """The paths that a folder has in a root, empty for the root itself: by the URLs as they are written, and by where they lead.

    It has none when it is elsewhere, and two when a link in the root leads to another folder there.
    """
    (place, path), (holder, top) = host_and_path(url), host_and_path(root)
    found = {path_inside(url, root), path_inside(path, top) if _is_one(place, holder) else None}
    return {each for each in found if each is not None}


def host_and_path(url: str) -> tuple[tuple[str, ...], str]:
    """The scheme, with what names a bucket or a host, and the path there. A local folder is followed through its links."""
    scheme = _SCHEME.match(url)
    if scheme is None or scheme[1].lower() == "file":
        return ("file",), file_url(file_folder(url if scheme else f"file:{url}").resolve())
    try:
        parts = urlsplit(url)
    except ValueError:
        raise UsageError(
            f"{without_secrets(url)!r} is no place: write a folder, or a URL such as s3://bucket/folder"
        ) from None
    name = scheme[1].lower()
    name = _ONE_NAME.get(name, name)
    bucket, _, account = parts.netloc.partition("@")
    if name == "hdfs":
        bucket = parts.hostname or ""
    return (name, bucket, account.partition(".")[0]), f"/{parts.path.strip('/')}"


def _is_one(place: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether two places can be one. What a URL leaves out comes from options: the account of a container, the NameNode."""
    return len(place) == len(other) and all(
        one == another or (number > 0 and not (one and another))
        for number, (one, another) in enumerate(zip(place, other, strict=True))
    )
