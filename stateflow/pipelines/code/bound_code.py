"""The code of a pipeline in its own files, as hashes: a record notes them, and an approval binds them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stateflow.pipelines.code.own_code import OwnFile, OwnFiles
from stateflow.pipelines.code.own_modules import sources

MOST_BYTES = 16 << 20
"""A larger file beside the pipeline is data, and is not read."""
_LAST: dict[Path, OwnFiles] = {}
"""By the pipeline's file."""


@dataclass(frozen=True)
class BoundCode:
    """The files that make up a pipeline, and what it imports from elsewhere."""

    files: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the pipeline's file, the modules beside it that it imports, and what these import, by name below its
    folder."""
    elsewhere: tuple[str, ...] = ()
    """Modules that are imported from elsewhere, and files that are too large: nobody has looked at them."""

    @property
    def digest(self) -> str:
        """SHA-256 of all files and their names."""
        return hashlib.sha256(json.dumps(dict(self.files), sort_keys=True).encode()).hexdigest()


def bound_code(file: Path) -> BoundCode:
    return read_code(file)[0]


def read_code(file: Path) -> tuple[BoundCode, OwnFiles, OwnFile]:
    """The hashes, the Python files of which they are as others import them, and the file itself. Finds the files by the imports in their
    text, as `stateflow package` does. It runs no code."""
    found = sources(file, broken=True)
    hashes: dict[str, str] = {}
    own: dict[str, OwnFile] = {}
    unread = []
    for name, path in found.files.items():
        try:
            # To open something else than a file, such as a pipe, could wait for ever.
            if path.is_file() and path.stat().st_size <= MOST_BYTES:
                text = found.texts.get(name)
                read = OwnFile.of(path.read_bytes() if text is None else text)
                hashes[name] = read.digest
                if path.suffix == ".py":
                    own[name] = read
                continue
        except OSError:
            pass
        unread.append(name)
    elsewhere = (*sorted({**found.optional, **found.imports}), *sorted(unread))
    itself = own.get(file.name) or OwnFile.of(file.read_bytes())
    if not found.again:
        own.pop(file.name, None)
    return BoundCode(dict(sorted(hashes.items())), elsewhere), _as_read_last(file, own), itself


def _as_read_last(file: Path, own: Mapping[str, OwnFile]) -> OwnFiles:
    """What was read last while the texts are the same: modules of it that gave way to another pipeline's come back then. A process that loads
    two pipelines in turn would import them anew each time, and keep them all."""
    read, last = OwnFiles(str(file.parent), own), _LAST.get(file)
    if last is None or last.digests != read.digests:
        last = _LAST[file] = read
    return last
