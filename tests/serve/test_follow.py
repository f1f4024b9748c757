"""Following a job: what is served is pinned first, and let go when a newer checkpoint has taken over."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stateflow.checkpoint.pins import list_pins, pin
from stateflow.checkpoint.processes import note_of_process
from stateflow.errors import NotFoundError, UnavailableError
from stateflow.format.records import Owner
from stateflow.serve.follow import FollowedJob, FollowedJobs
from tests.jobs.queried import Counted, QueriedJob, entries_of, filled
from tests.memory_store import Call, MemoryStore
from tests.refusals.refusal import refused
from tests.storage.scratch_folders import in_scratch

OWNER = Owner(run="server", host="here", pid=1)


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture
def jobs(job: QueriedJob, tmp_path: Path, counted: Counted) -> Iterator[FollowedJobs]:
    made = FollowedJobs(job.place(tmp_path / "host", counted), owner=OWNER, ids=job.ids)
    yield made
    made.close()


def total(followed: FollowedJob, user: int = 1) -> Any:
    with followed.reading() as served:
        return served.reader.get("balance", "total", user)


def pinned(job: QueriedJob) -> list[int]:
    return [p.slot for p in list_pins(job.store, job.layout) if p.kind == "reader"]


def test_a_newer_checkpoint_takes_over_and_the_older_one_is_let_go(
    job: QueriedJob, jobs: FollowedJobs
) -> None:
    first = job.checkpoint(entries_of(filled(1)))
    followed = jobs.follow("orders")
    assert total(followed) == 1.0
    assert pinned(job) == [first]
    second = job.checkpoint(entries_of(filled(1, rows=3)))
    assert total(followed) == 1.0
    assert followed.refresh()
    assert total(followed) == 3.0
    assert pinned(job) == [second]
    assert not followed.refresh()


def test_what_is_served_stays_whole_while_the_job_collects(
    job: QueriedJob, jobs: FollowedJobs, counted: Counted
) -> None:
    # Large enough for files of their own, which a collection would delete.
    job.checkpoint(entries_of(filled(*range(1500))))
    followed = jobs.follow("orders")
    slot = followed.record.slot if followed.record else 0
    for _ in range(3):
        job.checkpoint(entries_of(filled(*range(1500), rows=1)))
    assert slot not in job.collect().removed
    assert [total(followed, user) for user in range(20)] == [1.0] * 20
    assert followed.refresh()
    assert slot in job.collect().removed
    assert total(followed) == 0.0
    assert (0, 63) in counted.closed


def test_a_checkpoint_that_is_being_read_is_kept_until_the_reader_is_done(
    job: QueriedJob, jobs: FollowedJobs, counted: Counted
) -> None:
    first = job.checkpoint(entries_of(filled(*range(1500))))
    followed = jobs.follow("orders")
    with followed.reading() as served:
        second = job.checkpoint(entries_of(filled(1, rows=3)))
        followed.refresh()
        assert sorted(pinned(job)) == [first, second]
        assert total(followed) == 3.0
        assert served.reader.get("balance", "total", 1) == 1.0
        assert not followed.refresh()
        assert sorted(pinned(job)) == [first, second]
    followed.refresh()
    assert pinned(job) == [second]


def test_shards_that_were_asked_for_are_open_before_the_newer_checkpoint_takes_over(
    job: QueriedJob, jobs: FollowedJobs, counted: Counted
) -> None:
    job.checkpoint(entries_of(filled(*range(40))))
    followed = jobs.follow("orders")
    total(followed)
    ((first, last),) = counted.opened
    # Rescaled meanwhile: both of the new shards have key groups of the one that was open.
    job.checkpoint(entries_of(filled(*range(40), rows=3)), [(0, 31), (32, 63), (64, 95), (96, 127)])
    followed.refresh()
    warmed = counted.opened[1:]
    assert warmed == [(first, first + 31), (last - 31, last)]
    assert total(followed) == 3.0
    assert counted.opened[1:] == warmed


def test_a_look_that_finds_nothing_new_is_one_listing_and_one_reading(tmp_path: Path) -> None:
    job = QueriedJob(tmp_path / "root")
    job.checkpoint(entries_of(filled(1)))
    body = {entry.path: job.store.read(entry.path) for entry in job.store.list("")}
    store = MemoryStore(objects=body)
    place = job.place(tmp_path / "host")
    object.__setattr__(place, "store", lambda base="": store)
    followed = FollowedJobs(place, owner=OWNER, ids=job.ids).follow("orders")
    before = len(store.calls)
    assert not followed.refresh()
    assert [call.verb for call in store.calls[before:]] == ["list", "read"]


def test_when_the_newer_one_cannot_be_opened_the_older_one_stays(
    job: QueriedJob, jobs: FollowedJobs, counted: Counted
) -> None:
    job.checkpoint(entries_of(filled(*range(1500))))
    followed = jobs.follow("orders")
    total(followed)
    second = job.checkpoint(entries_of(filled(*range(1500), rows=3)))
    files = [f for s in job.head().operators["balance"].shards for f in s[0].files if f.path]
    bodies = {f.path: job.store.read(f.path) for f in files}
    job.store.delete(bodies)
    with pytest.raises(Exception, match="is missing"):
        followed.refresh()
    assert total(followed) == 1.0
    assert second not in pinned(job)
    for path, body in bodies.items():
        job.store.put(path, body)
    assert followed.refresh(), "it is looked at again although nothing was listed anew"
    assert total(followed) == 3.0
    assert pinned(job) == [second]


def test_a_pin_that_cannot_be_released_is_released_later(tmp_path: Path) -> None:
    job = QueriedJob(tmp_path / "root")
    job.checkpoint(entries_of(filled(1)))
    store = MemoryStore(objects={entry.path: job.store.read(entry.path) for entry in job.store.list("")})
    place = job.place(tmp_path / "host")
    object.__setattr__(place, "store", lambda base="": store)
    followed = FollowedJobs(place, owner=OWNER, ids=job.ids).follow("orders")
    second = job.checkpoint(entries_of(filled(1, rows=3)))
    for entry in job.store.list(""):
        store.put(entry.path, job.store.read(entry.path))

    def away(call: Call) -> None:
        if call.verb == "delete":
            raise UnavailableError("the store is away")

    store.before = away
    assert followed.refresh()
    assert len(list_pins(store, job.layout)) == 2
    store.before = None
    followed.refresh()
    assert [p.slot for p in list_pins(store, job.layout)] == [second]


def test_closing_releases_every_pin_and_shard(
    job: QueriedJob, jobs: FollowedJobs, tmp_path: Path, counted: Counted
) -> None:
    job.checkpoint(entries_of(filled(1)))
    followed = jobs.follow("orders")
    total(followed)
    jobs.close()
    assert pinned(job) == []
    assert counted.closed == counted.opened
    assert in_scratch(tmp_path / "host" / "scratch") == []
    with pytest.raises(NotFoundError):
        followed.refresh()
    assert pinned(job) == [], "a look that comes too late pins nothing"


def test_a_job_that_is_not_there_is_looked_for_again(
    job: QueriedJob, jobs: FollowedJobs, tmp_path: Path
) -> None:
    with refused(NotFoundError, "there is no job 'clicks'"):
        jobs.follow("clicks")
    with refused(NotFoundError, "no complete checkpoint yet"):
        jobs.follow("orders")
    assert jobs.get("orders") is None
    job.checkpoint(entries_of(filled(1)))
    assert total(jobs.follow("orders")) == 1.0
    assert jobs.follow("orders") is jobs.get("orders")


def test_a_job_that_was_deleted_is_no_longer_served(job: QueriedJob, jobs: FollowedJobs) -> None:
    job.checkpoint(entries_of(filled(1)))
    followed = jobs.follow("orders")
    job.store.delete([entry.path for entry in job.store.list("orders/") if "/pins/" not in entry.path])
    with refused(NotFoundError, "there is no job 'orders'"):
        followed.refresh()
    assert followed.record is None
    assert pinned(job) == []


def test_a_job_that_was_made_anew_under_its_name_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    """Its records have the same names and the same sizes."""

    def made(ticks: int, rows: int) -> QueriedJob:
        job = QueriedJob(tmp_path / "root", run="")
        job.ticks = ticks  # other ids, as long as the others
        job.begin("run")
        job.checkpoint(entries_of(filled(1, rows=rows)))
        return job

    def listed(job: QueriedJob) -> list[tuple[str, int]]:
        return [(entry.path, entry.size) for entry in job.store.list(job.layout.log)]

    old = made(10, rows=2)
    jobs = FollowedJobs(old.place(tmp_path / "host"), owner=OWNER, ids=old.ids)
    followed, before = jobs.follow("orders"), listed(old)
    assert total(followed) == 1.0
    shutil.rmtree(tmp_path / "root" / "orders")
    new = made(50, rows=3)
    assert listed(new) == before
    assert followed.refresh()
    assert total(followed) == 3.0
    assert not followed.refresh()
    new.checkpoint(entries_of(filled(1, rows=5)))
    assert followed.refresh()
    assert total(followed) == 10.0
    assert pinned(new) == [new.head().slot]
    jobs.close()


def test_only_the_jobs_that_were_named_are_served(job: QueriedJob, tmp_path: Path) -> None:
    job.checkpoint(entries_of(filled(1)))
    jobs = FollowedJobs(job.place(tmp_path / "host"), owner=OWNER, ids=job.ids, only=["clicks"])
    assert jobs.names() == ["clicks"]
    with refused(NotFoundError, "'orders'", "start it with --job orders"):
        jobs.follow("orders")


def test_pins_of_servers_that_died_on_this_host_are_released(job: QueriedJob, jobs: FollowedJobs) -> None:
    slot = job.checkpoint(entries_of(filled(1)))

    def make(host: str, pid: int, note: str = "", kind: Any = "reader", name: str = "") -> str:
        owner = Owner(run="r", host=host, pid=pid, note=note)
        return pin(
            job.store, job.layout, slot, kind=kind, name=name, owner=owner, ids=job.ids, clock=job.clock
        ).id

    nobody = 2**22 + 1  # beyond what Linux gives
    gone = make("here", nobody)
    reused = make("here", 1, note_of_process("no such start"))
    kept = {
        make("there", nobody),
        make("here", 1),
        make("here", nobody, kind="tag", name="v1"),
    }
    assert jobs.release_stale() == 2
    assert {p.id for p in list_pins(job.store, job.layout)} == kept
    assert gone not in kept
    assert reused not in kept
