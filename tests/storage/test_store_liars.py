"""Creates that lie: one's own success as a conflict, a conflict with nothing stored, a lost answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from uuid import uuid4

import pytest

from stateflow.errors import UnavailableError, UsageError
from stateflow.storage.local import LocalStore
from stateflow.storage.objects import ObjectStore
from stateflow.storage.probe import probe, probe_root
from stateflow.storage.store import ExistsError, create_once
from tests.memory_store import Call, CrashError, MemoryStore
from tests.refusals.refusal import refused
from tests.servers import Answer, ObjectServer

PATHS = (
    "job/epochs/00000007",
    "job/chk-00000042/_pending",
    "job/chk-00000042/_metadata",
    "job/chk-00000042/_dead-a",
    "job/pins/a",
)


def test_no_state_lies_in_the_folder_of_a_delta_table(tmp_path: Path) -> None:
    """VACUUM of the table deletes what its log does not name."""
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    (tmp_path / "table" / "state").mkdir()
    for inside in ("table", "table/state/of/jobs"):
        with refused(UsageError, f"Delta table {tmp_path}/table,", "VACUUM", "outside"):
            probe(LocalStore(tmp_path / inside), lambda: uuid4().hex)
    (tmp_path / "link").symlink_to(tmp_path / "table" / "state")
    with refused(UsageError, f"Delta table {tmp_path}/table,"):
        probe(LocalStore(tmp_path / "link"), lambda: uuid4().hex)
    for spared in ("beside", "table/_checkpoints", "table/.state/of/jobs"):
        probe(LocalStore(tmp_path / spared), lambda: uuid4().hex)
    bucket = MemoryStore()
    bucket.put("_delta_log/00000000000000000000.json", b"")
    with refused(UsageError, "Delta table memory://"):
        probe(bucket, lambda: uuid4().hex)


@pytest.mark.parametrize(("verb", "word"), [("put", "overwrite"), ("delete", "delete")])
def test_a_store_that_locks_what_it_holds_is_no_checkpoint_root(verb: str, word: str) -> None:
    """A policy of a bucket may let everybody create and nobody overwrite or delete. A savepoint may lie there."""
    store = MemoryStore()

    def lock(call: Call) -> None:
        if call.verb == verb and call.path in store.snapshot():
            raise UnavailableError("locked by a policy")

    store.before = lock
    probe(store, lambda: uuid4().hex)
    with refused(UnavailableError, store.url, word, "locked by a policy", "permission"):
        probe_root(store, lambda: uuid4().hex)
    store.before = None
    store.restore({})
    probe_root(store, lambda: uuid4().hex)
    assert store.snapshot() == {}


def once(store: MemoryStore | ObjectStore, path: str, body: bytes) -> bytes:
    return create_once(store, path, body, pause=lambda _: None)


def on(verb: str, *errors: BaseException | None) -> Callable[[Call], None]:
    """A hook that raises these at the first, second, ... call of `verb`; None lets one through."""
    left = list(errors)

    def hook(call: Call) -> None:
        if call.verb == verb and left and (error := left.pop(0)):
            raise error

    return hook


@pytest.mark.parametrize("path", PATHS)
class TestEveryPathThatDecides:
    def test_ones_own_write_reported_as_a_conflict_is_ones_own(self, path: str) -> None:
        store = MemoryStore()
        store.after = on("create", ExistsError(path))
        assert once(store, path, b"mine") == b"mine"
        assert store.read(path) == b"mine"

    def test_a_conflict_with_nothing_stored_is_tried_again(self, path: str) -> None:
        store = MemoryStore()
        store.before = on("create", ExistsError(path), ExistsError(path))
        assert once(store, path, b"mine") == b"mine"
        assert store.read(path) == b"mine"

    def test_a_lost_answer_is_looked_up(self, path: str) -> None:
        store = MemoryStore()
        store.after = on("create", UnavailableError("timed out"))
        assert once(store, path, b"mine") == b"mine"
        assert [call.verb for call in store.calls] == ["create", "read"]

    def test_after_a_lost_answer_the_winner_may_be_somebody_else(self, path: str) -> None:
        store = MemoryStore()

        def other_first(call: Call) -> None:
            if call.verb == "create" and call.number == 0:
                store.put(path, b"theirs")
                raise UnavailableError("timed out")

        store.before = other_first
        assert once(store, path, b"mine") == b"theirs"

    def test_a_refused_create_is_tried_again(self, path: str) -> None:
        store = MemoryStore()
        store.before = on("create", UnavailableError("slow down"))
        assert once(store, path, b"mine") == b"mine"

    def test_what_others_created_is_returned_as_theirs(self, path: str) -> None:
        store = MemoryStore(objects={path: b"theirs"})
        assert once(store, path, b"mine") == b"theirs"

    def test_a_read_that_fails_is_not_taken_for_absence(self, path: str) -> None:
        store = MemoryStore(objects={path: b"theirs"})
        store.before = on("read", UnavailableError("slow down"))
        assert once(store, path, b"mine") == b"theirs"


def test_a_request_that_arrives_late_finds_its_own_body() -> None:
    store = MemoryStore()
    late: list[Call] = []

    def hold_back(call: Call) -> None:
        if call.verb == "create" and not late:
            late.append(call)
            raise UnavailableError("timed out")

    store.before = hold_back
    assert once(store, "job/pins/a", b"mine") == b"mine"
    with pytest.raises(ExistsError):
        store.create(late[0].path, late[0].body)
    assert store.read("job/pins/a") == b"mine"


def test_a_store_that_always_reports_a_conflict_and_holds_nothing_is_given_up() -> None:
    store = MemoryStore()
    store.before = on("create", *[ExistsError("x")] * 100)
    with refused(
        UnavailableError, "job/pins/a in memory://test", "6 attempts", "neither created nor readable"
    ):
        once(store, "job/pins/a", b"mine")
    assert store.snapshot() == {}


def test_the_last_reason_of_a_store_that_refuses_is_told() -> None:
    store = MemoryStore()
    store.before = on("create", *[UnavailableError("the disk that holds /data is full")] * 100)
    with pytest.raises(UnavailableError, match="the disk that holds /data is full"):
        once(store, "job/pins/a", b"mine")


def test_pauses_grow_between_attempts_and_none_follows_the_last() -> None:
    store = MemoryStore()
    store.before = on("create", *[ExistsError("x")] * 100)
    pauses: list[float] = []
    with pytest.raises(UnavailableError):
        create_once(store, "job/pins/a", b"mine", attempts=4, pause=pauses.append)
    assert pauses == [0.1, 0.2, 0.4]


@pytest.mark.parametrize("stored", [False, True])
def test_a_crash_is_not_survived(stored: bool) -> None:
    store = MemoryStore()
    hook = on("create", CrashError())
    store.before, store.after = (None, hook) if stored else (hook, None)
    with pytest.raises(CrashError):
        once(store, "job/pins/a", b"mine")
    assert store.snapshot() == ({"job/pins/a": b"mine"} if stored else {})


class TestTheRealClient:
    """What the S3 client makes of such answers; `create` itself is allowed to lie, `create_once` is not."""

    def fail_first_put(self, server: ObjectServer, answer: Answer) -> None:
        left = [answer]
        server.fault = lambda method, path: left.pop() if method == "PUT" and left else None

    def test_a_retried_success_comes_back_as_a_conflict_and_is_known_as_ones_own(
        self, s3: ObjectServer
    ) -> None:
        store = ObjectStore(s3.new_root("r"), s3.options)
        try:
            self.fail_first_put(s3, "lose")
            with pytest.raises(ExistsError):
                store.create("job/epochs/00000001", b"mine")
            self.fail_first_put(s3, "lose")
            assert once(store, "job/epochs/00000002", b"mine") == b"mine"
        finally:
            s3.fault = None

    def test_a_409_with_nothing_stored_ends_in_success(self, s3: ObjectServer) -> None:
        store = ObjectStore(s3.new_root("r"), s3.options)
        try:
            self.fail_first_put(s3, "conflict")
            assert once(store, "job/epochs/00000001", b"mine") == b"mine"
        finally:
            s3.fault = None
        assert store.read("job/epochs/00000001") == b"mine"

    def test_an_answer_lost_for_good_is_looked_up(self, s3: ObjectServer) -> None:
        store = ObjectStore(s3.new_root("r"), {**s3.options, "max_retries": "0"})
        try:
            self.fail_first_put(s3, "lose")
            assert once(store, "job/epochs/00000001", b"mine") == b"mine"
        finally:
            s3.fault = None


class TestTheProbe:
    def test_a_store_that_overwrites_is_refused(self, ids: Callable[[], str]) -> None:
        class Overwriting(MemoryStore):
            def create(self, path: str, body: bytes) -> None:
                self.put(path, body)

        store = Overwriting("gateway")
        with refused(UsageError, "memory://gateway", "a second create"):
            probe(store, ids)
        assert store.snapshot() == {}

    def test_a_store_that_reports_the_conflict_but_overwrites_is_refused(
        self, ids: Callable[[], str]
    ) -> None:
        class Replacing(MemoryStore):
            def create(self, path: str, body: bytes) -> None:
                taken = path in self.snapshot()
                self.put(path, body)
                if taken:
                    raise ExistsError(path)

        with refused(UsageError, "reported a conflict"):
            probe(Replacing(), ids)

    def test_a_store_that_looks_first_and_writes_after_is_refused(self, ids: Callable[[], str]) -> None:
        class Checking(MemoryStore):
            def create(self, path: str, body: bytes) -> None:
                if path in self.snapshot():
                    raise ExistsError(path)
                pause.wait(0.05)
                self.put(path, body)

        pause = Event()
        with pytest.raises(UsageError, match="creates of one path succeeded at once"):
            probe(Checking(), ids)

    def test_a_store_that_forgets_is_refused(self, ids: Callable[[], str]) -> None:
        class Forgetting(MemoryStore):
            def create(self, path: str, body: bytes) -> None:
                pass

        with refused(UsageError, "cannot be read back"):
            probe(Forgetting(), ids)

    def test_lies_that_can_be_seen_through_are_no_reason_to_refuse(self, ids: Callable[[], str]) -> None:
        store = MemoryStore()
        store.after = on("create", *[ExistsError("x")] * 3)
        probe(store, ids)

    def test_a_store_that_reports_a_conflict_and_stores_nothing_is_asked_again(
        self, ids: Callable[[], str]
    ) -> None:
        store = MemoryStore()
        store.before = on("create", ExistsError("x"), ExistsError("x"))
        probe(store, ids)

    def test_a_store_out_of_reach_is_unavailable_not_refused(self, ids: Callable[[], str]) -> None:
        store = MemoryStore()
        store.before = on("create", UnavailableError("no route"))
        with refused(UnavailableError, "no route"):
            probe(store, ids)
