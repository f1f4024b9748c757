"""Which versions of a job's tables belong together, worked out from its log and theirs. The logs are made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import stateflow as sf
from stateflow.checkpoint.abandon import abandon
from stateflow.checkpoint.names import Time
from stateflow.checkpoint.statistics import CONTINUED_SLOT, HistoryLine
from stateflow.errors import DisagreementError, NotFoundError, UsageError
from stateflow.format.records import Prepared, Record
from stateflow.spark.internals.delta_log import LoggedCommit
from stateflow.spark.sinks.delta_versions import TableVersion, common_version, version_up_to
from stateflow.spark.sinks.sink_versions import abandoned_slots, undone_slots
from stateflow.spark.sources.delta_log import SourceLog, log_of
from tests.cli.conftest import Command, command, root  # noqa: F401
from tests.jobs.builder import JobBuilder
from tests.memory_store import MemoryStore
from tests.refusals.refusal import refused

APP = "stateflow/uuid/out"


def commit(version: int, slot: int | None = None, app: str = APP) -> LoggedCommit:
    return LoggedCommit(version, {app: slot} if slot is not None else {}, True, False)


LOG = [commit(6, 9), commit(5), commit(4, 7), commit(3, 5), commit(2), commit(1, 4), commit(0)]


@pytest.mark.parametrize(
    ("slot", "found"),
    [
        (9, TableVersion(6, 9)),
        (99, TableVersion(6, 9)),
        (8, TableVersion(4, 7)),
        (5, TableVersion(3, 5)),
        (4, TableVersion(1, 4)),
        (3, TableVersion(0, None)),
    ],
)
def test_the_version_of_a_slot_is_that_of_the_last_commit_up_to_it(slot: int, found: TableVersion) -> None:
    assert version_up_to(LOG, APP, slot) == found


def test_before_its_first_commit_a_sink_had_what_was_there_before_it() -> None:
    assert version_up_to(LOG, "another", 9) == TableVersion(6, None)
    assert version_up_to([commit(0, 5)], APP, 4) == TableVersion(-1, None)
    assert version_up_to(LOG[:4], APP, 4) is None


def test_a_table_of_several_sinks_has_the_output_of_all_and_of_no_later_slot() -> None:
    both = [commit(4, 6, "b"), commit(3, 5, "b"), commit(2, 5, "a"), commit(1, 4, "b"), commit(0)]
    of = [version_up_to(both, app, 5) for app in ("a", "b", "never")]
    assert common_version([each for each in of if each]) == 3
    assert common_version([TableVersion(7, None), TableVersion(4, None)]) == 4


def line(slot: int, kind: str = "checkpoint", based_on: int | None = None, **sinks: str) -> HistoryLine:
    return HistoryLine(id=slot, kind=kind, status="COMPLETED", based_on=based_on, sinks=sinks)


def test_what_was_abandoned_is_lacking_until_a_rewind_takes_it_back() -> None:
    lines = [line(1, out="committed"), line(2, out="abandoned"), line(3, out="committed", other="abandoned")]
    assert [abandoned_slots(lines, "out", slot) for slot in (1, 2, 3)] == [(), (2,), (2,)]
    rewound = [*lines, line(4, "restore", based_on=1, out="committed"), line(5, out="committed")]
    assert abandoned_slots(rewound, "out", 5) == ()
    assert abandoned_slots(rewound, "other", 5) == (3,)


def test_what_a_restore_has_undone_is_there_still_in_an_output_that_it_did_not_take_back() -> None:
    lines = [line(n, out="committed", topic="already", quiet="none") for n in (1, 2, 3)]
    lines += [line(4, "restore", based_on=1, out="committed"), line(5, out="committed", topic="committed")]
    for uid, undone in (("out", ()), ("topic", (2, 3)), ("quiet", ())):
        assert undone_slots(lines, uid, 5) == undone
    assert undone_slots(lines, "topic", 3) == ()
    # A later restore takes all of it back.
    lines += [line(6, "restore", based_on=1, out="committed", topic="committed"), line(7, topic="committed")]
    assert undone_slots(lines, "topic", 7) == ()
    # A rewind that was given up has taken nothing back.
    given_up = [
        line(1, out="committed"),
        line(2, out="committed"),
        line(3, "restore", based_on=1, out="abandoned"),
    ]
    assert undone_slots(given_up, "out", 3) == (2,)
    # State from outside has none of the job's slots.
    outside = [line(1, topic="committed"), line(2, "restore"), line(3, topic="committed")]
    assert undone_slots(outside, "topic", 3) == (1,)


def test_what_a_later_restore_has_come_back_to_is_undone_no_more() -> None:
    """As the recovery runbook does it with `tag:before-recovery-...`. Whoever took these rows out would lose them."""
    lines = [line(n, topic="committed") for n in (1, 2, 3, 4)]
    lines += [line(5, "restore", based_on=2), line(6, topic="committed")]
    assert undone_slots(lines, "topic", 6) == (3, 4)
    back = [*lines, line(7, "restore", based_on=4), line(8, topic="committed")]
    assert undone_slots(back, "topic", 8) == (6,)
    assert undone_slots(back, "topic", 4) == ()
    # A savepoint of the job itself has the state of one of its slots, too.
    saved = HistoryLine(id=7, kind="restore", status="COMPLETED", based_on=0, metrics={CONTINUED_SLOT: 3})
    assert undone_slots([*lines, saved, line(8, topic="committed")], "topic", 8) == (4, 6)


@pytest.mark.parametrize(
    "back",
    [{"based_on": 3}, {"based_on": 0, "metrics": {CONTINUED_SLOT: 3}}],
    ids=["checkpoint", "savepoint"],
)
def test_what_was_abandoned_before_the_restored_snapshot_is_lacking_still(back: dict[str, Any]) -> None:
    """A restore from the job's own savepoint notes elsewhere which slot it goes back to."""
    lines = [line(2, out="abandoned"), line(3, out="committed"), line(4, out="abandoned")]
    restored = HistoryLine(id=5, kind="restore", status="COMPLETED", sinks={"out": "committed"}, **back)
    assert abandoned_slots([*lines, restored, line(6, out="committed")], "out", 6) == (2,)


