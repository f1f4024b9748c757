"""The pipeline's own modules as they were when its file was loaded, for whoever imports one later: the driver, or a worker that Spark
starts on its host in the middle of a run. A file that is replaced meanwhile is the next run's.

Python itself would take the file as it is by then, or bytecode of an earlier text of the same size and time: a record would name other
code than has run. It would also take another pipeline's module of the same name, which the process has imported before.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path, PurePath
from types import CodeType, ModuleType
from weakref import WeakValueDictionary

from stateflow.pipelines.code.own_folder import OwnFolder

MODULE_PREFIX = "_stateflow_pipeline_"
"""Of the names of the modules of pipelines' files. Nobody imports them by these, and their classes find the types of their fields in them as
long as they live."""
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
    displaced: dict[str, ModuleType] = field(default_factory=dict)
    """Modules imported from these that gave way to another pipeline's. Their classes find the types of their fields in them."""

    @cached_property
    def digests(self) -> dict[str, str]:
        return {name: file.digest for name, file in self.files.items()}

    @cached_property
    def modules(self) -> dict[str, str]:
        """The file of each module that they are when the folder is on Python's path."""
        named = ((_module_name(PurePath(name)), name) for name in self.files)
        # Python has some built in, whatever lies in a folder.
        return {
            module: name for module, name in named if module.partition(".")[0] not in sys.builtin_module_names
        }

    @cached_property
    def namespaces(self) -> set[str]:
        """Folders that these modules lie in and that have no file of their own, as Python calls them."""
        folders = {folder for name in self.modules.values() for folder in PurePath(name).parents}
        return {".".join(folder.parts) for folder in folders} - self.modules.keys()

    @contextmanager
    def first(self) -> Iterator[None]:
        """What is imported within comes from these files, whatever another thread loads or builds."""
        with _ONE_BY_ONE:
            self.freeze()
            yield

    def freeze(self) -> None:
        """From here on modules of these names are imported from these files as they are here. Those that the process has imported from other
        files or texts give way until their pipeline comes back, with the others of that pipeline; and so do those of the pipeline that was
        loaded before which this one would find in their place."""
        if not self.folder:
            return
        before, _FINDER.own = _FINDER.own, self
        _LIVE[id(self)] = self
        _FINDER.folders.add(self.folder)
        sys.path[:] = [self.folder, *(each for each in sys.path if each != self.folder)]
        imported = [each for each in sys.modules.items() if not each[0].startswith(MODULE_PREFIX)]
        others = {name: module for name, module in imported if self._is_other(name, module)}
        # Theirs may have imported each other, and ours what Python itself has loaded of this folder.
        folders = {_own_folder(module) for module in others.values()}
        if any((_path(module) or "").startswith(os.path.join(self.folder, "")) for module in others.values()):  # noqa: PTH118
            folders.add(self.folder)
        gone = others.keys() | {name for name, module in imported if _own_folder(module) in folders - {""}}
        if before.folder != self.folder:
            theirs = OwnFolder(Path(before.folder))
            gone |= {name for name, module in imported if self._replaces(name, module, theirs)}
        for name, module in imported:
            if any(name == each or name.startswith(f"{each}.") for each in gone):
                del sys.modules[name]
                # Who imports it from its package would get what the package has of it.
                vars(_parent(name)).pop(name.rpartition(".")[2], None)
                for owner in _LIVE.values():
                    if owner is not self and owner._has(name, module):
                        owner.displaced.setdefault(name, module)
        for name in sorted(self.displaced.keys() - sys.modules.keys()):
            sys.modules[name] = self.displaced[name]
            setattr(_parent(name), name.rpartition(".")[2], self.displaced[name])
        self.displaced.clear()
        if _FINDER not in sys.meta_path:
            sys.meta_path.insert(0, _FINDER)

    def _replaces(self, name: str, module: ModuleType, theirs: OwnFolder) -> bool:
        """Whether a module of another pipeline, under the name that it has there, has another file here."""
        path = _path(module)
        if path is None or not theirs.has(Path(path)):
            return False
        own = Path(path).relative_to(theirs.path)
        return _module_name(own) == name and Path(self.folder, own).exists()

    def _is_other(self, name: str, module: ModuleType) -> bool:
        """Whether it is in the place of a module of these, or comes from other texts of them."""
        loader = _loader(module)
        if isinstance(loader, OwnLoader) and loader.folder == self.folder:
            return not self._agrees(loader)
        is_own = name in self.modules or (isinstance(loader, OwnLoader) and name in self.namespaces)
        return is_own and not self._has(name, module)

    def _has(self, name: str, module: ModuleType) -> bool:
        """Whether an imported module is the one of this name here."""
        path, loader, own = _path(module), _loader(module), self.modules.get(name)
        if name in self.namespaces:
            folder = os.path.join(self.folder, *name.split("."))  # noqa: PTH118
            return path is None and folder in getattr(module, "__path__", ())
        if path is None or own is None:
            return False
        if isinstance(loader, OwnLoader):
            return self._agrees(loader)
        # What Python itself has loaded stays, since others may hold its classes, unless the file may have changed since, or is gone.
        here = os.path.join(self.folder, own)  # noqa: PTH118
        with suppress(OSError):
            is_here = os.path.realpath(path) == os.path.realpath(here)
            return is_here and max(os.stat(path).st_mtime, os.stat(path).st_ctime) < _BEGAN  # noqa: PTH116
        return False

    def _agrees(self, other: OwnLoader) -> bool:
        """Whether modules of both are the same, and so is all that these import: each has the files that its modules import."""
        both = self.digests.keys() & other.digests.keys()
        return self.folder == other.folder and all(self.digests[name] == other.digests[name] for name in both)


