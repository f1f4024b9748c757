"""Which commit of its Delta table a source has read last, and how often it is looked at."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stateflow.errors import DisagreementError
from stateflow.format.records import SourceState
from stateflow.spark.sources.delta_offset import DeltaOffset
from stateflow.spark.sources.detours import ways_round
from stateflow.spark.sources.leaves import LeafDescription
from stateflow.spark.sources.read_commits import ReadCommits, TableCommits, other_copy
from tests.refusals.refusal import lacking, refused

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
    copy = TableCommits("/t", "t", lambda version: b"another")
    other = other_copy(LEAF, copy, commits.noted(at(6), {}))
    assert other is not None
    said = other.sentence("sums", None)
    assert (
        lacking(said, ("restore a savepoint", "a new uid", "--allow-non-restored-state", "a second time"))
        == []
    )


def test_a_way_back_is_sound_for_every_source_that_has_read_what_is_undone() -> None:
    """Each of two tables was replaced at another time: only the older checkpoint is from before both."""

    users = replace(LEAF, uid="users", number=1)
    states: list[dict[str, SourceState]] = [{}]
    for leaf, version in ((LEAF, 1), (users, 1), (LEAF, 2), (users, 2)):
        read = {**states[-1], leaf.uid: SourceState(lines=(DeltaOffset("t", version).line(),))}
        streams = ReadCommits(cast(Any, None), [leaf], {leaf.number: TableCommits("/t", "t", Log().read)})
        states.append(streams.noted(read, states[-1]))
    found = [
        other_copy(leaf, TableCommits("/t", "t", partial(_copied, common)), states[-1])
        for leaf, common in ((LEAF, 0), (users, -1))
    ]
    checkpoints = [cast(Any, SimpleNamespace(slot=n, sources=state)) for n, state in enumerate(states)]
    for wrong, sound in ((found, 1), (found[:1], 2)):
        with refused(DisagreementError, "'orders'", f"--from checkpoint:{sound} "):
            ways_round(cast(Any, wrong), "sums", lambda: checkpoints)


def _copied(common: int, version: int) -> bytes:
    return Log().read(version) if version <= common else b"another"