def test_the_log_of_a_table_in_a_store_is_listed_also_where_its_first_commits_are_gone() -> None:
    bucket = MemoryStore()
    for version in (3, 4):
        bucket.put(f"{version:020d}.json", b'{"txn":{"appId":"a","version":%d}}' % version)
    for other in ("00000000000000000003.checkpoint.parquet", "_last_checkpoint", "00000000000000000009.crc"):
        bucket.put(other, b"")
    log = log_of("s3a://lake/orders", bucket, lambda url: bucket)
    assert log is not None
    assert [each.version for each in log.commits()] == [4, 3]
    unlisted = SourceLog({0: b"{}", 1: b"{}"}.get)
    assert [each.version for each in unlisted.commits()] == [1, 0]


@dataclass
class Lake:
    """A job with three sinks, and the tables that they write: their commits are files here."""

    folder: Path
    job: JobBuilder
    names: tuple[str, ...] = ("bills", "log", "totals")
    versions: dict[str, int] = field(default_factory=dict)

    def path(self, sink: str) -> str:
        return str(self.folder / sink)

    def delta(self, sink: str, slot: int | None = None) -> None:
        """One commit to a sink's table; without a slot somebody else's."""
        version = self.versions[sink] = self.versions.get(sink, -1) + 1
        log = self.folder / sink / "_delta_log"
        log.mkdir(parents=True, exist_ok=True)
        actions: list[dict[str, Any]] = [{"commitInfo": {"operation": "WRITE"}}]
        if slot is not None:
            uuid = self.job.writer.job
            actions.append({"txn": {"appId": f"stateflow/{uuid}/{sink}", "version": slot}})
        (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))

    def batch(self, *sinks: str, pending: tuple[str, ...] | None = None, **fields: Any) -> Record:
        """A checkpoint with rows for these sinks; with `pending` only those of them have it yet."""
        slot, writer = self.job.writer.next_slot, self.job.writer
        prepared = {
            name: Prepared(
                kind="delta_append",
                target=self.path(name),
                prev=writer.last_commits.get(name),
                payload={"exactly_once": True},
            )
            for name in self.names
        }
        for sink in sinks if pending is None else pending:
            self.delta(sink, slot)
        return self.job.decide(
            sinks={**prepared, **fields},
            pending=pending is not None,
            outcomes={name: "committed" if name in sinks else "none" for name in (*prepared, *fields)},
        )

    def collect(self) -> None:
        """Only two checkpoints stay, and what is pinned: one more checkpoint says so, before anything goes."""
        self.job.writer.collect(2, orphans=False)
        self.batch()
        self.job.writer.collect(2, orphans=False)

    def found(self, as_of: str | int = "latest") -> dict[str, tuple[int | None, int | None]]:
        return {uid: (each.slot, each.version) for uid, each in self.asked(as_of).sinks.items()}

    def asked(self, as_of: str | int = "latest") -> Any:
        return sf.Job(str(self.folder / "root"), "orders").versions(as_of)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path, JobBuilder(str(tmp_path / "root")))
    for name in made.names:
        made.delta(name)
    return made


