"""A bucket that denies access in the middle of making and restoring savepoints, at every request in turn."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stateflow.checkpoint.pins import list_pins, pinned
from stateflow.config.options import Options
from stateflow.errors import StateflowError, UnavailableError
from stateflow.jobs.job import Job
from stateflow.jobs.savepoints import dispose_unfinished, unfinished_savepoints
from stateflow.savepoints.format import verify_savepoint
from stateflow.storage.roots import open_store
from tests.jobs.builder import options_of
from tests.jobs.made import PARAMETERS, MadeJob, made_job, orders_pipeline
from tests.jobs.snapshots import DEAD
from tests.memory_store import Call, MemoryStore, named_store
from tests.servers import ObjectServer

ELSEWHERE = {**PARAMETERS, "output": "/data/copies"}


@dataclass
class Bucket:
    """A job `orders` in a bucket that denies what it is told to."""

    server: ObjectServer
    root: str
    made: MadeJob

    def job(self, name: str = "orders") -> Job:
        return self.made.opened(name)

    def deny(self, after: int, methods: tuple[str, ...]) -> Callable[[], bool]:
        """From so many requests on; gives whether it has come to that. Heartbeats are neither counted nor denied."""
        seen, hit = 0, False

        def fault(method: str, path: str) -> Any:
            nonlocal seen, hit
            if "/control/" in path:
                return None
            seen += 1
            if seen > after and method in methods:
                hit = True
                return "deny"
            return None

        self.server.fault = fault
        return lambda: hit

    def allow(self) -> None:
        self.server.fault = None

    def options(self) -> Options:
        return self.made.options()


@pytest.fixture
def bucket(s3: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    monkeypatch.setattr("stateflow.storage.store.FIRST_PAUSE", 0.0)
    root = s3.new_root("team")
    made = made_job(root, storage_options=s3.options, folder=tmp_path)
    try:
        yield Bucket(s3, root, made)
    finally:
        s3.fault = None


WRITES, EVERYTHING = ("PUT",), ("PUT", "GET", "POST", "DELETE", "HEAD")


def refused(act: Callable[[], object]) -> bool:
    """Whether it failed: then with one sentence, and the code for a store that does not answer."""
    try:
        act()
    except StateflowError as error:
        problem = error
    else:
        return False
    assert (type(problem), problem.exit_code) == (UnavailableError, 9)
    assert "\n" not in str(problem)
    assert "denied" in str(problem) or "403" in str(problem)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("max_files", [0, 1])
def test_writes_that_are_denied_while_a_savepoint_is_made_leave_nothing(
    bucket: Bucket, max_files: int
) -> None:
    job, denied = bucket.job(), 0
    before = {e.path for e in bucket.made.store.list("")}
    for after in range(200):
        hit = bucket.deny(after, WRITES)
        denied += refused(lambda: job.savepoint(options=bucket.options(), max_files=max_files))
        bucket.allow()
        if not hit():
            break
        left = {e.path for e in bucket.made.store.list("")} - before
        # Whether `_metadata` was made is not known to somebody whose request was denied: the files stay for a clean-up.
        assert left == set() or unfinished_savepoints(job), after
        dispose_unfinished(job)
        assert {e.path for e in bucket.made.store.list("")} == before, after
    assert denied > 4
    assert not hit()
    assert list_pins(job.store, job.layout) == []


@pytest.mark.slow
def test_a_bucket_that_denies_everything_from_some_moment_on_shows_no_half_savepoint(bucket: Bucket) -> None:
    job, denied = bucket.job(), 0
    for after in range(200):
        hit = bucket.deny(after, EVERYTHING)
        to = f"{bucket.root}/elsewhere/{after}"
        denied += refused(lambda to=to: job.savepoint(options=bucket.options(), to=to))
        bucket.allow()
        store = open_store(to, bucket.server.options)
        if store.list("_metadata"):
            assert verify_savepoint(store, deep=True) == []
        for pin in list_pins(job.store, job.layout):
            assert pin.kind == "savepoint"
            job.store.delete([job.layout.pin(pin.id)])  # as gc does when the process is gone
        if not hit():
            break
    assert denied > 8
    assert not hit()


class Denial:
    """Of a store in memory and of the savepoint beside it, from some call on; heartbeats go on."""

    def __init__(self, *stores: MemoryStore) -> None:
        self.stores = stores
        self.seen, self.after, self.hit = 0, 0, False
        self.last: list[str] = []
        """What was denied."""
        self.writes = True
        self.active = False
        for store in stores:
            store.before = self._call

    def begin(self, after: int, *, writes: bool) -> None:
        self.seen, self.after, self.hit, self.last = 0, after, False, []
        self.writes, self.active = writes, True

    def end(self) -> None:
        self.active = False

    def _call(self, call: Call) -> None:
        if not self.active or "/control/" in call.path:
            return
        self.seen += 1
        if self.seen > self.after and (not self.writes or (call.writes and call.verb != "delete")):
            self.hit = True
            self.last.append(call.path)
            raise UnavailableError(f"{call.path} is denied")


@pytest.mark.parametrize(
    "writes", [True, pytest.param(False, marks=pytest.mark.system)], ids=["writes", "everything"]
)
@pytest.mark.parametrize("origin", ["savepoint", "checkpoint"])
def test_a_restore_that_copies_and_is_denied_leaves_the_job_as_it_was_or_restored(
    origin: str, writes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateflow.storage.store.FIRST_PAUSE", 0.0)
    root = f"memory://{tmp_path}"
    made_job(root)
    orders, copy = Job(root, "orders"), Job(root, "copy")
    # A restore that is denied everything cannot say that it has ended, so the next one watches it for so long.
    options = options_of(root, tmp_path, heartbeat_interval="100 ms", heartbeat_timeout="200 ms")
    place = orders.savepoint(options=options, to=f"{root}-one").url
    what = {"origin": place} if origin == "savepoint" else {"origin": "latest", "from_job": "orders"}
    stores = [named_store(url.removeprefix("memory://").strip("/")) for url in (root, place)]
    denial, before = Denial(*stores), [store.snapshot() for store in stores]
    failures = 0

    def restored() -> None:
        copy.restore(pipeline=orders_pipeline(), parameters=ELSEWHERE, options=options, **what).apply()

    for after in itertools.count():
        denial.begin(after, writes=writes)
        failures += refused(restored)
        denial.end()
        stands = copy.exists and any(record.carries_state for record in copy.log().chain)
        unclear = any(path.endswith("_pending") for path in denial.last)  # the request may still arrive
        if writes:
            assert stands or unclear or not stores[0].list("copy/shared/"), after
            assert list_pins(orders.store, orders.layout) == []
        assert stores[1].snapshot() == before[1]
        if not denial.hit:
            break
        restored()
        assert [f.text for f in copy.verify(deep=True) if f.severity == "error"] == [], after
        copy.collect(1)
        assert [f.text for f in copy.verify(deep=True)] == [], after
        stores[0].restore(before[0])
    assert failures > 6


def test_what_a_maker_left_who_was_killed_goes_with_a_clean_up_and_nothing_else_does(bucket: Bucket) -> None:
    job = bucket.job()
    kept = job.savepoint(options=bucket.options())
    half = f"{bucket.root}/_savepoints/orders/half"
    open_store(half, bucket.server.options).put(f"state/{DEAD}-000001.sst", b"state")
    bucket.made.store.put("_savepoints/orders/notes/readme.txt", b"not ours")
    assert unfinished_savepoints(job) == [half]
    with pinned(
        job.store,
        job.layout,
        4,
        kind="savepoint",
        owner=bucket.made.writer.owner,
        ids=job.new_id,
        clock=job.clock,
    ):
        assert unfinished_savepoints(job) == []  # it may be the one that is being made
    assert list(dispose_unfinished(job)) == [half]
    assert unfinished_savepoints(job) == []
    names = {e.path.split("/")[2] for e in bucket.made.store.list("_savepoints/")}
    assert names == {"notes", kept.url.rpartition("/")[2]}


def test_a_savepoint_that_is_finished_while_a_clean_up_looks_is_left_alone(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its maker lets go of its pin between the two looks of the clean-up."""
    job = bucket.job()
    store = open_store(f"{bucket.root}/_savepoints/orders/half", bucket.server.options)
    store.put(f"state/{DEAD}-000001.sst", b"state")

    def finished(*_: Any, **__: Any) -> list[Any]:
        store.create("_metadata", b"whatever")
        return []

    monkeypatch.setattr("stateflow.jobs.savepoints.list_pins", finished)
    assert unfinished_savepoints(job) == []
