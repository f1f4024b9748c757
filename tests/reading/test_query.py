"""Point look-ups: what user code has stored comes back, from the one shard that owns the key."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import stateflow as sf
from stateflow.errors import CorruptError, NotFoundError, UnavailableError, UsageError
from stateflow.format.encoding import prefix
from stateflow.format.instants import END_OF_TIME
from stateflow.format.keygroups import xxhash64
from stateflow.format.records import Owner, Shard
from stateflow.reading import query
from stateflow.reading.past_states import KeyOfState, PastStates
from stateflow.reading.query import StateReader, key_from_text, unknown_operator
from stateflow.reading.snapshots import checkpoint_reader
from stateflow.state.backends.openings import OpenShards
from tests.jobs.operators import operator_of
from tests.jobs.queried import NOW, Balance, Counted, QueriedJob, Row, entries_of, filled, states_of
from tests.refusals.refusal import refused
from tests.storage.scratch_folders import in_scratch

USERS = range(40)


@pytest.fixture
def job(tmp_path: Path) -> QueriedJob:
    return QueriedJob(tmp_path / "root")


@pytest.fixture
def reader(job: QueriedJob, tmp_path: Path) -> Iterator[StateReader]:
    job.checkpoint(entries_of(filled(*USERS)))
    made = job.reader(tmp_path / "host")
    yield made
    made.close()


def group_of(key: object) -> int:
    return xxhash64(key) % 128


@pytest.mark.parametrize("backend", ["rocksdb", "memory"])
def test_every_kind_of_state_comes_back_as_user_code_sees_it(tmp_path: Path, backend: str) -> None:
    job = QueriedJob(tmp_path / "root", backend=backend)
    harness = filled(*USERS)
    job.checkpoint(entries_of(harness))
    reader = job.reader(tmp_path / "host")
    for user in USERS:
        seen = harness.snapshot(user)
        for state in ("total", "secret", "items", "log", "most", "brief", "carts", "last"):
            assert reader.get("balance", state, user) == seen[state]
        assert reader.get("balance", "idle", user) == NOW + timedelta(hours=user)
        assert reader.get("balance", "mean", user) == {"_1": 1.0, "_2": 2}
        assert reader.get("balance", "items", user, "sku1") == 1
    reader.close()


def test_an_accumulator_is_called_one(reader: StateReader) -> None:
    whats = {name: reader.look_up("balance", name, 1).what for name in states_of(Balance)}
    assert whats == {
        "total": "value",
        "secret": "value",
        "items": "map",
        "log": "list",
        "most": "accumulator",
        "mean": "accumulator",
        "brief": "value",
        "carts": "map",
        "last": "list",
        "idle": "timer",
    }
    assert reader.look_up("balance", "items", 1, "sku1").what == "map entry"


def test_a_key_that_was_never_seen_has_nothing(reader: StateReader) -> None:
    for state, empty in (("total", None), ("items", {}), ("log", []), ("idle", None), ("mean", None)):
        found = reader.look_up("balance", state, 999)
        assert (found.found, found.value) == (False, empty)
    assert not reader.look_up("balance", "items", 1, "unknown").found
    assert reader.get("balance", "items", 1, "unknown") is None


def test_only_the_shard_that_owns_the_key_is_fetched(job: QueriedJob, tmp_path: Path) -> None:
    quarters = [(0, 31), (32, 63), (64, 95), (96, 127)]
    job.checkpoint(entries_of(filled(*range(2000))), quarters)
    counted = Counted()
    place = job.place(tmp_path / "host", counted)
    reader = place.reader(job.head())
    user = next(user for user in USERS if 64 <= group_of(user) <= 95)
    assert reader.get("balance", "total", user) == 1.0
    owner = job.head().operators["balance"].shards[2][0]
    stored = {ref.path: ref.size for ref in owner.files if ref.path}
    assert stored, "the shard should be large enough to have files of its own"
    assert place.cache.bytes_fetched == sum(stored.values())
    assert place.cache.misses == len(stored)
    assert counted.opened == [(64, 95)]
    for other in USERS:
        if 64 <= group_of(other) <= 95:
            reader.get("balance", "items", other)
    assert counted.opened == [(64, 95)]
    assert place.cache.bytes_fetched == sum(stored.values())
    reader.close()
    assert counted.closed == [(64, 95)]


def test_a_disk_that_is_full_is_unavailable(job: QueriedJob, tmp_path: Path) -> None:
    job.checkpoint(entries_of(filled(1)))

    def full(backend: str) -> Any:
        def open_shard(shard: Shard, directory: Path, fetch: Any) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device", str(directory))

        return open_shard

    reader = job.place(tmp_path / "host", full).reader(job.head())
    with refused(UnavailableError, str(tmp_path / "host" / "scratch"), "No space left on device"):
        reader.get("balance", "total", 1)
    reader.close()


def test_a_cache_that_a_run_has_filled_is_used(job: QueriedJob, tmp_path: Path) -> None:
    job.checkpoint(entries_of(filled(*range(2000))))
    with_it = job.place(tmp_path / "host")
    with_it.reader(job.head()).get("balance", "total", 1)
    again = job.place(tmp_path / "host")
    again.reader(job.head()).get("balance", "total", 1)
    assert again.cache.bytes_fetched == 0
    assert again.cache.hits > 0


@pytest.mark.parametrize("backend", ["rocksdb", "memory"])
def test_a_shard_that_is_physically_wider_is_trusted_within_its_range_only(
    tmp_path: Path, backend: str
) -> None:
    job = QueriedJob(tmp_path / "root", backend=backend)
    old = job.shard(entries_of(filled(*USERS)), 0, 127)
    new = job.shard(entries_of(filled(*USERS, rows=5)), 64, 127)
    # The lower half still names the file of both; the upper one has gone its own way since.
    lower = msgspec.structs.replace(old, last=63, physical_first=0, physical_last=127)
    job.record([lower, new])
    reader = job.reader(tmp_path / "host")
    for user in USERS:
        expected = 1.0 if group_of(user) < 64 else 10.0
        assert reader.get("balance", "total", user) == expected
    reader.close()


def test_a_subtask_may_own_several_shards_in_any_order(job: QueriedJob, tmp_path: Path) -> None:
    entries = entries_of(filled(*USERS))
    shards = [job.shard(entries, first, last) for first, last in ((96, 127), (0, 31), (32, 95))]
    job.record(shards)
    record = job.head()
    owner = msgspec.structs.replace(record.operators["balance"], shards=(tuple(shards),))
    reader = job.reader(tmp_path / "host", msgspec.structs.replace(record, operators={"balance": owner}))
    assert [reader.get("balance", "total", user) for user in USERS] == [1.0] * len(USERS)
    reader.close()


def test_a_key_group_that_nobody_owns_is_corruption(job: QueriedJob, tmp_path: Path) -> None:
    job.record([job.shard({}, 0, 0)])
    reader = job.reader(tmp_path / "host")
    user = next(user for user in USERS if group_of(user) > 0)
    with refused(CorruptError, f"key group {group_of(user)}"):
        reader.get("balance", "total", user)


def test_an_empty_shard_is_not_opened(job: QueriedJob, tmp_path: Path) -> None:
    job.record([Shard(0, 127, "rocksdb")])
    counted = Counted()
    reader = job.reader(tmp_path / "host", counted=counted)
    assert reader.get("balance", "total", 1) is None
    assert [found.value for found in reader.look_up_many("balance", "items", [1, 2])] == [{}, {}]
    assert counted.opened == []


@pytest.mark.parametrize("backend", ["rocksdb", "memory"])
def test_what_has_expired_is_hidden_as_it_is_from_user_code(tmp_path: Path, backend: str) -> None:
    job = QueriedJob(tmp_path / "root", backend=backend)
    harness = filled(1)
    harness.advance(now=timedelta(minutes=30))
    harness.rows(Row(1, "late"))
    job.checkpoint(entries_of(harness))
    reader = job.reader(tmp_path / "host")
    job.clock.forward(minutes=60)  # the first batch's hour is up at this very moment
    harness.advance(now=timedelta(minutes=30))
    assert harness.snapshot(1)["carts"] == {"late": 1}
    assert reader.get("balance", "carts", 1) == {"late": 1}
    assert reader.get("balance", "last", 1) == ["late"] == harness.snapshot(1)["last"]
    assert reader.look_up("balance", "carts", 1, limit=1).more is False
    assert reader.get("balance", "carts", 1, "sku0") is None
    assert reader.get("balance", "brief", 1) == 1
    job.clock.forward(minutes=30)
    assert not reader.look_up("balance", "brief", 1).found
    assert not reader.look_up("balance", "carts", 1).found
    assert reader.get("balance", "last", 1) == []
    assert reader.get("balance", "total", 1) == 1.0
    reader.close()


def test_without_a_ttl_in_the_declaration_nothing_expires(job: QueriedJob, tmp_path: Path) -> None:
    job.states["brief"] = msgspec.structs.replace(job.states["brief"], ttl=None)
    job.checkpoint(entries_of(filled(1)))
    job.clock.forward(days=1000)
    assert job.reader(tmp_path / "host").get("balance", "brief", 1) == 1


def test_a_ttl_in_event_time_goes_by_the_checkpoints_watermark(job: QueriedJob, tmp_path: Path) -> None:
    job.states["brief"] = msgspec.structs.replace(job.states["brief"], ttl_time="event")
    job.checkpoint(entries_of(filled(1)))
    reader = job.reader(tmp_path / "host")
    job.clock.forward(days=1000)
    over = job.clock()
    for watermark, there in ((None, True), (0, True), (over, False), (END_OF_TIME, True)):
        reader.record = msgspec.structs.replace(reader.record, watermark=watermark)
        assert reader.look_up("balance", "brief", 1).found is there
    reader.close()


@pytest.mark.parametrize("backend", ["rocksdb", "memory"])
def test_a_list_or_map_is_bounded_and_says_that_there_is_more(tmp_path: Path, backend: str) -> None:
    job = QueriedJob(tmp_path / "root", backend=backend)
    harness = sf.testing.KeyedHarness(Balance)
    harness.rows(*(Row(1, f"sku{number:03d}") for number in range(50)))
    job.checkpoint(entries_of(harness))
    reader = job.reader(tmp_path / "host")
    for state in ("items", "log"):
        exact, less = (reader.look_up("balance", state, 1, limit=limit) for limit in (50, 49))
        assert (len(exact.value), exact.more) == (50, False)
        assert (len(less.value), less.more) == (49, True)
    assert list(reader.look_up("balance", "items", 1, limit=2).value) == ["sku000", "sku001"]
    assert reader.look_up("balance", "log", 1, limit=2).value == ["sku000", "sku001"]
    assert len(reader.get("balance", "items", 1)) == 50
    reader.close()


def behind_expired_entries(job: QueriedJob) -> None:
    """Twenty entries of user 1 whose hour is up, in front of a live one."""
    harness = sf.testing.KeyedHarness(Balance)
    harness.rows(*(Row(1, f"sku{number:03d}") for number in range(20)))
    harness.advance(now=timedelta(minutes=30))
    harness.rows(Row(1, "the live one"))
    job.checkpoint(entries_of(harness))
    job.clock.forward(minutes=70)


def test_expired_entries_in_front_hide_no_live_one(
    job: QueriedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind_expired_entries(job)
    reader = job.reader(tmp_path / "host")
    monkeypatch.setattr(query, "EXPIRED_AT_ONCE", 5)
    assert reader.look_up("balance", "last", 1).value == ["the live one"]
    assert reader.look_up("balance", "carts", 1).value == {"the live one": 1}
    monkeypatch.setattr(query, "MOST_EXPIRED", 5)
    for state, nothing in (("last", []), ("carts", {})):
        found = reader.look_up("balance", state, 1)
        assert (found.found, found.value, found.more) == (False, nothing, True)
        assert len(reader.get("balance", state, 1)) == 1
        past = PastStates(job.place(tmp_path / "host")).look_up(
            job.head(),
            KeyOfState("balance", state, "1"),
            at=msgspec.structs.replace(job.head(), now=job.clock()),
        )
        assert past is not None
        assert len(past.value) == 1, "a history may not call it deleted"
    reader.close()


def test_a_map_of_one_key_ends_where_the_next_key_begins(job: QueriedJob, tmp_path: Path) -> None:
    neighbours = [user for user in range(5000) if group_of(user) == group_of(1)][:3]
    job.checkpoint(entries_of(filled(*neighbours, rows=3)))
    reader = job.reader(tmp_path / "host")
    for user in neighbours:
        assert reader.get("balance", "items", user) == {"sku0": 1, "sku1": 1, "sku2": 1}
        assert reader.get("balance", "log", user) == ["sku0", "sku1", "sku2"]
    reader.close()


def test_many_keys_are_answered_in_their_order_and_each_shard_is_visited_once(
    job: QueriedJob, tmp_path: Path
) -> None:
    harness = sf.testing.KeyedHarness(Balance)
    harness.rows(*(Row(user, "a", float(user)) for user in USERS))
    job.checkpoint(entries_of(harness))
    counted = Counted()
    # Room for one shard only: going to and fro would open them again and again.
    reader = job.reader(tmp_path / "host", counted=counted, shards=OpenShards(1))
    keys = [7, 3, 999, 3, 39, 0]
    found = reader.look_up_many("balance", "total", keys)
    assert [one.value for one in found] == [7.0, 3.0, None, 3.0, 39.0, 0.0]
    assert sorted(counted.opened) == [(0, 63), (64, 127)]
    entries = reader.look_up_many("balance", "items", keys[:3], "a")
    assert [one.value for one in entries] == [1, 1, None]
    reader.close()


class Composite(sf.KeyedProcess[tuple[str, int], Row, Row]):
    seen = sf.MapState(tuple[str, date], Decimal, queryable=True)

    def process(self, key: tuple[str, int], rows: Any, ctx: Any) -> None:
        for row in rows:
            self.seen["a", date(2026, 1, row.user)] = Decimal("1.50")


def test_composite_keys_and_map_keys(tmp_path: Path) -> None:
    job = QueriedJob(tmp_path / "root", process=Composite, key=(("sku", "str"), ("user", "int")))
    harness = sf.testing.KeyedHarness(Composite, key=("sku", "user"))
    harness.rows(Row(1, "x"), Row(2, "x,y"))
    job.checkpoint(entries_of(harness))
    reader = job.reader(tmp_path / "host")
    assert reader.get("balance", "seen", ("x", 1)) == {("a", date(2026, 1, 1)): Decimal("1.50")}
    assert reader.get("balance", "seen", ["x,y", 2], ("a", date(2026, 1, 2))) == Decimal("1.50")
    found = reader.look_up("balance", "seen", ("x", 1))
    assert found.json == {'["a","2026-01-01"]': "1.50"}
    target = reader.target("balance", "seen")
    (map_key,) = found.json
    assert reader.get(
        "balance", "seen", target.key_of_text("x,1"), target.map_key_of_text(map_key)
    ) == Decimal("1.5")
    reader.close()


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ([("k", "int")], "-42", -42),
        ([("k", "str")], '["a"]', '["a"]'),
        ([("k", "str")], "", ""),
        ([("k", "bool")], "true", True),
        ([("k", "bytes")], "YWI=", b"ab"),
        ([("k", "date")], "2026-01-31", date(2026, 1, 31)),
        ([("k", "datetime")], "2026-01-31T12:00:00+01:00", datetime(2026, 1, 31, 11, tzinfo=UTC)),
        ([("k", "decimal")], "12.50", Decimal("12.5")),
        ([("a", "str"), ("b", "int")], "x,7", ("x", 7)),
        ([("a", "str"), ("b", "int")], ' ["x,y", 7]', ("x,y", 7)),
        ([("a", "str"), ("b", "int")], '{"b": 7, "a": "x"}', ("x", 7)),
        ([("a", "date"), ("b", "decimal")], '["2026-01-31", "1.5"]', (date(2026, 1, 31), Decimal("1.5"))),
        (
            [("a", "str"), ("b", "decimal")],
            '["x", 12345678901234567.89]',
            ("x", Decimal("12345678901234567.89")),
        ),
        ([("a", "str"), ("b", "decimal")], '{"a": "x", "b": 1e2}', ("x", Decimal(100))),
    ],
)
def test_keys_as_text(key: list[tuple[str, str]], text: str, value: object) -> None:
    operator = operator_of(key=key)
    assert key_from_text(operator, text) == value


@pytest.mark.parametrize(
    ("key", "text", "says"),
    [
        (
            [("user", "int")],
            "seven",
            "key column 'user' is int, and 'seven' is not one: write a whole number",
        ),
        ([("user", "int")], "1.5", "'user' is int"),
        ([("at", "datetime")], "2026-01-31T12:00:00", "an instant with its zone"),
        ([("at", "datetime")], "5", "an instant with its zone"),
        ([("a", "str"), ("b", "int")], "x", r"does not have 2 parts: write \(a str, b int\)"),
        ([("a", "str"), ("b", "int")], "[", "is not JSON"),
        ([("a", "str"), ("b", "int")], '{"a": "x"}', "does not have 2 parts"),
        ([("a", "str"), ("b", "int")], "[1, 2]", "key column 'a' is str, and 1 is not one"),
        ([("a", "str"), ("b", "int")], '["x", 4.0]', "key column 'b' is int, and 4.0 is not one"),
        ([("a", "str"), ("b", "decimal")], '["x", 1e99999999999999999999]', "is not JSON"),
        ([("a", "str"), ("b", "int")], "[" * 100_000, r"is not JSON: write \(a str, b int\)"),
        ([("user", "int")], "9007199254740993.0", "'user' is int"),
        ([("user", "int")], "1e2", "'user' is int"),
        ([("user", "bool")], "1", "write true or false"),
        ([("user", "bool")], "True", "write true or false"),
    ],
)
def test_a_key_that_does_not_fit_is_named_with_what_would(
    key: list[tuple[str, str]], text: str, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        key_from_text(operator_of(key=key), text)


def test_a_key_of_the_wrong_type_is_refused_and_never_hashed_as_something_else(reader: StateReader) -> None:
    for wrong in (True, "1", 1.0, None, (1,)):
        with refused(UsageError, "operator 'balance'"):
            reader.get("balance", "total", wrong)


def test_a_key_of_another_width_is_hashed_as_what_was_declared(reader: StateReader) -> None:
    assert reader.get("balance", "total", np.int32(7)) == 1.0


def test_what_does_not_exist_is_named_with_what_does(reader: StateReader) -> None:
    with refused(NotFoundError, "no operator 'balnce'", "its operators are balance"):
        reader.get("balnce", "total", 1)
    with refused(NotFoundError, "no state 'totl'", "its states are brief, carts"):
        reader.get("balance", "totl", 1)
    before = msgspec.structs.replace(reader.record, operators={})
    assert "no state of any operator: it was made before the first batch" in unknown_operator(
        before, "balance"
    )
    with pytest.raises(UsageError, match="is a value state and has no map keys"):
        reader.get("balance", "total", 1, "x")
    with refused(UsageError, "the map key of state 'items'"):
        reader.get("balance", "items", 1, 5)


def test_a_missing_state_file_is_corruption_and_found_again_when_it_is_back(
    job: QueriedJob, tmp_path: Path
) -> None:
    job.checkpoint(entries_of(filled(*range(500))))
    ref = next(ref for ref in job.head().operators["balance"].shards[0][0].files if ref.path)
    body = job.store.read(ref.path)
    job.store.delete([ref.path])
    reader = job.reader(tmp_path / "host")
    user = next(user for user in USERS if group_of(user) < 64)
    with refused(CorruptError, "is missing"):
        reader.get("balance", "total", user)
    job.store.put(ref.path, body)
    assert reader.get("balance", "total", user) == 1.0
    reader.close()


def test_many_threads_read_what_one_opens(job: QueriedJob, tmp_path: Path) -> None:
    job.checkpoint(entries_of(filled(*USERS)))
    counted = Counted()
    reader = job.reader(tmp_path / "host", counted=counted)
    seen: list[tuple[float, int]] = []

    def ask() -> None:
        seen.extend(
            (reader.get("balance", "total", user), len(reader.get("balance", "items", user)))
            for user in USERS
        )

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [(1.0, 2)] * 8 * len(USERS)
    assert sorted(counted.opened) == [(0, 63), (64, 127)]
    reader.close()
    assert sorted(counted.closed) == [(0, 63), (64, 127)]
    assert in_scratch(tmp_path / "host" / "scratch") == []


def test_a_checkpoint_is_pinned_while_it_is_read(tmp_path: Path) -> None:
    job = QueriedJob(tmp_path / "root", retained=1)
    job.checkpoint(entries_of(filled(1)))
    place = job.place(tmp_path / "host")
    with checkpoint_reader(place, "orders", owner=Owner(run="me"), ids=job.ids) as reader:
        first = reader.record.slot
        assert len(job.store.list(job.layout.pins)) == 1
        for _ in range(3):
            job.checkpoint(entries_of(filled(1, 2)))
        assert first not in job.collect().removed
        assert reader.get("balance", "total", 1) == 1.0
        assert reader.get("balance", "total", 2) is None
        assert first != job.head().slot
    assert job.store.list(job.layout.pins) == []
    assert first in job.collect().removed


def test_a_checkpoint_is_chosen_by_number_tag_or_as_the_newest(job: QueriedJob, tmp_path: Path) -> None:
    from stateflow.checkpoint.pins import pin

    slots = [job.checkpoint(entries_of(filled(1, rows=rows))) for rows in (2, 3, 4)]
    pin(
        job.store,
        job.layout,
        slots[1],
        kind="tag",
        name="v1",
        owner=Owner(run="me"),
        ids=job.ids,
        clock=job.clock,
    )
    pending = job.checkpoint({}, complete=False)
    place = job.place(tmp_path / "host")

    def total(which: str) -> Any:
        with checkpoint_reader(place, "orders", which, owner=Owner(run="me"), ids=job.ids) as reader:
            return reader.get("balance", "total", 1)

    assert [total(w) for w in ("latest", str(slots[0]), f"checkpoint:{slots[0]}", "tag:v1")] == [
        6.0,
        1.0,
        1.0,
        3.0,
    ]
    for which, says in (
        ("tag:v2", "no tag 'v2'; its tags are: v1"),
        ("99", "no checkpoint 99"),
        (str(pending), "is not carried out yet"),
        (str(slots[0] - 1), "is a fence"),
    ):
        with pytest.raises(NotFoundError, match=says):
            total(which)
    with refused(UsageError, "'newest' names no checkpoint"):
        total("newest")
    with refused(NotFoundError, "there is no job 'oders'", "its jobs are: orders"):
        checkpoint_reader(place, "oders", owner=Owner(run="me"), ids=job.ids).__enter__()
    assert len(job.store.list(job.layout.pins)) == 1, "only the tag stays"


def test_a_job_without_a_checkpoint_has_nothing_to_read(job: QueriedJob, tmp_path: Path) -> None:
    with refused(NotFoundError, "no complete checkpoint yet"):
        checkpoint_reader(job.place(tmp_path), "orders", owner=Owner(run="me"), ids=job.ids).__enter__()


def test_the_bytes_of_a_look_up_are_those_of_the_layout(reader: StateReader) -> None:
    shard, full = reader.target("balance", "total").place(1)
    assert full == prefix(group_of(1), 1) + (1 + (1 << 63)).to_bytes(8, "big") + b"\0"
    assert shard == (1 if group_of(1) > 63 else 0)


@pytest.mark.parametrize("backend", ["rocksdb", "memory"])
def test_the_bytes_of_every_state_are_counted(tmp_path: Path, backend: str) -> None:
    job = QueriedJob(tmp_path / "root", backend=backend)
    entries = entries_of(filled(*USERS))
    job.checkpoint(entries)
    reader = job.reader(tmp_path / "host")
    sizes = {size.state: size for size in reader.sizes()}
    assert list(sizes) == list(states_of(Balance))
    assert (sizes["total"].entries, sizes["log"].entries, sizes["items"].entries) == (40, 80, 80)
    assert all(size.live_bytes and not size.expired_bytes for size in sizes.values())
    expiring = {name for name, size in sizes.items() if size.index_bytes}
    assert expiring == {"brief", "carts", "last", "idle"}
    whole = sum(size.live_bytes + size.index_bytes for size in sizes.values())
    assert whole == sum(len(key) + len(raw) for key, raw in entries.items())
    job.clock.forward(hours=2)
    later = {size.state: size for size in reader.sizes()}
    for name in ("brief", "carts", "last"):
        assert (later[name].live_bytes, later[name].expired_bytes) == (0, sizes[name].live_bytes)
    assert later["total"] == sizes["total"]
    reader.close()