def test_every_sink_has_the_last_output_up_to_the_slot(lake: Lake) -> None:
    first = lake.batch("bills", "log", "totals").slot
    second = lake.batch("log", "totals").slot
    lake.delta("log")  # OPTIMIZE, say
    third = lake.batch("log").slot
    assert lake.asked().slot == third
    assert lake.found() == {"bills": (first, 1), "log": (third, 4), "totals": (second, 2)}
    assert lake.found(second) == {"bills": (first, 1), "log": (second, 2), "totals": (second, 2)}
    assert lake.found(first) == {"bills": (first, 1), "log": (first, 1), "totals": (first, 1)}


def test_a_batch_that_some_sinks_do_not_have_yet_is_in_no_answer(lake: Lake) -> None:
    first = lake.batch("bills", "log", "totals").slot
    half = lake.batch("bills", "log", "totals", pending=("log", "bills")).slot
    assert lake.asked().slot == first
    assert lake.found() == {"bills": (first, 1), "log": (first, 1), "totals": (first, 1)}
    with refused(NotFoundError, f"{half} of job 'orders'", "is decided", f"every sink has is {first}"):
        lake.found(half)
    with pytest.raises(NotFoundError, match="is not there yet"):
        lake.found(half + 1)


def test_no_more_of_a_table_s_log_is_read_than_it_takes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    slots = [lake.batch("bills", "log", "totals").slot for _ in range(6)]
    opened: list[int] = []
    commit_of = SourceLog.commit
    monkeypatch.setattr(
        SourceLog, "commit", lambda log, version: opened.append(version) or commit_of(log, version)
    )
    lake.found()
    assert set(opened) == {7, 6}  # the one after the newest, which is not there, and the newest
    opened.clear()
    lake.found(slots[3])
    assert min(opened) == 4


def test_tags_times_and_collected_checkpoints_can_be_asked_for(lake: Lake) -> None:
    slots = [lake.batch("bills", "log", "totals").slot for _ in range(5)]
    lake.job.tag(slots[1], "month")
    times = {record.slot: record.at for record in lake.job.log().chain}
    lake.collect()
    assert lake.found("tag:month")["log"] == (slots[1], 2)
    assert slots[2] not in [record.slot for record in lake.job.log().chain]
    assert lake.found(slots[2]) == dict.fromkeys(lake.names, (slots[2], 3))
    assert lake.asked(str(Time(times[slots[2]]))).slot == slots[2]
    assert lake.asked(str(Time(times[slots[2]]))).at == times[slots[2]] // 1000 * 1000
    with pytest.raises(NotFoundError, match="no checkpoint yet at 2020"):
        lake.found("2020-01-01T00:00")
    with pytest.raises(UsageError, match="names no checkpoint"):
        lake.found("s3://elsewhere")


