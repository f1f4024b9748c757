"""What ready-made operators hold can be asked by key: the newest row, what an open window has so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import stateflow as sf
from stateflow.errors import UsageError
from stateflow.format.keygroups import key_group
from stateflow.reading import query
from stateflow.reading.bisect import first_of_key
from stateflow.reading.files.sst import FileEntry, SstFile
from stateflow.reading.history import history_of_key
from stateflow.reading.key_state import EntriesShard, key_state
from stateflow.reading.past_states import KeyOfState, PastStates
from stateflow.reading.predicates import function
from stateflow.replay.states import state_changes
from stateflow.state.tabular import StateTable
from stateflow.testing import ColumnarHarness
from tests.jobs.queried import QueriedJob
from tests.refusals.refusal import refused

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ROWS = "user long, sku string, amount double, ts timestamp"


def harness(declare: Callable[[Any], Any], **key: Any) -> ColumnarHarness:
    @sf.pipeline("asked")
    def asked(flow: sf.Flow) -> None:
        source = flow.source("in", sf.delta("/in"), ROWS, event_time="ts", watermark="0 seconds")
        declare(source.key_by("user", **key))

    return ColumnarHarness.of(asked.build(), "op")


def reader(run: ColumnarHarness, folder: Path) -> query.StateReader:
    job = checkpointed(run, folder, "rocksdb")
    return job.reader(folder / "host")


def checkpointed(run: ColumnarHarness, folder: Path, backend: str) -> QueriedJob:
    job = QueriedJob(folder / "root", operator="op", backend=backend)
    job.states = dict(run._spec.states)
    job.checkpoint(dict(run._backend.scan(b"", b"\xff" * 8)))
    return job


def row(user: int, sku: str, amount: float, minute: int) -> dict[str, Any]:
    return {"user": user, "sku": sku, "amount": amount, "ts": NOON + timedelta(minutes=minute)}


def test_the_newest_row_of_a_key_is_put_out_when_it_changes_and_can_be_asked(tmp_path: Path) -> None:
    run = harness(lambda keyed: keyed.latest("op", queryable="prices"))
    assert run.rows(row(1, "tea", 2.0, 5), row(1, "jam", 1.0, 3), row(2, "rum", 9.0, 1)) == [
        row(1, "tea", 2.0, 5),
        row(2, "rum", 9.0, 1),
    ]
    assert run.rows(row(1, "old", 7.0, 4)) == [], "a row from before changes nothing"
    assert run.rows(row(1, "tea", 3.0, 5)) == [row(1, "tea", 3.0, 5)], (
        "of two at one time the larger is the last"
    )
    assert run._spec.states["prices"].queryable
    asked = reader(run, tmp_path)
    found = asked.get("op", "prices", 1)
    assert (found["row_sku"], found["row_amount"]) == ("tea", 3.0)
    asked.close()


def test_what_open_windows_hold_so_far_can_be_asked_by_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = harness(
        lambda keyed: keyed.window(sf.tumbling("1 minute")).aggregate(
            "op", "user long, window_start timestamp, n long, total double",
            queryable=True, n=sf.count(), total=sf.sum("amount"),
        )
    )  # fmt: skip
    for user in range(50):
        run.rows(row(user, "tea", 1.0, 0), row(user, "tea", 2.0, 0), row(user, "jam", 5.0, user % 3 + 1))
    assert run._spec.states["windows"].queryable
    asked = reader(run, tmp_path)
    assert asked.get("op", "windows", 4) == [
        {"at": NOON + timedelta(minutes=1), "n": 2, "total": 3.0},
        {"at": NOON + timedelta(minutes=3), "n": 1, "total": 5.0},
    ]
    first = asked.look_up("op", "windows", 4, limit=1)
    assert (len(first.value), first.more) == (1, True)
    assert not asked.look_up("op", "windows", 999).found
    whole = asked.get("op", "windows", 4)
    monkeypatch.setattr(query, "MOST_TIMES", 1)
    with refused(UsageError, "as a table", "`stateflow state export`"):
        asked.look_up("op", "windows", 4)
    assert asked.get("op", "windows", 4) == whole, "whoever asks for all gets all"
    asked.close()


def windows_of_two_keys(count: int) -> tuple[ColumnarHarness, int, int]:
    """So many windows of a key, and one of another key of the same key group."""
    run = harness(
        lambda keyed: keyed.window(sf.tumbling("1 minute"), lateness="30 days").aggregate(
            "op", "user long, window_start timestamp, n long", n=sf.count(),
        )
    )  # fmt: skip
    other = next(user for user in range(2, 10_000) if key_group(user, 128) == key_group(1, 128))
    run.rows(*(row(1, "tea", 1.0, minute) for minute in range(count)), row(other, "tea", 1.0, count // 2))
    return run, 1, other


@pytest.mark.parametrize("backend", ["rocksdb", "memory"])
def test_a_window_that_ends_behind_the_last_instant_hinders_no_look_up(tmp_path: Path, backend: str) -> None:
    run, mine, other = windows_of_two_keys(1)
    last = datetime.max.replace(tzinfo=UTC)
    run.rows({"user": other, "sku": "tea", "amount": 1.0, "ts": last})
    job = checkpointed(run, tmp_path, backend)
    asked = job.reader(tmp_path / "host")
    minute = {"at": NOON + timedelta(minutes=1), "n": 1}
    assert asked.get("op", "windows", mine) == [minute]
    assert asked.get("op", "windows", other) == [minute, {"at": last, "n": 1}]
    asked.close()
    table = StateTable(run._spec.key, 128, "windows", job.states["windows"])
    entries = [entry for begin, end in table.ranges(0, 127) for entry in run._backend.scan(begin, end)]
    exported = table.decode(*map(list, zip(*entries, strict=True)))
    assert list(zip(*table.encode(exported), strict=True)) == entries, "what an export wrote can be imported"


@pytest.mark.parametrize("backend", ["rocksdb", "memory"])
def test_the_past_of_a_state_ordered_by_time_is_read_once_and_not_once_per_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    run, busy, other = windows_of_two_keys(300)
    job = checkpointed(run, tmp_path, backend)
    first = job.head()
    job.checkpoint(dict(run._backend.scan(b"", b"\xff" * 8)))
    decoded: Counter[str] = Counter()
    read = SstFile.entries

    def counted(file: SstFile, begin: bytes | None = None, end: bytes | None = None) -> Iterator[FileEntry]:
        for entry in read(file, begin, end):
            decoded[file.name] += 1
            yield entry

    monkeypatch.setattr(SstFile, "entries", counted)
    monkeypatch.setattr(query, "MOST_TIMES", 250)
    records = [first, job.head()]
    for key, found, more in ((busy, 250, True), (other, 1, False)):
        decoded.clear()
        states = PastStates(job.place(tmp_path / "host"))
        history = history_of_key(records, states, KeyOfState("op", "windows", str(key)))
        (version,) = history.versions
        assert version.result is not None
        assert (len(version.result.value), version.result.more) == (found, more)
        times = [window["at"] for window in version.result.value]
        assert times == sorted(times)
        assert max(decoded.values(), default=301) <= 2 * 301, (
            "a file may be gone through for each look-up, not for each window"
        )


@pytest.mark.parametrize("backend", ["rocksdb", "memory"])
def test_a_change_behind_very_many_windows_of_a_key_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    run, busy, other = windows_of_two_keys(6)
    job = checkpointed(run, tmp_path, backend)
    for minute in (6, 7):
        run.rows(row(busy, "tea", 1.0, minute))
        job.checkpoint(dict(run._backend.scan(b"", b"\xff" * 8)))
    monkeypatch.setattr(query, "MOST_TIMES", 4)
    records = [record for record in job.log().chain if record.operators]
    asked = KeyOfState("op", "windows", str(busy))
    history = history_of_key(records, PastStates(job.place(tmp_path / "host")), asked)
    assert [version.what for version in history.versions] == ["kept", "changed", "changed"]
    found = first_of_key(
        records,
        PastStates(job.place(tmp_path / "host")),
        replace(asked, limit=None),
        function("more than six", lambda windows: windows is not None and len(windows) > 6),
        scan=False,
    )
    assert found.record is not None
    assert (found.record.slot, len(found.value), len(found.previous)) == (records[1].slot, 7, 6)
    assert not history_of_key(
        records[1:], PastStates(job.place(tmp_path / "host")), replace(asked, key=str(other), limit=1)
    ).versions[1:]
    one, two = (job.place(tmp_path / "host").reader(record) for record in records[:2])
    (windows,) = state_changes(one, two, 5)
    assert (windows.keys, windows.counts) == (2, {"different": 1})
    assert [len(windows.changes[0].before), len(windows.changes[0].after)] == [6, 7]
    one.close()
    two.close()


def test_the_state_of_a_key_with_many_windows_is_gone_through_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, busy, _ = windows_of_two_keys(300)
    reader = checkpointed(run, tmp_path, "rocksdb").reader(tmp_path / "host")
    held = key_state(reader, "op", busy, now=0, watermark=None)
    read: list[bytes] = []
    scan = EntriesShard.scan

    def counted(shard: EntriesShard, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for entry in scan(shard, begin, end):
            read.append(entry[0])
            yield entry

    monkeypatch.setattr(EntriesShard, "scan", counted)
    assert len(held.look_up("windows").value) == 300
    assert len(read) == 300
    reader.close()


def test_states_are_closed_to_those_who_ask_unless_they_opt_in() -> None:
    def opened(declare: Callable[[Any], Any], **key: Any) -> set[bool]:
        return {schema.queryable for schema in harness(declare, **key)._spec.states.values()}

    assert opened(lambda keyed: keyed.latest("op")) == {False}
    assert opened(lambda keyed: keyed.aggregate("op", "user long, n long", n=sf.count())) == {False}
    assert opened(lambda keyed: keyed.aggregate("op", "user long, n long", queryable=True, n=sf.count())) == {
        True
    }
    assert opened(lambda keyed: keyed.top("op", 3, by="amount", queryable=True)) == {True}
    code = sf.columns({"n": int}, queryable=True)
    assert opened(
        lambda keyed: keyed.process_arrow(
            "op", lambda table, state, ctx: None, state=code, output="user long"
        )
    ) == {True}


def test_the_newest_row_needs_an_order() -> None:
    @sf.pipeline("unordered")
    def unordered(flow: sf.Flow) -> None:
        flow.source("in", sf.delta("/in"), ROWS).key_by("user").latest("op")

    with refused(UsageError, "which row of a key is the last", "key_by"):
        unordered.build()
