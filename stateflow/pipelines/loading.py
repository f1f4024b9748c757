"""Pipelines by the name that people give on a command line: FILE:PIPELINE."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from stateflow.errors import NotFoundError, StateflowError, UsageError, UserCodeError
from stateflow.pipelines.code.bound_code import read_code
from stateflow.pipelines.code.own_code import MODULE_PREFIX, OwnFile, OwnFiles, OwnLoader
from stateflow.pipelines.code.own_folder import OwnFolder
from stateflow.pipelines.pipeline import Pipeline

NAMED = "stateflow_pipeline"
"""A scheduler's decorator that wraps a pipeline function puts the pipeline's name into this attribute, and the function into
`__wrapped__`."""
_LOADS = itertools.count(2)
_HARMLESS = frozenset(
    ("antigravity", "cmd", "code", "curses", "idlelib", "lib2to3", "sched", "site", "test", "this", "tkinter", "trace", "turtle",
     "venv", "wave")
)  # fmt: skip
"""Modules of Python's that no worker imports, by whose names people call files."""
_MEANT = frozenset(sys.stdlib_module_names) - frozenset(sys.builtin_module_names) - _HARMLESS | {
    "delta", "msgspec", "numpy", "pandas", "py4j", "pyarrow", "pyspark", "rocksdict", "stateflow",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoadedPipeline:
    """A pipeline and the file that it came from."""

    pipeline: Pipeline
    module: ModuleType
    path: Path

    @property
    def folder(self) -> Path:
        """Where the file's sibling modules are."""
        return self.path.parent

    def siblings(self) -> list[ModuleType]:
        """Modules of the file's own folder that were imported with it; workers elsewhere do not have them."""
        own = OwnFolder.of(self.path)
        return [
            module
            for name, module in list(sys.modules.items())
            if not name.startswith(MODULE_PREFIX)
            and (file := getattr(module, "__file__", None)) is not None
            and own.has(Path(file))
        ]


def load_pipeline(
    spec: str, folder: Path, revision: str = "", *, allow_non_restored_state: bool = False
) -> LoadedPipeline:
    """`orders.py:orders`, or `orders.py` when the file has one pipeline. Relative files are looked for in `folder`.

    `revision`: what the caller knows of the version of the code, such as a commit.
    """
    path, name = _split(spec, folder)
    if path.suffix != ".py":
        raise UsageError(f"{path} is not a Python file: name one that ends in .py")
    _refuse_shadows(path)
    code, own_files, own = read_code(path)
    versions = {"pipeline": f"{path.name}@sha256:{own.digest}"}
    if len(code.files) > 1:
        versions["modules"] = f"sha256:{code.digest}"
    if revision:
        versions["revision"] = revision
    with own_files.first():
        module = _module(
            path, own, own_files, UsageError, f"`stateflow check {path}` tells when the file loads"
        )
    by_variable = {
        variable: replace(
            pipeline,
            versions=versions,
            code=code,
            own_files=own_files,
            allow_non_restored_state=allow_non_restored_state,
        )
        for variable, value in vars(module).items()
        if (pipeline := _pipeline_in(value)) is not None
    }
    pipelines: dict[str, Pipeline] = {}
    for each in by_variable.values():
        other = pipelines.setdefault(each.name, each)
        if other.function is not each.function:
            raise UsageError(
                f"{path} has two pipelines {each.name!r}, the functions {other.function.__name__} and {each.function.__name__}: a job is known by the "
                "name, so give one of them another"
            )
    if not pipelines:
        raise UsageError(f"{path} has no pipeline: decorate a function of (flow) with @sf.pipeline('name')")
    names = ", ".join(sorted(pipelines))
    if not name:
        if len(pipelines) > 1:
            raise UsageError(
                f"{path} has several pipelines: name one of them, {path.name}:PIPELINE ({names})"
            )
        return LoadedPipeline(next(iter(pipelines.values())), module, path)
    pipeline = pipelines.get(name) or by_variable.get(name)
    if pipeline is None:
        raise NotFoundError(f"{path} has no pipeline {name!r}; it has: {names}")
    return LoadedPipeline(pipeline, module, path)


def _pipeline_in(value: Any) -> Pipeline | None:
    if isinstance(value, Pipeline):
        return value
    name, function = getattr(value, NAMED, None), getattr(value, "__wrapped__", None)
    return Pipeline(name, function) if isinstance(name, str) and callable(function) else None


def _refuse_shadows(path: Path) -> None:
    """UsageError for a file beside the pipeline that Spark's workers would import in the place of the module that they mean."""
    own = OwnFolder.of(path)
    for beside in sorted(path.parent.iterdir()):
        if beside.stem in _MEANT:
            shadow = beside if beside.suffix == ".py" else beside / "__init__.py"
            if shadow.is_file() and (own.has(shadow) or not _is_found(beside.stem, shadow)):
                raise UsageError(
                    f"{shadow} has the name of a module that Spark's workers import, and would get in its place: rename it, or put the pipeline into a "
                    "folder without it"
                )


def _is_found(name: str, file: Path) -> bool:
    """Whether this very file is the module that Python has, or finds: the environment itself may lie in the folder."""
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == file.resolve()


def refuse_outside(spec: str, folder: Path, allowed: Sequence[Path]) -> None:
    """Raises UsageError when FILE:PIPELINE names a file outside the allowed folders, by whatever link. Loads nothing."""
    roots = [each.resolve() for each in allowed]
    for path in (_absolute(spec.rpartition(":")[0] or spec, folder), _absolute(spec, folder)):
        if not any(path.is_relative_to(root) for root in roots):
            places = ", ".join(map(str, roots)) or "none"
            raise UsageError(f"the pipeline file {path} lies in none of the allowed folders ({places})")


def _split(spec: str, folder: Path) -> tuple[Path, str]:
    whole = _absolute(spec, folder)
    if whole.is_file():
        return whole, ""
    file, colon, name = spec.rpartition(":")
    path = _absolute(file if colon else spec, folder)
    if path.is_dir():
        raise UsageError(
            f"{path} is a folder: name the Python file in it that has the pipeline, FILE:PIPELINE"
        )
    if not path.is_file():
        raise NotFoundError(
            f"the pipeline file {path} does not exist: give FILE:PIPELINE, such as orders.py:orders"
        )
    return path, name if colon else ""


def _absolute(file: str, folder: Path) -> Path:
    return (folder / Path(file).expanduser()).resolve()


def load_functions(path: Path) -> ModuleType:
    """A file of functions that a command was given, with the modules beside it in reach, as those of a pipeline are.

    UserCodeError for one that does not load.
    """
    path = path.resolve()
    _, own_files, own = read_code(path)
    with own_files.first():
        return _module(
            path, own, own_files, UserCodeError, "run the command again once the file loads in Python"
        )


def _module(
    path: Path, own: OwnFile, beside: OwnFiles, failed: type[StateflowError], next_step: str
) -> ModuleType:
    # A name of its own: a file called `json.py` or `orders.py` must not stand in for a module of that name.
    name = f"{MODULE_PREFIX}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if not name.isidentifier():
        name = MODULE_PREFIX + name.rpartition("_")[2]
    # The classes of an earlier load find the types of their fields by the name of their module, and another thread may do so just now.
    if name in sys.modules:
        name = f"{name}_{next(_LOADS)}"
    spec = importlib.util.spec_from_file_location(name, path, loader=OwnLoader(name, str(path), own, beside))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up here while they are made.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise failed(_load_error(path, error, next_step)) from error
    return module


def _load_error(path: Path, error: BaseException, next_step: str) -> str:
    """One sentence with the place in the user's own file."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: {error.msg}; {next_step}"
    frames = traceback.extract_tb(error.__traceback__)
    folder = OwnFolder.of(path)
    own = [frame for frame in frames if folder.has(Path(frame.filename))]
    where = f"{own[-1].filename}, line {own[-1].lineno}" if own else str(path)
    if isinstance(error, StateflowError):
        return f"{where}: {error}"
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    return f"{where}: {what}; {next_step}"
