"""Bytes of an erased key in files where nobody can look it up any more: cut shards, deletions, claimed savepoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

import stateflow as sf
from stateflow.checkpoint.history_erasure import may_hold, spans
from stateflow.format.keygroups import key_group
from stateflow.format.layout import origin_of
from stateflow.format.records import FileRef, Prepared, Record, Shard
from stateflow.jobs.erasure import plan_erase
from stateflow.savepoints.format import claim_savepoint, read_savepoint, resolved
from stateflow.spark.task.shards import TaskShards
from stateflow.spark.task.storage import task_storage
from stateflow.state.backends.choice import open_backend
from stateflow.storage.roots import open_store
from stateflow.storage.store import Store
from tests.jobs.queried import Balance, QueriedJob, Row, entries_of
from tests.jobs.test_erasing import KEY, ME, job, options

MARK = "b7f3e1c09d5a4826-nobody-else-has-this-2f8c6e4b1d0a9375"
SOUGHT = MARK[8:-8].encode()
"""LZ4 takes the first and the last bytes of the mark for a repetition, when their neighbours happen to be one."""


def marked(users: Iterable[int] = range(1, 200)) -> dict[bytes, bytes]:
    """State in which nothing but what `KEY` has contains the mark."""
    harness = sf.testing.KeyedHarness(Balance)
    harness.rows(*(Row(user, MARK if user == KEY else f"sku{user}", 1.0) for user in users))
    return entries_of(harness)


@pytest.fixture(params=["rocksdb", "memory"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> QueriedJob:
    job = QueriedJob(tmp_path / "root", backend=request.param)
    job.checkpoint(marked())
    return job


def bearers(folder: Path) -> list[str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return [path.name for path in files if SOUGHT in path.read_bytes()]


def flat(record: Record) -> list[Shard]:
    return [shard for task in record.operators["balance"].shards for shard in task]


def opened_by_a_batch(made: QueriedJob, folder: Path, gone: tuple[bytes, ...] = ()) -> QueriedJob:
    """The job after a batch that opened every shard, and deleted these entries."""
    head = job(folder).log().head
    assert head is not None
    again = QueriedJob(folder / "root", backend=made.backend)
    after_batch(again, folder, flat(head), dict.fromkeys(gone))
    return again


def after_batch(
    made: QueriedJob, folder: Path, shards: Sequence[Shard], changes: Mapping[bytes, bytes | None]
) -> list[Shard]:
    """The shards that a batch leaves which opens each of these, and changes entries."""
    storage = task_storage(
        options(folder), str(folder / "root"), "orders", made.writer.epoch, made.writer.next_slot
    )
    new: list[Shard] = []
    for shard in shards:
        task = TaskShards((shard,), storage, open_backend(options(folder)))
        backend = task.open(0)
        backend.write(
            [each for each in changes.items() if shard.first <= int.from_bytes(each[0][:2]) <= shard.last]
        )
        task.finish(0, backend, (None, None))
        new += task.handles()
        task.close()
    made.record(new)
    return new


def erased(folder: Path) -> None:
    before = {name: found for name, found in looked_up(folder).items() if name != KEY}
    assert bearers(folder / "root" / "orders" / "shared")
    plan_erase(job(folder), str(KEY), options(folder)).apply(ME)
    assert bearers(folder / "root" / "orders") == []
    assert bearers(folder / "cache") == []
    assert looked_up(folder) == before
    assert [f.text for f in job(folder).verify(deep=True)] == []


def looked_up(folder: Path) -> dict[int, object]:
    found = {}
    reader = QueriedJob(folder / "root").reader(folder / "reading", job(folder).log().head)
    for user in (1, 2, KEY, 150):
        total = reader.look_up("balance", "total", user)
        if total.found:
            found[user] = total.value
    reader.close()
    return found


def test_the_other_pieces_of_a_shard_that_was_cut_are_written_anew(made: QueriedJob, tmp_path: Path) -> None:
    job(tmp_path).rescale(8)
    erased(tmp_path)


def test_also_when_they_have_deleted_what_is_not_theirs(made: QueriedJob, tmp_path: Path) -> None:
    job(tmp_path).rescale(8)
    opened_by_a_batch(made, tmp_path)
    assert bearers(tmp_path / "cache")
    erased(tmp_path)


@pytest.mark.parametrize("made", ["rocksdb"], indirect=True)
def test_also_when_the_history_of_the_rescale_is_lost(made: QueriedJob, tmp_path: Path) -> None:
    job(tmp_path).rescale(8)
    opened_by_a_batch(made, tmp_path)
    last = opened_by_a_batch(made, tmp_path)
    last.writer.collect(1, orphans=False)
    last.record(flat(last.head()))
    last.writer.collect(1, orphans=False)
    made.store.delete([entry.path for entry in made.store.list("orders/statistics/")])
    assert [line.kind for line in job(tmp_path).history()] == ["checkpoint"]
    assert last.head().cut == 4
    assert [f.text for f in job(tmp_path).verify(deep=True)] == []
    erased(tmp_path)


def test_also_when_a_batch_has_merged_files_without_the_deletion_of_what_is_not_theirs(
    tmp_path: Path,
) -> None:
    entries, made = marked(range(1, 2000)), QueriedJob(tmp_path / "root")
    shards = [Shard(0, 127, "rocksdb")]
    for part in range(3):
        shards = after_batch(made, tmp_path, shards, dict(sorted(entries.items())[part::3]))
    job(tmp_path).rescale(2)
    head = job(tmp_path).log().head
    assert head is not None
    few = dict(sorted(entries.items())[::200])
    after = after_batch(QueriedJob(tmp_path / "root"), tmp_path, flat(head), few)
    [other] = [shard for shard in after if not spans(shard, key_group(KEY, 128))]
    tables = [ref.path for ref in other.files if ref.path.endswith(".sst")]
    assert all(found is not None and found[1] > head.cut for found in map(origin_of, tables))
    assert {Path(path).name for path in tables} & {*bearers(tmp_path / "root" / "orders" / "shared")}
    erased(tmp_path)


def test_a_key_that_user_code_has_cleared_leaves_nothing_either(made: QueriedJob, tmp_path: Path) -> None:
    entries = marked()
    opened_by_a_batch(made, tmp_path, tuple(key for key in entries if MARK.encode() in key + entries[key]))
    plan_erase(job(tmp_path), str(KEY), options(tmp_path)).apply(ME)
    assert bearers(tmp_path / "root" / "orders") == []


def living_on_a_savepoint(made: QueriedJob, folder: Path) -> tuple[QueriedJob, Store]:
    """The job as it goes on from a savepoint of its own in `mine`, which it has claimed, and that savepoint."""
    url = job(folder).savepoint("native", options=options(folder), to=str(folder / "mine")).url
    again = QueriedJob(folder / "root", backend=made.backend)
    store = open_store(url)
    claim_savepoint(
        store, job=again.writer.job, name="orders", owner=ME, clock=again.clock, root=again.store.url
    )
    again.record(flat(resolved(read_savepoint(store), store.url)))
    return again, store


def test_a_savepoint_that_the_job_lives_on_goes_with_the_key(made: QueriedJob, tmp_path: Path) -> None:
    _, store = living_on_a_savepoint(made, tmp_path)
    assert bearers(tmp_path / "mine")
    plan_erase(job(tmp_path), str(KEY), options(tmp_path)).apply(ME)
    assert bearers(tmp_path / "mine") == bearers(tmp_path / "root" / "orders") == []
    assert store.list("") == []
    assert [f.text for f in job(tmp_path).verify(deep=True)] == []


@pytest.mark.parametrize("made", ["rocksdb"], indirect=True)
def test_what_an_earlier_erasure_has_copied_from_a_savepoint_is_written_anew(
    made: QueriedJob, tmp_path: Path
) -> None:
    again, _ = living_on_a_savepoint(made, tmp_path)
    job(tmp_path).rescale(8)
    opened_by_a_batch(again, tmp_path)
    half = key_group(KEY, 128) // 64
    other = next(user for user in range(1, 200) if key_group(user, 128) // 64 != half)
    plan_erase(job(tmp_path), str(other), options(tmp_path)).apply(ME)
    assert any("-copy-" in name for name in bearers(tmp_path / "root" / "orders"))
    assert bearers(tmp_path / "mine") == []
    erased(tmp_path)


def test_a_savepoint_that_a_moved_root_leaves_behind_is_named_with_the_key_in_it(
    made: QueriedJob, tmp_path: Path
) -> None:
    again, store = living_on_a_savepoint(made, tmp_path)
    url = store.url
    (tmp_path / "moved").mkdir()
    (tmp_path / "root").rename(tmp_path / "moved/root")
    moved = job(tmp_path / "moved")
    erased = plan_erase(moved, str(KEY), options(tmp_path / "moved")).apply(ME)
    assert bearers(tmp_path / "mine")
    assert erased.savepoints == (url,)
    assert again.store.url in erased.left[url]
    assert erased.report.savepoints == ()
    slots = moved.log().slots
    assert [slot for slot in slots if slot < erased.checkpoint] == [], "the key is in no record that waits"


def test_records_that_say_between_which_keys_an_upsert_was_go_with_the_key(
    made: QueriedJob, tmp_path: Path
) -> None:
    bounds = {"bounds": {"user": [MARK, MARK]}}
    state = dict(made.head().operators)
    for _ in range(2):
        upsert = Prepared("delta_upsert", "/data/out", made.writer.last_commits.get("out"), payload=bounds)
        made.decide(operators=state, sinks={"out": upsert}, outcomes={"out": "committed"})
    folders = sorted((tmp_path / "root" / "orders").glob("chk-*"))
    assert [len(bearers(folder)) for folder in folders][-2:] == [1, 1]
    plan_erase(job(tmp_path), str(KEY), options(tmp_path)).apply(ME)
    assert bearers(tmp_path / "root" / "orders") == []


def test_a_shard_that_was_never_cut_is_left_as_it_is(made: QueriedJob, tmp_path: Path) -> None:
    before = flat(made.head())
    plan_erase(job(tmp_path), str(KEY), options(tmp_path)).apply(ME)
    head = job(tmp_path).log().head
    assert head is not None
    assert sum(shard in before for shard in flat(head)) == len(before) - 1


def sst(slot: int, *, base: str = "", data: bytes | None = None) -> FileRef:
    path = "" if data is not None else f"orders/shared/e1-c{slot}-x.sst"
    return FileRef("000007.sst", 10, "0" * 16, path, base, data)


@pytest.mark.parametrize(
    ("shard", "cut", "verdict"),
    [
        (Shard(0, 63, "rocksdb", (sst(9),)), 0, True),
        (Shard(64, 127, "rocksdb", (sst(9),)), 0, False),
        (Shard(64, 127, "rocksdb", (sst(9),), physical_first=0, physical_last=127), 0, True),
        (Shard(64, 127, "rocksdb", (sst(9),)), 8, True),
        (Shard(64, 127, "rocksdb", (sst(9), sst(8))), 8, True),
        (Shard(64, 127, "rocksdb", (sst(9, base="file:///savepoint"),)), 8, True),
        (Shard(64, 127, "rocksdb", (sst(9, data=b"x"),)), 8, True),
        (
            Shard(64, 127, "memory", (FileRef("entries.bin", 1, "0" * 16, "orders/shared/e1-c2-x.bin"),)),
            8,
            False,
        ),
        (Shard(0, 63, "rocksdb"), 8, False),
    ],
)
def test_the_record_tells_which_shards_may_have_bytes_of_a_key_group(
    shard: Shard, cut: int, verdict: bool
) -> None:
    assert may_hold(shard, 5, cut) is verdict
