"""What a reader of a table that went back does, by where it stands."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from stateflow.spark.sources.delta_offset import DeltaOffset
from stateflow.spark.sources.delta_restores import Detour, TableRestore, UndoneRead, next_step, restores_in
from stateflow.spark.sources.detours import LeafDetour
from stateflow.spark.sources.leaves import LeafDescription

# ---- which commits took the table back, and to what ----


def commit(*files: str, operation: str = "WRITE", change: bool = True, **told: Any) -> bytes:
    """`+a` adds the file a, `-a` removes it."""
    info = {"operation": operation, "operationParameters": told}
    actions: list[dict[str, Any]] = [{"commitInfo": info}]
    for file in files:
        name = "add" if file[0] == "+" else "remove"
        actions.append({name: {"path": file[1:], "dataChange": change}})
    return "\n".join(json.dumps(action) for action in actions).encode()


def found(*commits: bytes | None, first: int = 0) -> list[TableRestore]:
    log = dict(enumerate(commits))
    return restores_in(log.get, first, len(commits) - 1)


A, B, C, D = commit("+a"), commit("+b"), commit("+c"), commit("+d")
BACK_TO_1 = commit("-c", "-d", operation="RESTORE", version=1)


def test_the_version_that_came_back_is_told_by_its_files() -> None:
    assert found(A, B, C, D, BACK_TO_1) == [TableRestore(4, 1)]
    by_time = commit("-c", "-d", operation="RESTORE", timestamp="2026-01-01", version=None)
    assert found(A, B, C, D, by_time) == [TableRestore(4, 1)]


def test_maintenance_between_changes_no_rows() -> None:
    compacted = commit("-a", "-b", "+ab", operation="OPTIMIZE", change=False)
    assert found(A, B, compacted, C, commit("-c", operation="RESTORE")) == [TableRestore(4, 2)]
    # Back to before the maintenance, whose file leaves with what came after it.
    assert found(A, B, compacted, C, commit("-ab", "-c", "+a", "+b", operation="RESTORE")) == [
        TableRestore(4, 2)
    ]


def test_a_backfill_that_adds_every_file_again_moves_none() -> None:
    backfill = commit("+a", "+b", operation="ROW TRACKING BACKFILL", change=False)
    created = commit(operation="CREATE TABLE")
    emptied = commit("-a", "-b", operation="RESTORE", version=0)
    assert found(created, A, B, backfill, emptied) == [TableRestore(4, 0)]
    # What it describes anew has the same rows.
    assert found(A, B, backfill, C, commit("-c", operation="RESTORE")) == [TableRestore(4, 2)]


def test_the_second_restore_of_one_version_undoes_what_followed_the_first() -> None:
    first, second = (commit(f"-{file}", operation="RESTORE", version=0) for file in "bc")
    assert found(A, B, first, C, second) == [TableRestore(2, 0), TableRestore(4, 2)]


def test_rows_that_an_upsert_had_taken_away_come_back() -> None:
    upserted = commit("-a", "+a2", operation="MERGE")
    assert found(A, upserted, B, commit("-a2", "-b", "+a", operation="RESTORE")) == [TableRestore(3, 0)]


def test_the_same_file_with_another_deletion_vector_holds_other_rows() -> None:
    def dv(name: str, vector: str | None) -> dict[str, Any]:
        body: dict[str, Any] = {"path": "a", "dataChange": True}
        return {name: body | ({"deletionVector": {"pathOrInlineDv": vector, "offset": 1}} if vector else {})}

    def lines(*actions: dict[str, Any]) -> bytes:
        return "\n".join(map(json.dumps, actions)).encode()

    deleted = lines(dv("remove", None), dv("add", "x"))
    back = lines({"commitInfo": {"operation": "RESTORE"}}, dv("remove", "x"), dv("add", None))
    assert found(A, B, deleted, back) == [TableRestore(3, 1)]


def test_a_second_restore_may_undo_the_first() -> None:
    again = commit("+c", "-e", operation="RESTORE")
    assert found(A, B, C, commit("-c", operation="RESTORE"), commit("+e"), again) == [
        TableRestore(3, 1),
        TableRestore(5, 2),
    ]


def test_a_restore_that_moves_no_file_undoes_nothing() -> None:
    assert found(A, B, commit(operation="RESTORE", version=1)) == []


def test_rows_that_hold_the_word_are_no_restore() -> None:
    assert found(A, commit('+"RESTORE"')) == []


def test_a_log_that_begins_too_late_leaves_what_the_commit_says_of_itself() -> None:
    assert found(None, None, None, D, BACK_TO_1) == [TableRestore(4, 1)]
    assert found(None, None, None, D, commit("-c", "-d", operation="RESTORE", version="1")) == [
        TableRestore(4, 1)
    ]
    assert found(None, None, None, D, commit("-c", "-d", operation="RESTORE")) == [TableRestore(4, None)]


# ---- what the reader does ----


def at(version: int, index: int = -1, *, snapshot: bool = False) -> DeltaOffset:
    return DeltaOffset("t", version, index, snapshot)


ONE = [TableRestore(8, 3)]
"""Version 8 brought version 3 back."""
TWO = [TableRestore(8, 3), TableRestore(12, 5)]
"""Then version 12 brought version 5 back, which the first had undone."""
ROW = [TableRestore(8, 3), TableRestore(12, 10)]
"""Two that both stand."""


@pytest.mark.parametrize(
    ("position", "restores", "step"),
    [
        (at(9), ONE, None),
        (at(9, 2), ONE, None),
        (at(0), ONE, Detour(ONE[0], 3, at(9), reached=False)),
        (at(3, 4), ONE, Detour(ONE[0], 3, at(9), reached=False)),
        (at(4), ONE, Detour(ONE[0], 3, at(9), reached=True)),
        (at(4, 0), ONE, UndoneRead(ONE[0])),
        (at(5), ONE, UndoneRead(ONE[0])),
        (at(8), ONE, UndoneRead(ONE[0])),
        (at(2, 7, snapshot=True), ONE, Detour(ONE[0], 3, at(9), reached=False)),
        (at(3, snapshot=True), ONE, Detour(ONE[0], 3, at(9), reached=False)),
        (at(6, 7, snapshot=True), ONE, UndoneRead(ONE[0])),
        # The snapshot of the version that brought it back has nothing that was undone.
        (at(8, snapshot=True), ONE, None),
        (at(8, 3, snapshot=True), ONE, None),
        (at(8, snapshot=True), ROW, Detour(ROW[1], 10, at(13), reached=False)),
        # A snapshot of which nothing has been read is taken of the table as it is now.
        (at(6, snapshot=True), ONE, Detour(ONE[0], -1, at(8, snapshot=True), reached=True)),
        (at(4), [TableRestore(8, None)], UndoneRead(TableRestore(8, None))),
        # What a later restore brought back was never undone.
        (at(3), TWO, Detour(TWO[1], 5, at(13), reached=False)),
        (at(6), TWO, Detour(TWO[1], 5, at(13), reached=True)),
        (at(7), TWO, UndoneRead(TWO[1])),
        (at(9), TWO, UndoneRead(TWO[1])),
        # Of two that stand, the earlier comes first.
        (at(2), ROW, Detour(ROW[0], 3, at(9), reached=False)),
        (at(5), ROW, UndoneRead(ROW[0])),
        (at(9), ROW, Detour(ROW[1], 10, at(13), reached=False)),
        (at(12), ROW, UndoneRead(ROW[1])),
    ],
    ids=str,
)
def test_where_the_reader_goes_on(
    position: DeltaOffset, restores: list[TableRestore], step: Detour | UndoneRead | None
) -> None:
    assert next_step(position, restores) == step


def test_a_reader_that_begins_among_what_was_undone_begins_behind_it() -> None:
    assert next_step(at(5), ONE, unread=True) == Detour(ONE[0], -1, at(9), reached=True)


@pytest.mark.slow
def test_every_reader_ends_with_the_rows_of_the_table_or_is_refused() -> None:
    """Plays readers against tables that grow and go back, each from every position at every time, and from each first snapshot."""
    for seed in range(300):
        _play(seed)


def _play(seed: int) -> None:
    import random

    dice = random.Random(seed)
    log: dict[int, bytes] = {0: commit("+f0")}
    content = [frozenset({"f0"})]
    refused = read = 0
    positions: dict[int, frozenset[str]] = {0: frozenset()}
    first_snapshots = [at(0, snapshot=True)]
    for version in range(1, 14):
        if dice.random() < 0.3:
            target = content[dice.randrange(version)]
            moves = [f"-{f}" for f in content[-1] - target] + [f"+{f}" for f in target - content[-1]]
            log[version] = commit(*moves, operation="RESTORE")
            content.append(target)
        elif dice.random() < 0.2:
            again = [f"+{file}" for file in content[-1]]
            log[version] = commit(*again, operation="ROW TRACKING BACKFILL", change=False)
            content.append(content[-1])
        else:
            log[version] = commit(f"+f{version}")
            content.append(content[-1] | {f"f{version}"})
        newest = version
        for begin, rows in list(positions.items()):
            end = _read_on(log, at(begin), rows, content)
            if end is None:
                refused += 1
                continue
            read += 1
            assert end == content[newest], (seed, begin)
        first_snapshots.append(at(version, snapshot=True))
        for start in first_snapshots:
            assert _read_on(log, start, frozenset(), content) == content[newest], (seed, start)
        # A reader of this moment has read all there is.
        positions[version + 1] = content[version]


def _read_on(
    log: dict[int, bytes], position: DeltaOffset, rows: frozenset[str], content: list[frozenset[str]]
) -> frozenset[str] | None:
    taken, newest = set(rows), len(content) - 1
    for _ in range(50):
        step = next_step(position, restores_in(log.get, position.version, newest))
        if isinstance(step, UndoneRead):
            return None
        last = newest if step is None else step.through
        if position.snapshot and position.version <= last:
            taken |= content[position.version]
            position = at(position.version + 1)
        for version in range(position.version, last + 1):
            for line in log[version].splitlines():
                action = json.loads(line)
                assert "remove" not in action, "the reader met what it should have gone round"
                if "add" in action and action["add"]["dataChange"]:
                    assert action["add"]["path"] not in taken
                    taken.add(action["add"]["path"])
        if step is None:
            return frozenset(taken)
        position = step.onward
    raise AssertionError("the reader went round in circles")


@pytest.mark.parametrize(
    ("position", "kept", "read", "may_stand"),
    [
        (DeltaOffset("t", 4), 1, "the versions from 2 to 3", True),
        (DeltaOffset("t", 3), 1, "version 2", True),
        (DeltaOffset("t", 3, index=0), 2, "version 3", True),
        (DeltaOffset("t", 5, index=2, snapshot=True), 4, "version 5", False),
        (DeltaOffset("t", 4), None, "rows", True),
    ],
)
def test_what_was_read_and_undone_is_named_with_a_way_that_leaves_nothing_out(
    position: DeltaOffset, kept: int | None, read: str, may_stand: bool
) -> None:
    leaf = LeafDescription("delta", "delta", "/t", {}, cast(Any, None), uid="orders")
    step = UndoneRead(TableRestore(7, kept))
    said = LeafDetour(leaf, "/t", position, (step.restore,), step).sentence("sums", 3)
    assert f"has read {read} of" in said
    assert ("startingVersion=8" in said) is may_stand
    assert ("to read this one from its beginning" in said) is not may_stand
    assert "--from checkpoint:3 --rewind-sinks" in said
