"""Clock, randomness and ids come in as arguments, so that a test owns time."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.parsed import nodes

PACKAGE = Path(__file__).resolve().parents[1] / "stateflow"

# What a call reads from the world. `time.perf_counter` only measures, and decides nothing.
CLOCKS = {"time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.sleep"}
DATES = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
CHANCE = ("random.", "secrets.", "uuid.uuid", "numpy.random.", "os.urandom")

ROOMS = ("format", "storage", "checkpoint", "savepoints", "state")

# Where an argument's default lives, or where nothing is decided.
ALLOWED = {
    ("checkpoint/handle.py", "time.time_ns"): "the default of `clock`",
    ("checkpoint/handle.py", "uuid.uuid4"): "the default of `ids`",
    ("checkpoint/process.py", "uuid.uuid4"): "the default of `run`",
    ("storage/cache.py", "uuid.uuid4"): "names of temporary files",
    ("storage/scratch.py", "uuid.uuid4"): "the default of `unique`, for names of folders",
    ("storage/local.py", "uuid.uuid4"): "names of temporary files",
    ("storage/whole_files.py", "uuid.uuid4"): "names of temporary files",
    ("state/backends/rocksdb.py", "time.sleep"): "waits for RocksDB's own threads",
}


def calls(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Every call by its full name: `from time import time as now` hides nothing."""
    known: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            known |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            first, dot, rest = ast.unparse(node.func).partition(".")
            yield node.lineno, known.get(first, first) + dot + rest


def reads_the_world(name: str) -> bool:
    # datetime.datetime.now and datetime.now are the same.
    return name in CLOCKS or name.removeprefix("datetime.") in DATES or name.startswith(CHANCE)


@cache
def readings(room: str) -> list[tuple[str, int, str]]:
    return [
        (str(path.relative_to(PACKAGE)), line, name)
        for path in sorted((PACKAGE / room).rglob("*.py"))
        for line, name in calls(nodes(path))
        if reads_the_world(name)
    ]


def calls_of(source: str) -> list[str]:
    return [name for _, name in calls(list(ast.walk(ast.parse(source))))]


@pytest.mark.parametrize("room", ROOMS)
def test_decisions_and_state_get_time_and_chance_as_arguments(room: str) -> None:
    wrong = [
        f"{path}:{line} calls {name}" for path, line, name in readings(room) if (path, name) not in ALLOWED
    ]
    assert not wrong


def test_no_exception_outlives_its_cause() -> None:
    found = {(path, name) for room in ROOMS for path, _, name in readings(room)}
    assert set(ALLOWED) <= found


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "from time import monotonic as tick\ntick()",
        "from datetime import datetime\ndatetime.now()",
        "import datetime as d\nd.datetime.now()",
        "import uuid\nuuid.uuid4()",
        "from uuid import uuid4\nuuid4().hex",
        "import random\nrandom.Random().random()",
        "import numpy as np\nnp.random.default_rng()",
    ],
)
def test_the_rule_sees_a_clock_by_any_name(source: str) -> None:
    assert any(map(reads_the_world, calls_of(source)))


def test_the_rule_lets_arguments_be_called() -> None:
    source = "def f(clock, new_id):\n    return clock(), new_id(), time_of(clock)"
    assert not any(map(reads_the_world, calls_of(source)))
