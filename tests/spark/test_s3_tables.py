"""Delta tables on S3 without another service: drivers that race, answers that get lost, stores that do not keep to a condition.

The server is moto's, which honours If-None-Match: conditional puts take turns in `tests/servers.py`. STATEFLOW_LONG=1 races longer.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.servers import Answer, ObjectServer, s3_server
from tests.spark.s3_drivers import Driver, drivers, settings

pytestmark = pytest.mark.system

APPENDS, UPSERTS, RECORDS = (100, 16, 15) if os.environ.get("STATEFLOW_LONG") else (6, 4, 3)
"""Of each driver."""
_COMMIT = re.compile(r"/_delta_log/\d{20}\.json$")


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    with s3_server() as running:
        yield running


@pytest.fixture(scope="module")
def two(server: ObjectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Driver]]:
    with drivers(2, settings(server), tmp_path_factory.mktemp("drivers")) as both:
        yield both


@pytest.fixture
def table(server: ObjectServer) -> Iterator[str]:
    yield server.new_root("tables/orders").replace("s3://", "s3a://")
    server.fault, server.heeds_conditions = None, True


def at_once(both: list[Driver], **arguments: Any) -> list[Any]:
    for driver, writer in zip(both, "ab", strict=True):
        driver.begin(**{"writer": writer, **arguments})
    return [driver.end() for driver in both]


def slow_commits(method: str, path: str) -> Answer | None:
    """Leaves time between a look at the log and the write."""
    if method == "PUT" and _COMMIT.search(path):
        time.sleep(0.3)
    return None


def first_commits_meet(both_write: threading.Barrier) -> Callable[[str, str], Answer | None]:
    """Lets nobody's first commit through before the other driver has begun to write the same one."""
    met: list[str] = []

    def wait(method: str, path: str) -> Answer | None:
        if method == "PUT" and _COMMIT.search(path) and len(met) < 2:
            met.append(path)
            with suppress(threading.BrokenBarrierError):
                both_write.wait(timeout=60)
        return slow_commits(method, path)

    return wait


@pytest.mark.timeout(900)
def test_two_drivers_that_append_to_a_table_lose_no_commit(
    two: list[Driver], server: ObjectServer, table: str
) -> None:
    assert two[0].do("open", table=table) == "opened"
    both_write = threading.Barrier(2)
    server.fault = first_commits_meet(both_write)
    assert at_once(two, op="deliver", table=table, count=APPENDS) == [["committed"] * APPENDS] * 2
    assert not both_write.broken
    assert two[0].do("rows", table=table) == [[writer, n] for writer in "ab" for n in range(APPENDS)]
    assert Counter(two[1].do("operations", table=table)) == {
        "CREATE TABLE": 1,
        "STREAMING UPDATE": 2 * APPENDS,
    }
    assert any("_last_checkpoint" in path for _, path in server.requests)
    assert any(re.search(r"_delta_log/\d{20}\.checkpoint.*parquet$", path) for _, path in server.requests)


def test_without_the_condition_they_lose_commits(two: list[Driver], server: ObjectServer, table: str) -> None:
    assert [driver.do("write_logs_as_delta_alone") for driver in two] == ["done", "done"]
    try:
        assert two[0].do("open", table=table) == "opened"
        both_write = threading.Barrier(2)
        server.fault = first_commits_meet(both_write)
        at_once(two, op="deliver", table=table, count=3)
        assert not both_write.broken
        rows = two[0].do("rows", table=table)
    finally:
        assert [driver.do("write_logs_as_jobs_do") for driver in two] == ["done", "done"]
    written = [[writer, n] for writer in "ab" for n in range(3)]
    assert rows != written
    assert all(row in written for row in rows)


def test_two_drivers_that_upsert_into_a_table_lose_no_commit(
    two: list[Driver], server: ObjectServer, table: str
) -> None:
    server.fault = slow_commits
    assert two[0].do("open", table=table, kind="upsert") == "opened"
    outcomes = at_once(two, op="deliver", table=table, count=UPSERTS, kind="upsert")
    assert outcomes == [["committed"] * UPSERTS] * 2
    assert two[0].do("rows", table=table) == [[writer, n] for writer in "ab" for n in range(1, UPSERTS, 2)]
    assert Counter(two[1].do("operations", table=table)) == {"CREATE TABLE": 1, "MERGE": 2 * UPSERTS}


