"""The pipeline's own modules as they were when its file was loaded, for whoever imports one later: the driver, or a worker that Spark
starts on its host in the middle of a run. A file that is replaced meanwhile is the next run's.

Python itself would take the file as it is by then, or bytecode of an earlier text of the same size and time: a record would name other
code than has run.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import PurePath
from types import CodeType, ModuleType


@dataclass
class OwnFile:
    """A Python file as it was read."""

    digest: str
    body: bytes | CodeType
    """Its text until somebody imports it."""

    @classmethod
    def of(cls, text: bytes) -> OwnFile:
        return cls(hashlib.sha256(text).hexdigest(), text)

    def code(self, path: str) -> CodeType:
        if isinstance(self.body, bytes):
            self.body = compile(self.body, path, "exec", dont_inherit=True)
        return self.body


class OwnLoader(SourceFileLoader):
    """Loads a module from what was read, and never from bytecode on disk."""

    def __init__(self, name: str, path: str, file: OwnFile) -> None:
        super().__init__(name, path)
        self._file = file

    def get_code(self, fullname: str) -> CodeType:
        return self._file.code(self.path)


@dataclass
class OwnFinder:
    """Finds modules where Python does, and gives those of `files` their loader."""

    files: dict[str, OwnFile] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    """Every name that a part of a path has: other modules are not looked for twice."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self.names:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        file = self.files.get(os.path.realpath(spec.origin)) if spec is not None and spec.origin else None
        if spec is not None and spec.origin and file is not None:
            spec.loader = OwnLoader(fullname, spec.origin, file)
        return spec


_FINDER = OwnFinder()


def freeze(files: Mapping[str, OwnFile]) -> None:
    """From here on modules of these files are imported as they are given here. If one was imported from another text, all are imported anew."""
    known = _FINDER.files
    if any(path in known and known[path].digest != file.digest for path, file in files.items()):
        for name, module in list(sys.modules.items()):
            loader = getattr(module, "__loader__", None)
            if isinstance(loader, OwnLoader) and os.path.realpath(loader.path) in files:
                del sys.modules[name]
    known.update(files)
    _FINDER.names.update(part for path in files for part in PurePath(path).with_suffix("").parts)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
