"""What a call means that names a file relative to an open folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def whole_path(path: Any, folder: int | None) -> str:
    """The absolute path of a name in the folder that a descriptor stands for; a descriptor alone is one, too."""
    if isinstance(path, int):
        return str(Path(f"/proc/self/fd/{path}").readlink())
    if folder is None:
        return str(path)
    return os.path.normpath(Path(f"/proc/self/fd/{folder}").readlink() / path)
