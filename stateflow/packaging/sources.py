"""The pipeline's own files: the one that was named, the modules beside it that it imports, and what they need."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stateflow.errors import UsageError
from stateflow.packaging.entries import Entry, file_entry, walked


@dataclass
class Sources:
    """Files by their names below the pipeline's folder, and imports that lead out of it."""

    folder: Path
    files: dict[str, Path] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    """Top-level module -> where it is first imported."""
    optional: dict[str, str] = field(default_factory=dict)
    """Those that the code can do without: in a `try` that catches ImportError, or for type checkers only."""

    def entries(self) -> Iterator[Entry]:
        for name, path in self.files.items():
            yield file_entry(name, path)


def sources(file: Path) -> Sources:
    """Without running anything: imports are read from the text, those inside functions, too."""
    found = Sources(file.parent)
    waiting = [file]
    while waiting:
        path = waiting.pop()
        name = path.relative_to(found.folder).as_posix()
        if name in found.files:
            continue
        found.files[name] = path
        if path.suffix != ".py":
            continue
        for module, line, needed in _imports(path):
            beside = list(_beside(found.folder, module))
            waiting += beside
            if not beside and module not in sys.stdlib_module_names:
                (found.imports if needed else found.optional).setdefault(module, f"{name}, line {line}")
    for module in found.imports:
        found.optional.pop(module, None)
    return found


def _beside(folder: Path, module: str) -> Iterator[Path]:
    """The file or the whole package of that name: what a package reads, such as templates, lies in it."""
    if (package := folder / module).is_dir():
        own = list(walked(package))
        if any(path.suffix == ".py" for path in own):
            yield from own
            return
    if (path := folder / f"{module}.py").is_file():
        yield path


def _imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """Top-level module, line, and whether the code needs it."""
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except SyntaxError as error:
        raise UsageError(f"{path}, line {error.lineno}: {error.msg}; mend the file and try again") from None
    spared = set(_spared(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0], node.lineno, node not in spared
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0], node.lineno, node not in spared


def _spared(tree: ast.Module) -> Iterator[ast.AST]:
    """What the code can do without."""
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
