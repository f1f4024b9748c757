"""The pipeline's own modules as they were when its file was loaded, for whoever imports one later: the driver, or a worker that Spark
starts on its host in the middle of a run. A file that is replaced meanwhile is the next run's.

Python itself would take the file as it is by then, or bytecode of an earlier text of the same size and time: a record would name other
code than has run. It would also take another pipeline's module of the same name, which the process has imported before.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import PurePath
from types import CodeType, ModuleType

_INIT = "__init__"


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


@dataclass(frozen=True)
class OwnFiles:
    """The Python files of a pipeline."""

    folder: str = ""
    files: Mapping[str, OwnFile] = field(default_factory=dict)
    """By their names below the folder."""

    @cached_property
    def modules(self) -> dict[str, str]:
        """The file of each module that they are when the folder is on Python's path."""
        found = {}
        for name in self.files:
            parts = PurePath(name).with_suffix("").parts
            # Python has some built in, whatever lies in a folder.
            if parts[0] not in sys.builtin_module_names:
                found[".".join(parts[:-1] if parts[-1] == _INIT else parts)] = name
        return found

    @cached_property
    def tops(self) -> frozenset[str]:
        return frozenset(name.partition(".")[0] for name in self.modules)

    def freeze(self) -> None:
        """From here on modules of these names are imported from these files as they are here. If one was imported from another file or text,
        all are imported anew."""
        _FINDER.own = self
        if any(not self._has(name, module) for name, module in self._imported()):
            for name, module in [*self._imported()]:
                # What Python itself has loaded of these files stays: others may hold its classes.
                if (
                    isinstance(_loader(module), OwnLoader)
                    or _path(module) is None
                    or not self._has(name, module)
                ):
                    del sys.modules[name]
        if _FINDER not in sys.meta_path:
            sys.meta_path.insert(0, _FINDER)

    def _imported(self) -> Iterator[tuple[str, ModuleType]]:
        for name, module in [*sys.modules.items()]:
            if name.partition(".")[0] in self.tops:
                yield name, module

    def _has(self, name: str, module: ModuleType) -> bool:
        """Whether an imported module is one of these, or no file of Python's own language below their folder."""
        path, loader = _path(module), _loader(module)
        if path is None:  # a namespace, which is as new as what is in it
            return True
        if name not in self.modules:
            return PurePath(path).is_relative_to(self.folder)
        own = self.modules[name]
        if os.path.realpath(path) != os.path.realpath(os.path.join(self.folder, own)):  # noqa: PTH118
            return False
        return not isinstance(loader, OwnLoader) or loader.file.digest == self.files[own].digest


class OwnLoader(SourceFileLoader):
    """Loads a module from what was read, and never from bytecode on disk."""

    def __init__(self, name: str, path: str, file: OwnFile) -> None:
        super().__init__(name, path)
        self.file = file

    def get_code(self, fullname: str) -> CodeType:
        return self.file.code(self.path)


class OwnFinder:
    """Finds the modules of the pipeline that was loaded last, before Python looks for others of their names."""

    def __init__(self) -> None:
        self.own = OwnFiles()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        name = self.own.modules.get(fullname)
        if name is None:
            return None
        file = os.path.join(self.own.folder, name)  # noqa: PTH118
        loader = OwnLoader(fullname, file, self.own.files[name])
        return spec_from_file_location(fullname, file, loader=loader)


_FINDER = OwnFinder()


def _loader(module: ModuleType) -> object:
    return getattr(module, "__loader__", None)


def _path(module: ModuleType) -> str | None:
    return getattr(module, "__file__", None)
