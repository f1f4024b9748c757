"""Imports point one way: airflow, cli -> spark -> checkpoint, state."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "stateflow"

FORBIDDEN = {
    "checkpoint": (
        "pyspark",
        "py4j",
        "delta",
        "airflow",
        "stateflow.spark",
        "stateflow.cli",
        "stateflow.airflow",
    ),
    "state": ("pyspark", "py4j", "delta", "airflow", "stateflow.spark", "stateflow.cli", "stateflow.airflow"),
    "operators": (
        "pyspark",
        "py4j",
        "delta",
        "airflow",
        "stateflow.spark",
        "stateflow.cli",
        "stateflow.airflow",
    ),
    "driver": (
        "pyspark",
        "py4j",
        "delta",
        "airflow",
        "stateflow.spark",
        "stateflow.cli",
        "stateflow.airflow",
    ),
    "spark": ("airflow", "stateflow.cli", "stateflow.airflow"),
    "cli": ("airflow", "stateflow.airflow"),
    "airflow": ("stateflow.cli",),
}
ONLY_IN = {"pyspark": ("spark",), "py4j": ("spark",), "airflow": ("airflow",)}


def imports(source: str, *, at_run_time_only: bool) -> Iterator[tuple[int, str]]:
    tree = ast.parse(source)
    skipped: set[ast.AST] = set()
    if at_run_time_only:
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                skipped.update(child for branch in node.body for child in ast.walk(branch))
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from stateflow import spark` names a package, too.
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def within(module: str, parent: str) -> bool:
    return module == parent or module.startswith(parent + ".")


def modules(package: Path = PACKAGE) -> list[Path]:
    return sorted(package.rglob("*.py"))


@pytest.mark.parametrize("room", sorted(FORBIDDEN))
def test_no_arrow_points_back(room: str) -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} imports {module}"
        for path in modules(PACKAGE / room)
        for line, module in imports(path.read_text(encoding="utf-8"), at_run_time_only=False)
        if any(within(module, forbidden) for forbidden in FORBIDDEN[room])
    ]
    assert not wrong


@pytest.mark.parametrize("library", sorted(ONLY_IN))
def test_spark_and_airflow_are_each_imported_in_one_room(library: str) -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} imports {module}"
        for path in modules()
        if path.relative_to(PACKAGE).parts[0] not in ONLY_IN[library]
        for line, module in imports(path.read_text(encoding="utf-8"), at_run_time_only=True)
        if within(module, library)
    ]
    assert not wrong


def test_private_names_stay_in_their_package() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} imports {module}"
        for path in modules()
        for line, module in imports(path.read_text(encoding="utf-8"), at_run_time_only=False)
        if within(module, "stateflow")
        and any(part.startswith("_") and not part.startswith("__") for part in module.split("."))
        and module.split(".")[1:-1][:1] != list(path.relative_to(PACKAGE).parts[:1])
    ]
    assert not wrong


def test_no_file_is_two_rooms_without_a_wall() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert not [
        f"{path.relative_to(PACKAGE)}: {count} lines" for path, count in lengths.items() if count > 500
    ]
