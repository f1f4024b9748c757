"""What a call means that names a file relative to an open folder."""

from __future__ import annotations

import os
from typing import Any


def whole_path(path: Any, folder: int | None) -> str:
    """The absolute path of a name in the folder that a descriptor stands for; a descriptor alone is one, too."""
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}")
    if folder is None or os.path.isabs(path):
        return str(path)
    return os.path.normpath(os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path))
