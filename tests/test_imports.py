"""Every arrow between rooms points one way: the table in scripts/rooms.py says which."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from scripts import rooms
from scripts.rooms import GROUND, PACKAGE, PAGE, ROOMS
from tests.parsed import nodes

MODULES = rooms.modules()
FACADE = "stateflow"
LIBRARIES = {"pyspark": ("spark",), "py4j": ("spark",), "delta": ("spark",), "airflow": ("airflow",)}
"""A library, and the rooms (with those inside) that may import it."""


@cache
def imports() -> dict[str, list[tuple[int, str]]]:
    """Per module the lines and names of what it imports; the facade imports for users, and is no room."""
    return {
        name: [
            (line, target)
            for line, target in rooms.imported(path.read_text(encoding="utf-8"), MODULES.keys())
            if target != FACADE
        ]
        for name, path in MODULES.items()
        if name != FACADE
    }


@cache
def arrows() -> list[tuple[str, str, str]]:
    """`(where, room, room)` of every import between two rooms."""
    room = {name: rooms.room_of(name, path) for name, path in MODULES.items()}
    return [
        (f"{MODULES[name].relative_to(PACKAGE)}:{line}", room[name], room[target])
        for name, targets in imports().items()
        for line, target in targets
        if room[name] != room[target]
    ]


def test_every_room_is_in_the_table() -> None:
    assert {rooms.room_of(name, path) for name, path in MODULES.items() if name != FACADE} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_its_line_in_the_table_names(room: str) -> None:
    allowed = ROOMS[room].below | GROUND
    assert not [
        f"{where} imports {there}" for where, here, there in arrows() if here == room and there not in allowed
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_all_that_its_line_in_the_table_names(room: str) -> None:
    assert not ROOMS[room].below - {there for _, here, there in arrows() if here == room}


def test_rooms_have_no_circle() -> None:
    assert not rooms.circles(
        {room: entry.below | (GROUND - {room}) for room, entry in ROOMS.items() if room not in GROUND}
    )


def test_the_table_stands_from_the_ground_up() -> None:
    order = list(ROOMS)
    assert not [
        f"{room} stands below {lower}"
        for room, entry in ROOMS.items()
        for lower in entry.below
        if order.index(lower) > order.index(room)
    ]


def test_files_have_no_circle() -> None:
    assert not rooms.circles({name: {target for _, target in targets} for name, targets in imports().items()})


def test_a_circle_would_be_found() -> None:
    assert rooms.circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"e"}}) == [
        ["a", "b", "c"],
        ["e"],
    ]


def test_the_root_has_at_most_a_dozen_modules() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 12


def test_the_page_draws_the_rooms_from_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == rooms.page(), "run: python scripts/rooms.py"


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_imported_in_one_room(library: str) -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} imports {module}"
        for path in MODULES.values()
        if path.relative_to(PACKAGE).parts[0] not in LIBRARIES[library]
        for line, module in at_run_time(path)
        if module.split(".")[0] == library
    ]
    assert not wrong


@cache
def at_run_time(path: Path) -> list[tuple[int, str]]:
    """Every module that is imported when the code runs."""
    skipped: set[ast.AST] = set()
    found: list[tuple[int, str]] = []
    for node in nodes(path):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped.update(child for branch in node.body for child in ast.walk(branch))
    for node in nodes(path):
        if node not in skipped and isinstance(node, ast.Import):
            found += ((node.lineno, alias.name) for alias in node.names)
        elif node not in skipped and isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.lineno, node.module))
    return found


def test_private_names_stay_in_their_room() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} imports {module}.{name}"
        for path in MODULES.values()
        for line, module, name in names_imported(path)
        if any(part.startswith("_") and not part.startswith("__") for part in (*module.split("."), name))
        and Path(*module.split(".")[1:-1]) != path.relative_to(PACKAGE).parent
    ]
    assert not wrong


def names_imported(path: Path) -> Iterator[tuple[int, str, str]]:
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == FACADE:
            yield from ((node.lineno, node.module, alias.name) for alias in node.names)