def test_a_rewind_is_a_version_of_its_own_and_older_slots_keep_theirs(lake: Lake) -> None:
    first, second = (lake.batch("bills", "log", "totals").slot for _ in range(2))
    back = lake.job.writer.next_slot
    lake.delta("log", back)
    rewound = Prepared(
        kind="delta_rewind", target=lake.path("log"), prev=second, payload={"last_slot": first}
    )
    lake.job.decide(kind="restore", based_on=first, sinks={"log": rewound}, outcomes={"log": "committed"})
    assert lake.found() == {"bills": (second, 2), "log": (back, 3), "totals": (second, 2)}
    third = lake.batch("log").slot
    assert lake.found(third)["log"] == (third, 4)
    assert [lake.found(slot)["log"] for slot in (first, second, back)] == [(first, 1), (second, 2), (back, 3)]


def test_an_answer_names_what_was_undone_until_the_job_comes_back_to_it(lake: Lake) -> None:
    first, second = (lake.batch("bills", "log", "totals").slot for _ in range(2))
    lake.job.decide(kind="restore", based_on=first)
    assert lake.asked().sinks["log"].undone == (second,)
    lake.job.decide(kind="restore", based_on=second)
    lake.batch("log")
    assert [each.undone for each in lake.asked().sinks.values()] == [()] * 3


def gone(lake: Lake) -> str:
    lake.batch("bills", "log", "totals")
    (lake.folder / "log" / "_delta_log" / f"{1:020d}.json").unlink()
    return "no commit of slot 2 in its log"


def not_published(lake: Lake) -> str:
    first = lake.batch("bills", "log", "totals").slot
    lake.batch("bills", "log", "totals")
    log = lake.folder / "log" / "_delta_log"
    (log / "_staged_commits").mkdir()
    (log / f"{2:020d}.json").rename(log / "_staged_commits" / f"{2:020d}.b2c7.json")
    assert lake.found(first)["log"] == (first, 1), "that one is certain"
    return "its catalog may have a newer commit that is not in the table's log yet"


def without(lake: Lake, versions: Iterable[int]) -> int:
    """Takes versions out of a table's log. Gives the first slot that it had."""
    slots = [lake.batch("bills", "log", "totals").slot for _ in range(4)]
    lake.collect()
    for version in versions:
        (lake.folder / "log" / "_delta_log" / f"{version:020d}.json").unlink()
    lake.names = (*lake.names, str(slots[0]))
    return slots[0]


def tidied(lake: Lake) -> str:
    without(lake, range(4))
    return "log begins at version 4"


def made_anew(lake: Lake) -> str:
    return f"no commit up to slot {without(lake, range(1, 5))} in its log, though"


def missing(lake: Lake) -> str:
    lake.batch("bills", "log", "totals")
    (lake.folder / "log" / "_delta_log").rename(lake.folder / "away")
    return "there is no table"


def weak(lake: Lake) -> str:
    rows = Prepared(kind="delta_append", target=lake.path("log"), payload={"exactly_once": False})
    lake.batch("bills", "totals", log=rows)
    return "at least once"


def elsewhere(lake: Lake) -> str:
    rows = Prepared(kind="postgres_append", target="postgres://db/shop.public.log")
    lake.batch("bills", "totals", log=rows)
    return "it has no versions"


@pytest.mark.parametrize(
    "accident",
    [gone, not_published, tidied, made_anew, missing, weak, elsewhere],
    ids=lambda each: each.__name__,
)
def test_a_sink_without_a_version_says_why_and_is_not_read(
    lake: Lake, accident: Callable[[Lake], str]
) -> None:
    why = accident(lake)
    found = lake.asked(lake.names[-1] if lake.names[-1].isdigit() else "latest").sinks
    assert why in found["log"].why
    assert [uid for uid, each in found.items() if each.version is None] == ["log"]
    with pytest.raises(DisagreementError, match=f"sink 'log' cannot be read as it was: .*{why}"):
        found["log"].read(None)


