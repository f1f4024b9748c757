"""The pipeline's own files: its file, the modules beside it that it imports, and what these import."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stateflow.errors import UsageError
from stateflow.pipelines.code.own_folder import OwnFolder
from stateflow.pipelines.code.parsing import parsed

_NEVER = frozenset(("__pycache__", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache"))


@dataclass
class Sources:
    """The pipeline's files by their names below its folder, and its imports from elsewhere."""

    folder: Path
    files: dict[str, Path] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    """Top-level module -> where it is first imported."""
    texts: dict[str, bytes] = field(default_factory=dict)
    """What was read of Python files, by their names."""
    again: bool = False
    """Whether a module beside it imports the file itself, which a process knows under a private name."""
    optional: dict[str, str] = field(default_factory=dict)
    """Modules that the code works without: imported in a `try` that catches ImportError, or only for type checkers."""


def sources(file: Path, *, broken: bool = False) -> Sources:
    """Reads the imports from the source text, also those inside functions. It runs no code.

    UsageError for a file that is no Python. With `broken` such a file imports nothing.
    """
    result = Sources(file.parent)
    folder = OwnFolder.of(file)
    queue = [file]
    known: dict[str, bool] = {}
    while queue:
        path = queue.pop()
        name = path.relative_to(result.folder).as_posix()
        if name in result.files:
            continue
        result.files[name] = path
        if path.suffix != ".py" or (text := _text(path, broken)) is None:
            continue
        result.texts[name] = text
        for module, line, needed in _imports(text, path, broken):
            if module not in known:
                beside = list(_beside(folder, module))
                queue += beside
                result.again = result.again or file in beside
                known[module] = bool(beside)
            if not known[module] and module not in sys.stdlib_module_names:
                (result.imports if needed else result.optional).setdefault(module, f"{name}, line {line}")
    for module in result.imports:
        result.optional.pop(module, None)
    return result


def files_below(folder: Path, *, links: bool = False) -> Iterator[Path]:
    """Every file below a folder, in a fixed order, without those of compilers, checkers and version control.

    `links`: also behind linked folders, as Python imports them.
    """
    seen = set()
    for here, folders, files in os.walk(folder, followlinks=links):
        seen.add(Path(here).resolve())
        folders[:] = sorted(
            name
            for name in folders
            if name not in _NEVER and not (links and (Path(here) / name).resolve() in seen)
        )
        for name in sorted(files):
            if not name.endswith((".pyc", ".pyo")):
                yield Path(here) / name


def _beside(folder: OwnFolder, module: str) -> Iterator[Path]:
    """The module's file, or all files of the package with that name, since a package may read data files of its own."""
    package, path = folder.path / module, folder.path / f"{module}.py"
    # As Python chooses: a folder without this file counts only where no module has its name.
    if path.is_file() and not (package / "__init__.py").is_file():
        files = [path]
    else:
        files = list(files_below(package, links=True)) if package.is_dir() else []
    own = [file for file in files if folder.has(file)]
    if any(file.suffix == ".py" for file in own):
        yield from own


def _text(path: Path, broken: bool) -> bytes | None:
    try:
        # A pipe would be waited for, and an editor's lock is a link into nothing.
        return path.read_bytes() if path.is_file() else None
    except OSError as error:
        if broken:
            return None
        raise UsageError(
            f"{path} cannot be read ({error}); `python -m py_compile {path}` tells when it compiles"
        ) from None


def _imports(text: bytes, path: Path, broken: bool) -> Iterator[tuple[str, int, bool]]:
    """Top-level module, line, and whether the code needs it."""
    try:
        tree = parsed(text, str(path))
    except (SyntaxError, ValueError, RecursionError) as error:
        if broken:
            return
        line, problem = getattr(error, "lineno", 1), getattr(error, "msg", error)
        raise UsageError(
            f"{path}, line {line}: {problem}; `python -m py_compile {path}` tells when it compiles"
        ) from None
    optional = set(_optional_nodes(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0], node.lineno, node not in optional
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0], node.lineno, node not in optional


def _optional_nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes of imports that the code works without."""
    for node in ast.walk(tree):
        for statement in _optional_body(node):
            yield from ast.walk(statement)


def _optional_body(node: ast.AST) -> list[ast.stmt]:
    if isinstance(node, ast.Try):
        return node.body if any(_catches_import_error(handler) for handler in node.handlers) else []
    if isinstance(node, ast.If):
        return node.body if "TYPE_CHECKING" in ast.unparse(node.test) else []
    return []


def _catches_import_error(handler: ast.ExceptHandler) -> bool:
    caught = ast.unparse(handler.type) if handler.type else "Exception"
    return any(name in caught for name in ("ImportError", "ModuleNotFoundError", "Exception"))
