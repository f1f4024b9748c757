"""What Azure says of a copy that it carries out behind its answer. The store's client does not show it."""

from __future__ import annotations

import urllib.request
from dataclasses import dataclass
from http.client import HTTPException

_PATIENCE = 20


@dataclass(frozen=True, slots=True)
class CopyState:
    """What the target of a copy says."""

    progress: str
    """The bytes so far, and all: "5/1000"."""
    failure: str
    """Empty while the copy is under way, and when it has succeeded."""


def copy_state(url: str) -> CopyState | None:
    """By a signed URL of the target; None when it does not say."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_PATIENCE) as answer:
            headers = answer.headers
    except (OSError, HTTPException):
        return None
    status = headers.get("x-ms-copy-status")
    if status is None:
        return None
    said = headers.get("x-ms-copy-status-description") or status
    return CopyState(headers.get("x-ms-copy-progress", ""), said if status in ("failed", "aborted") else "")