def test_of_a_zombie_and_its_successor_one_commits_each_record(
    two: list[Driver], server: ObjectServer, table: str, tmp_path: Path
) -> None:
    server.fault = slow_commits
    file = str(tmp_path / "record")
    for n in range(RECORDS):
        assert two[0].do("prepare", table=table, writer="a", n=n, file=file) == "decided"
        outcomes = at_once(two, op="commit", table=table, file=file, writer="a")
        assert sorted(outcomes) == ["already", "committed"]
    assert two[0].do("rows", table=table) == [["a", n] for n in range(RECORDS)]


def test_a_commit_whose_answer_is_lost_is_neither_doubled_nor_missing(
    two: list[Driver], server: ObjectServer, table: str
) -> None:
    assert two[0].do("open", table=table) == "opened"
    lost: set[str] = set()

    def lose(method: str, path: str) -> Answer | None:
        if method == "PUT" and _COMMIT.search(path) and path not in lost:
            lost.add(path)
            return "lose"
        return None

    server.fault = lose
    assert two[0].do("deliver", table=table, writer="a", count=8) == ["committed"] * 8
    assert len(lost) == 8
    assert two[1].do("rows", table=table) == [["a", n] for n in range(8)]
    assert Counter(two[1].do("operations", table=table)) == {"CREATE TABLE": 1, "STREAMING UPDATE": 8}


def test_a_commit_that_the_store_wants_to_be_asked_for_again_is_asked_for_again(
    two: list[Driver], server: ObjectServer, table: str
) -> None:
    assert two[0].do("open", table=table) == "opened"
    refused: set[str] = set()

    def conflict(method: str, path: str) -> Answer | None:
        if method == "PUT" and _COMMIT.search(path) and path not in refused:
            refused.add(path)
            return "conflict"
        return None

    server.fault = conflict
    assert two[0].do("deliver", table=table, writer="a", count=3) == ["committed"] * 3
    assert len(refused) == 3
    assert two[0].do("rows", table=table) == [["a", n] for n in range(3)]


def test_a_store_that_does_not_keep_to_the_condition_is_refused_when_the_run_begins(
    two: list[Driver], server: ObjectServer, table: str
) -> None:
    server.heeds_conditions = False
    said = two[0].do("open", table=table)
    assert said.startswith(
        f"UsageError: exactly-once output into {table} needs commits that no other driver can overwrite"
    )
    bucket = table.split("/")[2]
    assert (
        f"the store of bucket {bucket} at {server.endpoint} does not keep to the condition of a create"
        in said
    )
    assert "spark.delta.logStore.s3a.impl=io.delta.storage.S3DynamoDBLogStore" in said
    server.heeds_conditions = True
    assert two[0].do("open", table=table) == "opened"


def test_a_client_that_was_told_to_leave_conditions_out_is_refused(two: list[Driver], table: str) -> None:
    setting = "fs.s3a.create.conditional.enabled"
    assert two[0].do("hadoop", name=setting, value="false") == "set"
    try:
        said = two[0].do("open", table=table)
    finally:
        assert two[0].do("hadoop", name=setting, value="true") == "set"
    assert "does not create files on a condition" in said
    assert setting in said


def test_a_commit_that_goes_in_several_parts_replaces_none(
    two: list[Driver], server: ObjectServer, table: str
) -> None:
    for driver in two:
        # The least that S3 takes for a part; by default they are of 64 MB.
        assert driver.do("hadoop", name="fs.s3a.multipart.size", value="5M") == "set"
        driver.do("open", table=f"{table}-other")
    commit = f"{table}/_delta_log/00000000000000000000.json"
    for driver, mark in zip(two, "xy", strict=True):
        driver.begin("create", path=commit, megabytes=6, mark=mark)
    assert sorted(driver.end() for driver in two) == [False, True]
    assert two[0].do("create", path=commit, megabytes=6, mark="z") is False
    assert any(path.endswith("00.json?uploads") for method, path in server.requests if method == "POST")
    for driver in two:
        assert driver.do("hadoop", name="fs.s3a.multipart.size", value="64M") == "set"
