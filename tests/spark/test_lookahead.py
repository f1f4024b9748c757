"""What a run would find, told from logs alone: certain answers, or none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stateflow.spark.sources.delta_log import (
    MOST_REPLAYED,
    Ahead,
    SourceLog,
    ahead,
    begins_after,
    commit_id,
    log_of,
)
from stateflow.spark.sources.delta_offset import DeltaOffset
from stateflow.storage.local import LocalStore
from tests.memory_store import MemoryStore

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ROWS = {"add": {"path": "f", "dataChange": True}}
MADE = {"metaData": {"id": "t"}}
QUIET: tuple[dict[str, Any], ...] = (
    {"commitInfo": {"operation": "OPTIMIZE"}},
    {"txn": {"appId": "a", "version": 1}},
    {"add": {"path": "g", "dataChange": False}},
    {"remove": {"path": "f", "dataChange": False}},
)


def body(*actions: Mapping[str, Any]) -> bytes:
    return b"\n".join(json.dumps(action).encode() for action in actions)


def log(*commits: tuple[Mapping[str, Any], ...], times: Mapping[int, datetime] | None = None) -> SourceLog:
    """A table whose commit N was made N hours after noon, unless `times` says otherwise."""
    files = {version: body(*actions) for version, actions in enumerate(commits)}
    at = times or {version: NOON + timedelta(hours=version) for version in files}
    return SourceLog(
        files.get, lambda: {version: int(when.timestamp() * 1000) for version, when in at.items()}
    )


THREE = ((MADE, ROWS), (ROWS,), (ROWS,))
"""Versions 0, 1 and 2."""


@pytest.mark.parametrize(
    ("version", "until", "answer"),
    [
        (3, None, Ahead.NOTHING),
        (2, None, Ahead.UNKNOWN),
        (0, None, Ahead.UNKNOWN),
        (5, None, Ahead.UNKNOWN),  # an older copy of the table was put in its place
        (3, 2, Ahead.NOTHING),
        (3, 1, Ahead.BEHIND),
        (2, 2, Ahead.UNKNOWN),
        (3, 7, Ahead.UNKNOWN),  # there is no such version yet
        (3, NOON + timedelta(hours=9), Ahead.NOTHING),
        (3, NOON + timedelta(hours=2), Ahead.NOTHING),
        (3, NOON + timedelta(hours=1, minutes=59), Ahead.BEHIND),
        (3, NOON - timedelta(hours=1), Ahead.BEHIND),
        (2, NOON + timedelta(hours=1, minutes=59), Ahead.NOTHING),
        (2, NOON + timedelta(hours=2), Ahead.UNKNOWN),
        (1, NOON + timedelta(hours=1), Ahead.UNKNOWN),
    ],
)
def test_a_position_is_compared_with_the_newest_commit_and_the_bound(
    version: int, until: int | datetime | None, answer: Ahead
) -> None:
    assert ahead(log(*THREE), DeltaOffset("t", version), until) is answer


def test_another_commit_where_one_was_read_leaves_it_to_a_run() -> None:
    position = DeltaOffset("t", 3)
    read = commit_id(log(*THREE).commit, position)
    assert ahead(log(*THREE), position, None, read) is Ahead.NOTHING
    other = log(*THREE[:2], ({"add": {"path": "another", "dataChange": True}},))
    assert ahead(other, position, None, read) is Ahead.UNKNOWN
    assert ahead(log(*THREE), position, None, "") is Ahead.NOTHING  # a record from before this was noted


@pytest.mark.parametrize(
    ("until", "answer"), [(None, Ahead.UNKNOWN), (3, Ahead.UNKNOWN), (2, Ahead.BEHIND), (1, Ahead.BEHIND)]
)
def test_a_version_that_is_read_in_part_has_more(until: int | None, answer: Ahead) -> None:
    assert ahead(log(*THREE, (ROWS,)), DeltaOffset("t", 3, index=0), until) is answer


@pytest.mark.parametrize(
    ("commits", "answer"),
    [
        (THREE, True),
        (((MADE, {"protocol": {}}), (ROWS, {"txn": {}}), (ROWS, {"commitInfo": {}})), True),
        (((MADE, ROWS), (ROWS, {"remove": {"path": "f", "dataChange": True}})), False),
        (((MADE, ROWS), QUIET), False),
        (((MADE, ROWS), ({"add": {"path": "g", "dataChange": False}},)), False),
        (
            ((MADE, ROWS), ({"add": {"path": "f", "dataChange": True, "deletionVector": {"offset": 1}}},)),
            False,
        ),
        (((MADE, ROWS), (MADE, ROWS)), False),
        (((MADE, ROWS), ({"protocol": {}}, ROWS)), False),
        (((MADE, ROWS), ({"cdc": {"path": "c"}}, ROWS)), False),
        (((MADE, ROWS), ({"somethingNew": {}},)), False),
        (((MADE, ROWS), *[(ROWS,)] * MOST_REPLAYED), False),
    ],
)
def test_a_table_adds_up_to_its_commits_when_they_only_append(
    commits: tuple[tuple[Mapping[str, Any], ...], ...], answer: bool
) -> None:
    assert log(*commits).only_appends(len(commits) - 1) is answer


def test_a_table_whose_first_commits_are_gone_does_not_add_up() -> None:
    there = log(*THREE)
    assert not SourceLog(lambda version: there.read(version) if version else None).only_appends(2)
    assert not there.only_appends(3), "a commit that is not there yet"


@pytest.mark.parametrize("until", [None, NOON + timedelta(hours=9)])
def test_a_commit_that_only_its_catalog_knows_is_for_a_run_to_find(until: datetime | None) -> None:
    for staged, answer in (((), Ahead.NOTHING), ((1, 2), Ahead.NOTHING), ((3, 3), Ahead.UNKNOWN)):
        there = replace(log(*THREE), staged=lambda staged=staged: staged)
        assert ahead(there, DeltaOffset("t", 3), until) is answer


def test_commits_without_rows_are_nothing_to_read() -> None:
    quiet = log(*THREE, QUIET, QUIET)
    assert ahead(quiet, DeltaOffset("t", 3), None) is Ahead.NOTHING
    assert ahead(quiet, DeltaOffset("t", 3), NOON + timedelta(hours=9)) is Ahead.NOTHING


@pytest.mark.parametrize(
    "action",
    [
        ROWS,
        {"remove": {"path": "f"}},
        {"cdc": {"path": "f"}},
        {"metaData": {"id": "t"}},
        {"protocol": {"minReaderVersion": 3}},
        {"something": {}},
    ],
)
def test_every_other_commit_is_for_a_run_to_judge(action: dict[str, Any]) -> None:
    assert ahead(log(*THREE, (*QUIET, action)), DeltaOffset("t", 3), None) is Ahead.UNKNOWN


def test_another_table_in_the_place_is_for_a_run_to_refuse() -> None:
    assert ahead(log(*THREE), DeltaOffset("another", 3), None) is Ahead.UNKNOWN


def test_a_table_whose_first_commits_were_tidied_away_is_compared_too() -> None:
    files = {11: body(ROWS), 12: body(ROWS)}
    times = {version: int(NOON.timestamp() * 1000) + version for version in files}
    tidied = SourceLog(files.get, lambda: times)
    assert ahead(tidied, DeltaOffset("t", 13), None) is Ahead.NOTHING
    assert ahead(tidied, DeltaOffset("t", 12), None) is Ahead.UNKNOWN
    assert ahead(tidied, DeltaOffset("t", 11), None) is Ahead.UNKNOWN


def test_a_tables_own_times_count_before_those_of_its_files() -> None:
    own = {"commitInfo": {"inCommitTimestamp": int((NOON + timedelta(hours=5)).timestamp() * 1000)}}
    timed = log((MADE, ROWS), (ROWS,), (own, ROWS))
    assert ahead(timed, DeltaOffset("t", 3), NOON + timedelta(hours=3)) is Ahead.BEHIND
    assert ahead(timed, DeltaOffset("t", 3), NOON + timedelta(hours=5)) is Ahead.NOTHING


def test_a_clock_that_went_back_is_read_as_delta_does() -> None:
    back = log(*THREE, times={0: NOON, 1: NOON + timedelta(hours=2), 2: NOON + timedelta(hours=1)})
    assert ahead(back, DeltaOffset("t", 3), NOON + timedelta(hours=1)) is Ahead.BEHIND


def test_a_store_that_tells_no_times_leaves_bounds_in_time_to_a_run() -> None:
    untimed = SourceLog({0: body(MADE, ROWS)}.get)
    assert ahead(untimed, DeltaOffset("t", 1), NOON) is Ahead.UNKNOWN
    assert ahead(untimed, DeltaOffset("t", 1), None) is Ahead.NOTHING


def test_a_table_younger_than_the_bound_is_seen() -> None:
    assert begins_after(log(*THREE), NOON - timedelta(seconds=1))
    assert not begins_after(log(*THREE), NOON)
    assert not begins_after(SourceLog({}.get), NOON)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    folder = tmp_path / "orders" / "_delta_log"
    folder.mkdir(parents=True)
    for version, actions in enumerate(THREE):
        file = folder / f"{version:020d}.json"
        file.write_bytes(body(*actions))
        at = (NOON + timedelta(hours=version)).timestamp()
        os.utime(file, (at, at))
    (folder / "00000000000000000001.checkpoint.parquet").write_bytes(b"")
    return folder.parent


@pytest.mark.parametrize("written", [str, lambda path: f"file://{path}", lambda path: f"{path}/"])
def test_the_log_of_a_local_table_is_read(
    table: Path, written: Callable[[Path], str], tmp_path: Path
) -> None:
    found = log_of(written(table), LocalStore(tmp_path), lambda url: None)
    assert found is not None
    assert ahead(found, DeltaOffset("t", 3), None) is Ahead.NOTHING
    assert ahead(found, DeltaOffset("t", 3), NOON + timedelta(hours=2)) is Ahead.NOTHING
    assert ahead(found, DeltaOffset("t", 3), NOON + timedelta(hours=1)) is Ahead.BEHIND


def test_a_table_is_read_in_the_root_s_own_bucket_and_in_no_other() -> None:
    bucket = MemoryStore()
    bucket.put("00000000000000000000.json", body(MADE, ROWS))
    opened: list[str] = []
    found = log_of("s3a://lake/orders/", bucket, lambda url: (opened.append(url), bucket)[1])
    assert found is not None
    assert opened == ["s3a://lake/orders/_delta_log"]
    assert ahead(found, DeltaOffset("t", 1), None) is Ahead.NOTHING
    assert log_of("s3a://lake/orders", bucket, lambda url: None) is None


def test_what_is_not_there_is_left_to_a_run(tmp_path: Path) -> None:
    assert log_of(str(tmp_path / "nowhere"), LocalStore(tmp_path), lambda url: None) is None