def test_a_target_without_versions_tells_the_slot_that_it_has_by_now(lake: Lake) -> None:
    rows = Prepared(kind="postgres_append", target="postgres://db/shop.public.log")
    first, second = (lake.batch("bills", "log", "totals", log=rows).slot for _ in range(2))
    lake.batch("log", pending=(), log=rows)
    log = lake.asked(first).sinks["log"]
    assert (log.slot, log.why) == (
        first, f"it has no versions, and has slot {second} by now, perhaps slot {second + 1}",
    )  # fmt: skip


def test_a_sink_of_which_no_record_tells_any_more_is_named(lake: Lake) -> None:
    lake.batch("bills", "log", "totals")
    lake.names = ("bills", "log")
    lake.batch("bills")
    lake.collect()
    lake.batch("bills")
    found = lake.asked().sinks
    assert {uid: each.version for uid, each in found.items()} == {"bills": 3, "log": 1, "totals": None}
    assert found["totals"].why == "no record that is kept says where it writes"


def test_a_sink_says_which_batch_was_abandoned_for_it(lake: Lake) -> None:
    lake.batch("bills", "log", "totals")
    stuck = lake.batch("bills", "log", "totals", pending=("bills", "totals")).slot
    job = lake.job
    abandon(
        job.store, job.layout, stuck, owner=job.owner("another"), ids=job.ids, clock=job.clock,
        probe=lambda record: {"log": False, "bills": True, "totals": True}, reason="stuck",
    )  # fmt: skip
    found = lake.asked(stuck).sinks
    assert {uid: each.lacks for uid, each in found.items()} == {"bills": (), "log": (stuck,), "totals": ()}


def test_show_says_which_output_did_not_go_back_with_a_restore(lake: Lake, command: Command) -> None:  # noqa: F811
    rows = Prepared(kind="postgres_append", target="postgres://db/shop.public.log")
    first, second = (lake.batch("bills", "feed", feed=rows).slot for _ in range(2))
    at = ("show", "orders", "--as-of-slot", "latest", "--checkpoint-dir", lake.folder / "root")
    assert command(*at).err.rstrip().endswith("these belong together")
    lake.delta("bills", lake.job.writer.next_slot)
    back = Prepared(kind="delta_rewind", target=lake.path("bills"), payload={"last_slot": first})
    lake.job.decide(kind="restore", based_on=first, sinks={"bills": back}, outcomes={"bills": "committed"})
    said = command(*at)
    assert f"feed has slot {second} still, which a restore has undone" in said.out
    assert said.err.rstrip().endswith("these belong together, but for feed")
    told = {each["sink"]: each["undone"] for each in command(*at, "-o", "json").json["sinks"]}
    assert (told["bills"], told["feed"]) == ([], [second])


def test_show_prints_the_versions_and_lines_to_paste(lake: Lake, command: Command) -> None:  # noqa: F811
    rows = Prepared(kind="kafka_append", target="kafka://db:9092/orders")
    slot = lake.batch("bills", "log", "totals", feed=rows).slot
    at = ("--checkpoint-dir", lake.folder / "root")
    said = command("show", "orders", "--as-of-slot", "latest", *at)
    assert said.code == 0, said.err
    assert f'spark.read.format("delta").option("versionAsOf", 1).load("{lake.path("log")}")' in said.out
    assert "it has no versions" in said.out
    assert f"checkpoint {slot} of 2026-01-01" in said.err
    body = command("show", "orders", "--as-of-slot", slot, "-o", "json", *at).json
    assert body["checkpoint"] == slot
    assert {each["sink"]: each["version"] for each in body["sinks"]} == {
        "bills": 1, "feed": None, "log": 1, "totals": 1,
    }  # fmt: skip
    refused = command("show", "orders", "--as-of-slot", "latest", "--bytes", *at)
    assert (refused.code, "give one of them" in refused.err) == (2, True)