class OwnLoader(SourceFileLoader):
    """Loads a module from what was read, and never from bytecode on disk.

    It knows the files beside the module by their digests alone: modules stay for good, and would keep the texts of every load.
    """

    def __init__(self, name: str, path: str, file: OwnFile, own: OwnFiles) -> None:
        super().__init__(name, path)
        self.file, self.folder, self.digests = file, own.folder, own.digests

    def get_code(self, fullname: str) -> CodeType:
        return self.file.code(self.path)


class OwnFinder:
    """Finds the modules of the pipeline that was loaded last, before Python looks for others of their names."""

    def __init__(self) -> None:
        self.own = OwnFiles()
        self.folders: set[str] = set()
        """Those of pipelines, which stay on Python's path."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if target is not None:  # who reloads a module by hand wants the file as it is
            return None
        if fullname in self.own.namespaces:
            return self._namespace(fullname, path)
        name = self.own.modules.get(fullname)
        if name is None:
            return None
        file = os.path.join(self.own.folder, name)  # noqa: PTH118
        loader = OwnLoader(fullname, file, self.own.files[name], self.own)
        return spec_from_file_location(fullname, file, loader=loader)

    def _namespace(self, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        """As Python finds it while it is still a folder and no other pipeline has a module of the name; otherwise as it was."""
        parts = name.split(".")
        here, *others = (os.path.join(each, *parts) for each in (self.own.folder, *self.folders))  # noqa: PTH118
        found = PathFinder.find_spec(name, path)
        modules = {f"{each}{end}" for each in (here, *others) for end in (".py", f"{os.sep}{_INIT}.py")}
        if found is not None and found.origin not in modules:
            return found
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [here]
        return spec


_FINDER = OwnFinder()
_LIVE: WeakValueDictionary[int, OwnFiles] = WeakValueDictionary()
"""Those that modules give way to, or come back with."""
_ONE_BY_ONE = threading.RLock()
_BEGAN = time.time()


def _module_name(file: PurePath) -> str:
    """Of a file below a folder on Python's path."""
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == _INIT else parts)


def _parent(name: str) -> ModuleType:
    return sys.modules.get(name.rpartition(".")[0]) or ModuleType("nothing")


def _own_folder(module: ModuleType) -> str:
    """The folder of the pipeline that a module was imported for; empty when Python itself has loaded it."""
    loader = _loader(module)
    return loader.folder if isinstance(loader, OwnLoader) else ""


def _loader(module: ModuleType) -> object:
    return getattr(module, "__loader__", None)


def _path(module: ModuleType) -> str | None:
    return getattr(module, "__file__", None)
