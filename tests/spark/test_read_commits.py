"""Which commit of its Delta table a source has read last, and how often it is looked at."""

from __future__ import annotations

from typing import Any, cast

import pytest

from stateflow.format.records import SourceState
from stateflow.spark.sources.delta_offset import DeltaOffset
from stateflow.spark.sources.leaves import LeafDescription
from stateflow.spark.sources.read_commits import ReadCommits, TableCommits
from tests.refusals.refusal import lacking

LEAF = LeafDescription("delta", "delta", "/t", {}, cast(Any, None), uid="orders")


class Log:
    def __init__(self) -> None:
        self.asked: list[int] = []

    def read(self, version: int) -> bytes:
        self.asked.append(version)
        return f"commit {version}".encode()


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def commits(log: Log) -> ReadCommits:
    return ReadCommits(cast(Any, None), [LEAF], {0: TableCommits("/t", "t", log.read)})


def at(*position: Any, **more: Any) -> dict[str, SourceState]:
    return {"orders": SourceState(lines=(DeltaOffset("t", *position, **more).line(),))}


def test_a_commit_that_is_read_in_parts_is_looked_at_once(commits: ReadCommits, log: Log) -> None:
    first = commits.noted(at(5, 0), at(5))
    second = commits.noted(at(5, 1), first)
    third = commits.noted(at(6), second)
    assert log.asked == [5]
    assert first["orders"].commits == second["orders"].commits == third["orders"].commits != {}
    assert commits.noted(at(7), third)["orders"].commits != third["orders"].commits
    assert log.asked == [5, 6]


@pytest.mark.parametrize("begins", [{"snapshot": True}, {}], ids=["at a snapshot", "at startingVersion"])
def test_what_a_run_only_begins_at_is_not_noted_as_read(
    commits: ReadCommits, log: Log, begins: dict[str, Any]
) -> None:
    begun = at(5, **begins)
    assert commits.noted(begun, begun)["orders"].commits == {}
    assert log.asked == []
    assert commits.noted(at(5, 0, **begins), begun)["orders"].commits.keys() == {"0"}
    assert log.asked == [5]


def test_another_copy_that_no_checkpoint_fits_can_be_read_anew(commits: ReadCommits) -> None:
    read = commits.noted(at(6), {})
    copy = TableCommits("/t", "t", lambda version: b"another")
    [other] = ReadCommits(cast(Any, None), [LEAF], {0: copy}).other_copies(read)
    assert "restore a savepoint" in str(other.error())
    assert lacking(str(other.error()), ("a new uid", "--allow-non-restored-state", "a second time")) == []
