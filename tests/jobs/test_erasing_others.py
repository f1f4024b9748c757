"""What others do while a key is erased: they make savepoints of older checkpoints, read them, and name them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import msgspec
import pytest

from stateflow.checkpoint.collection import CollectionReport
from stateflow.checkpoint.edit import Edited
from stateflow.checkpoint.pins import PinKind, list_pins, pin, release
from stateflow.checkpoint.process import this_process
from stateflow.checkpoint.writer import Writer
from stateflow.errors import BusyError, NotFoundError, UsageError
from stateflow.format.records import Owner, Pin, Savepoint
from stateflow.jobs import erasure as erasing
from stateflow.jobs import past, savepoints
from stateflow.jobs.erasure import Erased, plan_erase
from stateflow.jobs.job import Job
from stateflow.reading.past_states import KeyOfState
from stateflow.reading.snapshots import checkpoint_reader, reader_context
from stateflow.savepoints import native
from stateflow.savepoints.origin import find_origin
from stateflow.serve.follow import FollowedJob
from stateflow.spark.state_tables.snapshots import checkpoint_of
from stateflow.spark.task.storage import task_storage
from stateflow.state.backends.openings import OpenShards
from stateflow.storage.scratch import leave, named_scratch, remove_scratch
from tests.jobs.queried import QueriedJob
from tests.jobs.test_erasing import KEY, ME, job, options
from tests.jobs.test_erasing_traces import MARK, bearers, marked, opened_by_a_batch
from tests.refusals.refusal import refused
from tests.storage.scratch_folders import left_by_a_killed_process

SOMEBODY = Owner(run="somebody", user="ada", host="another")


@pytest.fixture
def made(tmp_path: Path) -> QueriedJob:
    job = QueriedJob(tmp_path / "root")
    for _ in range(2):
        job.checkpoint(marked())
    return job


def erase(folder: Path, patience: float = 10.0) -> Erased:
    given = replace(options(folder), heartbeat_timeout=timedelta(seconds=patience))
    return plan_erase(job(folder), str(KEY), given).apply(ME, takeover=True)


def pinned(folder: Path, kind: PinKind, owner: Owner = SOMEBODY) -> Pin:
    found = job(folder)
    return pin(
        found.store, found.layout, 3, kind=kind, owner=owner, ids=found.new_id, clock=found.clock,
        name="v1" if kind == "tag" else "", reason="for the archive",
    )  # fmt: skip


def before_the_first_collection(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """When the record of the erasure stands, and pins have been looked at."""
    real, acts = Job.collect, [act]

    def collect(self: Job, *given: object, **named: object) -> CollectionReport:
        while acts:
            acts.pop()()
        return real(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Job, "collect", collect)


class KilledError(BaseException):
    """Nothing catches it, as nothing survives a SIGKILL."""


@contextmanager
def killed_at(place: object, name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process dies when it calls this."""

    def killed(*given: object, **named: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(place, name, killed)
        with pytest.raises(KilledError):
            yield


@pytest.mark.parametrize("kind", ["savepoint", "fork"])
def test_while_a_copy_of_a_checkpoint_is_made_nothing_is_erased_and_its_maker_is_named(
    kind: PinKind, made: QueriedJob, tmp_path: Path
) -> None:
    kept = pinned(tmp_path, kind)
    epochs = job(tmp_path).log().epochs
    with refused(
        BusyError,
        f"{kind} by ada on another",
        "checkpoint 3",
        "for the archive",
        f"stateflow gc orders --release {kept.id}",
    ):
        erase(tmp_path)
    assert job(tmp_path).log().epochs == epochs
    assert [p.id for p in list_pins(made.store, made.layout)] == [kept.id]


def test_what_a_dead_process_of_this_host_had_pinned_is_let_go(made: QueriedJob, tmp_path: Path) -> None:
    pinned(tmp_path, "savepoint", msgspec.structs.replace(this_process(), pid=999_999_999))
    erase(tmp_path)
    assert bearers(tmp_path / "root" / "orders") == []


def test_a_savepoint_that_begins_meanwhile_is_waited_for_and_named(
    made: QueriedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on = Event(), Event()
    publish, edit = native.publish, erasing.edit

    def late(*given: Any, **named: Any) -> Savepoint:
        begun.set()
        assert goes_on.wait(60)
        return publish(*given, **named)

    def make() -> None:
        job(tmp_path).savepoint("native", options=options(tmp_path), checkpoint="checkpoint:3", name="late")

    maker = Thread(target=make)

    def edited(*given: Any, **named: Any) -> Edited:
        maker.start()
        assert begun.wait(60)
        return edit(*given, **named)

    def ends() -> None:
        goes_on.set()
        maker.join()

    monkeypatch.setattr(native, "publish", late)
    monkeypatch.setattr(erasing, "edit", edited)
    monkeypatch.setattr(erasing, "_pause", ends)
    assert plan_erase(job(tmp_path), str(KEY), options(tmp_path)).savepoints == ()
    assert erase(tmp_path).savepoints == ("_savepoints/orders/late",)
    assert bearers(tmp_path / "root" / "orders") == []


def test_a_reader_that_stays_is_named_and_keeps_what_it_reads(
    made: QueriedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "_pause", lambda: None)
    kept = pinned(tmp_path, "reader")
    with refused(
        BusyError, "has erased the key", "older ones", "reader by ada", "erase it again with --absent"
    ):
        erase(tmp_path, 0.0)
    assert 3 in [record.slot for record in job(tmp_path).log().chain]
    assert [f.text for f in job(tmp_path).verify(deep=True)] == []
    release(made.store, made.layout, kept.id)
    for key in (str(KEY), "987654"):  # nobody remembers which of them has been erased
        with refused(NotFoundError, f"has nothing under the key '{key}'", "--absent"):
            plan_erase(job(tmp_path), key, options(tmp_path))
    done = plan_erase(job(tmp_path), str(KEY), options(tmp_path), absent=True).apply(ME)
    assert [r.slot for r in job(tmp_path).log().chain if r.carries_state] == [done.checkpoint]
    assert bearers(tmp_path / "root" / "orders") == []


def test_a_checkpoint_that_a_reader_keeps_is_refused_however_long_the_job_goes_on(
    made: QueriedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "_pause", lambda: None)
    kept = pinned(tmp_path, "reader")
    with refused(BusyError, "reader by ada"):
        erase(tmp_path, 0.0)
    found = job(tmp_path)
    head = found.log().head
    assert head is not None
    writer = made.begin("later", 1)
    for _ in range(3):
        made.decide(operators=dict(head.operators))
        writer.collect(1, orphans=True)
    assert [r.slot for r in found.log().chain if r.carries_state][:2] == [kept.slot, head.slot]
    with refused(UsageError, f"checkpoint {kept.slot}", f"record {head.slot} has erased"):
        find_origin(f"checkpoint:{kept.slot}", found, {})
    release(made.store, made.layout, kept.id)
    writer.collect(1, orphans=True)
    assert [r.slot for r in found.log().chain if r.carries_state] == [made.head().slot]
    assert bearers(tmp_path / "root" / "orders") == []


def erased_beside_a_reader(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """A key is erased while somebody reads checkpoint 3, which stays so. Returns the record that erased it."""
    monkeypatch.setattr(erasing, "_pause", lambda: None)
    pinned(folder, "reader")
    with refused(BusyError, "reader by ada"):
        erase(folder, 0.0)
    head = job(folder).log().head
    assert head is not None
    return head.slot


def test_nobody_gets_an_erased_key_out_of_a_checkpoint_that_a_reader_keeps(
    made: QueriedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    erased, found = erased_beside_a_reader(tmp_path, monkeypatch), job(tmp_path)
    context = reader_context(options(tmp_path), found.root, found.clock)
    asked = KeyOfState("balance", "total", str(KEY))

    def query() -> None:
        with checkpoint_reader(context, "orders", "3", owner=ME, ids=found.new_id):
            raise AssertionError("it was opened")

    def serve() -> None:
        followed = FollowedJob(context, "orders", owner=ME, ids=found.new_id, shards=OpenShards(1))
        followed.kept("3")

    def differ() -> None:
        with past.differing(found, "3", "latest", options(tmp_path)):
            raise AssertionError("it was opened")

    for give_out in (
        query,
        serve,
        differ,
        lambda: found.tag("keep", "checkpoint:3"),
        lambda: found.savepoint("native", options=options(tmp_path), checkpoint="3", name="kept"),
        lambda: checkpoint_of("orders", "3", options(tmp_path)),
    ):
        with refused(UsageError, "checkpoint 3 of job 'orders'", f"record {erased}"):
            give_out()
    versions = past.history(found, asked, options(tmp_path)).versions
    assert [(each.slot, each.value) for each in versions] == [(erased, None)]
    assert [each.reason for each in list_pins(made.store, made.layout)] == ["for the archive"]


def test_until_an_erasure_is_carried_out_the_job_is_read_as_before(
    made: QueriedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed_at(Writer, "complete", monkeypatch):
        erase(tmp_path)
    found = job(tmp_path)
    [record], head = found.log().pending, found.log().head
    assert head is not None
    context = reader_context(options(tmp_path), found.root, found.clock)
    followed = FollowedJob(context, "orders", owner=ME, ids=found.new_id, shards=OpenShards(1))
    followed.refresh()

    def served() -> tuple[int, bool]:
        with followed.reading() as now:
            return now.record.slot, now.reader.look_up("balance", "total", KEY).found

    def queried(name: str) -> tuple[int, bool]:
        with checkpoint_reader(context, "orders", name, owner=ME, ids=found.new_id) as reader:
            return reader.record.slot, reader.look_up("balance", "total", KEY).found

    asked = KeyOfState("balance", "total", str(KEY))
    assert served() == queried("latest") == (head.slot, True)
    (version,) = past.history(found, asked, options(tmp_path)).versions
    assert version.result is not None
    assert version.result.found
    found.tag("keep", "latest")
    found.savepoint("native", options=options(tmp_path), name="kept")
    monkeypatch.setattr(made, "carry_out", lambda *given: {})
    made.begin("next", 1)
    followed.refresh()
    assert served() == queried("latest") == (record.slot, False)
    for name in (str(head.slot), "tag:keep"):
        with refused(UsageError, f"checkpoint {head.slot}", f"record {record.slot} has erased"):
            queried(name)
    followed.close()
    done = plan_erase(found, str(KEY), options(tmp_path), absent=True).apply(ME, takeover=True)
    assert done.savepoints == ("_savepoints/orders/kept",)
    assert bearers(tmp_path / "root" / "orders") == []


def test_a_savepoint_asks_again_behind_its_pin(
    made: QueriedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the erasure neither waits for it nor knows of it."""

    def erased_meanwhile(*given: object) -> None:
        erased_beside_a_reader(tmp_path, monkeypatch)

    monkeypatch.setattr(savepoints, "require_vacant", erased_meanwhile)
    with refused(UsageError, "checkpoint 3 of job 'orders'", "has erased"):
        job(tmp_path).savepoint("native", options=options(tmp_path), checkpoint="3", name="late")
    assert list(made.store.list("_savepoints/")) == []


def test_a_tag_that_is_made_at_the_last_moment_keeps_nothing(
    made: QueriedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "_pause", lambda: None)
    before_the_first_collection(monkeypatch, lambda: pinned(tmp_path, "tag"))
    done = erase(tmp_path)
    assert list_pins(made.store, made.layout) == []
    assert [r.slot for r in job(tmp_path).log().chain if r.carries_state] == [done.checkpoint]
    assert bearers(tmp_path / "root" / "orders") == []


def test_a_savepoint_whose_making_was_cut_off_is_named(
    made: QueriedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed_at(native, "publish", monkeypatch):
        job(tmp_path).savepoint("native", options=options(tmp_path), name="half")
    plan = plan_erase(job(tmp_path), str(KEY), options(tmp_path))
    assert plan.savepoints == ("_savepoints/orders/half",)
    assert plan.apply(ME).savepoints == ("_savepoints/orders/half",)


def test_this_host_keeps_nothing_of_files_that_were_collected_long_ago(
    made: QueriedJob, tmp_path: Path
) -> None:
    storage = task_storage(options(tmp_path), str(tmp_path / "root"), "orders", 0, 0)
    opened_by_a_batch(made, tmp_path)
    (tmp_path / "cache" / "state" / f"{'0123' * 16}-9").write_text(MARK)
    left = left_by_a_killed_process(Path(storage.scratch_dir))
    (left / "000001.sst").write_text(MARK)
    merging = named_scratch(Path(storage.scratch_dir), "0123456789abcdef" * 2)
    assert merging is not None
    (merging / "database").mkdir()
    (merging / "database" / "000002.sst").write_text(MARK)
    leave(merging, merging / "database")  # for a batch that never comes
    remove_scratch(merging)
    erase(tmp_path)
    assert bearers(tmp_path / "cache") == bearers(tmp_path / "scratch") == []
