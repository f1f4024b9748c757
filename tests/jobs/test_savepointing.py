"""Savepoints of a job as its commands make, clean up and hand on; none of this needs Spark."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stateflow.checkpoint.collection import CollectionReport
from stateflow.errors import NotFoundError, StateflowError, UsageError
from stateflow.format.layout import default_savepoint
from stateflow.format.records import Owner
from stateflow.format.references import bases
from stateflow.jobs import savepoints as savepointing
from stateflow.jobs.job import Job
from stateflow.observe.health import health_of
from stateflow.savepoints.dispose import dispose_savepoint, require_free
from stateflow.savepoints.format import read_savepoint, read_savepoint_claim, verify_savepoint
from stateflow.storage.roots import open_store
from stateflow.storage.store import Store
from tests.jobs.builder import options_of
from tests.jobs.made import PARAMETERS, made_job, orders_pipeline
from tests.jobs.snapshots import DEAD
from tests.memory_store import named_store
from tests.refusals.refusal import refused

OWNER = Owner(run="nightly savepoint")


def made(root: str) -> Job:
    return made_job(root, watermark=77).opened()


def save(job: Job, scratch: Path, **request: Any) -> savepointing.MadeSavepoint:
    return job.savepoint("native", options=options_of(job.root, scratch), **request)


def take_over(job: Job, url: str, scratch: Path) -> None:
    job.restore(
        url, orders_pipeline(), PARAMETERS, options=options_of(job.root, scratch), claim_mode="claim"
    ).apply()


def errors(job: Job) -> list[str]:
    return [finding.text for finding in job.verify() if finding.severity == "error"]


def test_misspelt_words_of_a_savepoint_a_restore_and_a_job_are_refused(tmp_path: Path) -> None:
    job = made(str(tmp_path))
    with refused(UsageError, "'Canonical'", "'native' or 'canonical'"):
        job.savepoint("Canonical")  # type: ignore[arg-type]
    with refused(UsageError, "'expiers'", "expires"):
        save(job, tmp_path, expiers=timedelta(1))
    with refused(UsageError, "'rewind_sink'", "rewind_sinks"):
        job.restore("latest", orders_pipeline(), PARAMETERS, rewind_sink=True)
    with refused(UsageError, "Job()", "'storage_option'", "storage_options"):
        Job(str(tmp_path), "orders", storage_option={})


def test_the_stores_options_are_those_of_the_job_wherever_its_state_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []
    monkeypatch.setattr("stateflow.jobs.past.history", lambda *told, **more: given.append(told[2]))
    made(str(tmp_path))
    job = Job(str(tmp_path), "orders", storage_options={"endpoint": "http://s3.example"})
    job.history_of("totals", "total", "1")
    assert [options.storage_options for options in given] == [job.storage_options]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return made(str(tmp_path / "root"))


class TestTryingAgain:
    """One idempotency key, tried again after an earlier try was killed."""

    def test_what_an_earlier_try_has_made_is_not_made_again(self, job: Job, tmp_path: Path) -> None:
        first = save(job, tmp_path, name="one", owner=OWNER)
        assert save(job, tmp_path, name="one", owner=OWNER) == first

    def test_one_whose_files_were_disposed_of_before_that_try_could_see_it_is_made_anew(
        self, job: Job, tmp_path: Path
    ) -> None:
        first = save(job, tmp_path, name="one", owner=OWNER)
        store = open_store(first.url)
        store.delete([next(e.path for e in store.list("state/"))])
        again = save(job, tmp_path, name="one", owner=OWNER)
        assert again.savepoint.id != first.savepoint.id
        assert verify_savepoint(store, deep=True) == []

    def test_one_that_is_being_disposed_of_is_not_told_to_be_made(
        self, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = save(job, tmp_path, name="one", owner=OWNER)
        store = open_store(first.url)

        class DiedError(BaseException):
            pass

        def died(paths: object) -> None:
            raise DiedError

        monkeypatch.setattr(store, "delete", died)
        with pytest.raises(DiedError):
            dispose_savepoint(store, owner=Owner(run="somebody"), clock=job.clock)
        monkeypatch.undo()
        with pytest.raises(UsageError, match="belongs to a job or is being disposed of"):
            save(job, tmp_path, name="one", owner=OWNER)


class TestCleaningUp:
    """What a clean-up has listed goes, and not what lies there by the time that it comes to it."""

    def meanwhile(
        self, monkeypatch: pytest.MonkeyPatch, act: Callable[[Callable[..., int], Any], object]
    ) -> None:
        """Between listing and disposal."""

        def disposal(store: Any, **request: Any) -> int:
            monkeypatch.setattr(savepointing, "dispose_savepoint", dispose_savepoint)
            act(dispose_savepoint, store)
            return dispose_savepoint(store, **request)

        monkeypatch.setattr(savepointing, "dispose_savepoint", disposal)

    def left(self, job: Job, name: str) -> str:
        path = default_savepoint("orders", name)
        job.store.put(f"{path}/state/{DEAD}-000001.sst", b"left by a killed try")
        return f"{job.store.url}/{path}"

    def test_a_retry_makes_it_where_a_killed_try_had_left_files(
        self, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        one, two = self.left(job, "one"), self.left(job, "two")
        self.meanwhile(monkeypatch, lambda dispose, store: save(job, tmp_path, name="one", owner=OWNER))
        assert list(savepointing.dispose_unfinished(job)) == [two]
        assert f"{one} was passed over: another savepoint was made" in caplog.text
        assert read_savepoint(open_store(one)).owner == OWNER
        assert [f for f in verify_savepoint(open_store(one), deep=True) if f.severity == "error"] == []

    def test_what_a_killed_try_left_goes_when_its_job_is_deleted(self, job: Job) -> None:
        half = self.left(job, "half")
        assert job.delete().unfinished.keys() == {half}
        assert job.store.list("_savepoints/") == []

    def test_or_with_a_clean_up_of_any_other_job_then_and_not_before(self, job: Job, tmp_path: Path) -> None:
        other = made_job(str(tmp_path / "root"), "other").opened()
        self.left(job, "half")
        new = other.store.url + "/" + default_savepoint("new", "first")
        open_store(new).put(f"state/{DEAD}-000001.sst", b"of an import for a job that is to be")
        other.store.put("_savepoints/.theirs/notes", b"mine")
        assert savepointing.unfinished_savepoints(other) == []
        job.delete()
        half = self.left(job, "half")
        assert savepointing.unfinished_savepoints(other) == [half]
        assert list(savepointing.dispose_unfinished(other)) == [half]
        assert sorted(entry.path for entry in other.store.list("_savepoints/")) == [
            "_savepoints/.theirs/notes", f"_savepoints/new/first/state/{DEAD}-000001.sst"
        ]  # fmt: skip

    def test_one_that_never_expires_is_made_where_an_expired_one_was(
        self, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        over = timedelta(microseconds=1)
        url, other = (save(job, tmp_path, name=name, expires=over).url for name in ("daily", "other"))

        def replaced(dispose: Callable[..., int], store: Any) -> None:
            dispose(store, owner=OWNER, clock=job.clock)
            save(job, tmp_path, name="daily")

        self.meanwhile(monkeypatch, replaced)
        assert list(savepointing.dispose_expired(job)) == [other]
        assert f"{url} was passed over" in caplog.text
        assert read_savepoint(open_store(url)).expires is None
        assert verify_savepoint(open_store(url), deep=True) == []

    def test_one_that_is_claimed_meanwhile_stays_and_ends_nothing(
        self, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        over = timedelta(microseconds=1)
        url, other = (save(job, tmp_path, name=name, expires=over).url for name in ("daily", "other"))
        self.meanwhile(monkeypatch, lambda dispose, store: take_over(job, url, tmp_path))
        assert list(savepointing.dispose_expired(job)) == [other]
        assert "was passed over: the savepoint in" in caplog.text
        assert errors(job) == []


class TestCopiedRoots:
    """A copy of a root has the same jobs; what it does must not reach into the original."""

    def collection(self, root: Path) -> CollectionReport:
        """Goes on there until no checkpoint needs the savepoint."""
        return made_job(root, run="another run", retained=1).opened().collect(1)

    def collected(self, root: Path) -> tuple[str, ...]:
        return self.collection(root).savepoints

    def test_a_savepoint_in_the_root_is_copied_with_it(self, job: Job, tmp_path: Path) -> None:
        url = save(job, tmp_path, name="v1").url
        take_over(job, url, tmp_path)
        shutil.copytree(tmp_path / "root", tmp_path / "staging")
        own = f"file://{tmp_path}/staging/_savepoints/orders/v1"
        staging = Job(str(tmp_path / "staging"), "orders")
        assert bases(staging.log().chain) == {own}
        take_over(staging, own, tmp_path)
        assert self.collected(tmp_path / "staging") == (own,)
        assert not (tmp_path / "staging/_savepoints/orders/v1").exists()
        assert errors(job) == []
        staging.delete()
        assert errors(job) == []

    def test_one_elsewhere_stays_the_original_s(self, job: Job, tmp_path: Path) -> None:
        url = save(job, tmp_path, to=str(tmp_path / "elsewhere")).url
        take_over(job, url, tmp_path)
        shutil.copytree(tmp_path / "root", tmp_path / "staging")
        with refused(UsageError, "was claimed by this job in", "/root, of which", "/staging is a copy"):
            take_over(Job(str(tmp_path / "staging"), "orders"), url, tmp_path)
        report = self.collection(tmp_path / "staging")
        assert report.savepoints == ()
        assert f"job 'orders' claimed it in {job.store.url}" in report.left[url]
        Job(str(tmp_path / "staging"), "orders").delete()
        assert errors(job) == []
        assert self.collected(tmp_path / "root") == (url,)
        assert not (tmp_path / "elsewhere").exists()

    def test_a_root_that_is_moved_takes_its_savepoints_along(self, job: Job, tmp_path: Path) -> None:
        take_over(job, save(job, tmp_path, name="v1").url, tmp_path)
        shutil.move(tmp_path / "root", tmp_path / "moved")
        moved = Job(str(tmp_path / "moved"), "orders")
        assert errors(moved) == []
        take_over(moved, f"{tmp_path}/moved/_savepoints/orders/v1", tmp_path)
        assert self.collected(tmp_path / "moved") == (f"file://{tmp_path}/moved/_savepoints/orders/v1",)
        assert not (tmp_path / "moved/_savepoints/orders/v1").exists()

    def test_a_moved_job_needs_one_elsewhere_no_more_once_it_was_restored_to_one_of_its_own(
        self, job: Job, tmp_path: Path
    ) -> None:
        """As docs/limits.md says."""
        take_over(job, save(job, tmp_path, to=str(tmp_path / "elsewhere")).url, tmp_path)
        shutil.move(tmp_path / "root", tmp_path / "moved")
        moved = Job(str(tmp_path / "moved"), "orders")
        newest = moved.status().sources
        take_over(moved, save(moved, tmp_path, name="own").url, tmp_path)
        assert moved.status().sources == newest, "nothing is read again"
        self.collected(tmp_path / "moved")
        shutil.rmtree(tmp_path / "elsewhere")
        assert errors(moved) == []

    @pytest.mark.parametrize("copied", [True, False])
    def test_one_elsewhere_is_free_once_the_job_was_deleted_that_was_moved_but_not_copied(
        self, job: Job, tmp_path: Path, *, copied: bool
    ) -> None:
        place = open_store(save(job, tmp_path, to=str(tmp_path / "elsewhere")).url)
        take_over(job, place.url, tmp_path)
        (shutil.copytree if copied else shutil.move)(tmp_path / "root", tmp_path / "new")
        new = Job(str(tmp_path / "new"), "orders")

        def dispose(root: Store | None) -> None:
            require_free(place, {}, root)
            dispose_savepoint(place, owner=OWNER, clock=job.clock, root=root)

        with refused(UsageError, "was claimed by job 'orders'"):
            dispose(new.store)
        new.delete()
        with refused(UsageError, "was claimed by job 'orders'"):
            dispose(new.store if copied else None)
        if not copied:
            dispose(new.store)
        assert (tmp_path / "elsewhere").exists() == copied


class TestPlaces:
    def test_a_savepoint_is_not_made_where_it_would_be_deleted_with_its_job(
        self, job: Job, tmp_path: Path
    ) -> None:
        made(str(tmp_path / "other"))
        shutil.move(tmp_path / "other/orders", tmp_path / "root/fraud")
        for place in ("orders/savepoints/v1", "fraud/v1", "_savepoints/fraud/v1", ""):
            with refused(UsageError, "is no place for", "/root/_savepoints/orders/NAME"):
                save(job, tmp_path, to=str(tmp_path / "root" / place))
        assert not (tmp_path / "root/orders/savepoints").exists()
        assert not (tmp_path / "root/_savepoints").exists()
        save(job, tmp_path, to=str(tmp_path / "root/_savepoints/orders/v1"))

    def test_no_job_is_made_in_a_folder_with_a_savepoint(self, job: Job, tmp_path: Path) -> None:
        for place in ("fraud", "daily/v1"):
            save(job, tmp_path, to=str(tmp_path / "root" / place))
        for name, place in (("fraud", "fraud"), ("daily", "daily/v1")):
            with refused(UsageError, f"/root/{place} holds a savepoint", "another name for the job"):
                made_job(str(tmp_path / "root"), name)
        made_job(str(tmp_path / "root"), "other")

    def test_a_store_that_cannot_say_who_was_first_is_no_place_either(
        self, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Some accept the condition of a create and ignore it: two jobs would then own one savepoint."""
        liar = named_store(f"liar-{tmp_path}")
        url = f"memory://liar-{tmp_path}"
        sound = save(job, tmp_path, to=url)
        folder = liar.snapshot()
        monkeypatch.setattr(liar, "create", liar.put)
        with refused(UsageError, "a second create"):
            take_over(job, sound.url, tmp_path)
        assert read_savepoint_claim(liar) is None
        assert liar.snapshot() == folder
        liar.restore({})
        with refused(UsageError, "a second create"):
            save(job, tmp_path, to=url)
        assert liar.snapshot() == {}

    def test_probing_a_place_leaves_nothing_there_when_no_savepoint_is_made(
        self, job: Job, tmp_path: Path
    ) -> None:
        job.store.delete([e.path for e in job.store.list("orders/shared/") if "state4" in e.path])
        with refused(StateflowError, "is damaged"):
            save(job, tmp_path, to=str(tmp_path / "elsewhere"))
        assert not (tmp_path / "elsewhere").exists()


def test_an_expired_one_of_a_job_that_is_gone_goes_with_the_clean_up_of_another(
    job: Job, tmp_path: Path
) -> None:
    other = made_job(job.root, "other").opened()
    soon = timedelta(microseconds=1)
    url, _ = (
        save(job, tmp_path, name=name, expires=life).url for name, life in (("over", soon), ("kept", None))
    )
    assert list(savepointing.dispose_expired(other)) == []
    job.delete()
    assert list(savepointing.dispose_expired(other)) == [url]


def test_every_verb_tells_that_a_deletion_broke_off(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = save(job, tmp_path, to=str(tmp_path / "elsewhere")).url

    def killed(*told: Any) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(type(job.store), "delete", killed)
        with pytest.raises(OSError, match="killed"):
            job.delete()
    told = health_of(job.status(), job.clock(), None)
    assert (told.state, told.reason) == (
        "failed",
        "job 'orders' is half deleted: `stateflow delete orders --yes` finishes it",
    )
    for act in (lambda: job.stop(wait=None), lambda: take_over(job, url, tmp_path)):
        with refused(NotFoundError, "half deleted"):
            act()
    job.delete()
    with refused(UsageError, "tombstone"):
        take_over(job, url, tmp_path)


def test_what_a_failed_restore_had_claimed_can_be_disposed_of_when_its_job_is_deleted(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = save(job, tmp_path, to=str(tmp_path / "elsewhere")).url

    def killed(*_: object, **__: object) -> None:
        raise RuntimeError("killed after the claim")

    new = Job(job.root, "trial")
    parameters = {**PARAMETERS, "output": "/data/trial"}
    plan = new.restore(
        url, orders_pipeline(), parameters, options=options_of(job.root, tmp_path), claim_mode="claim"
    )
    monkeypatch.setattr("stateflow.restore.apply.Draft", killed)
    with pytest.raises(RuntimeError, match="killed"):
        plan.apply()
    told = health_of(new.status(), new.clock(), None)
    assert told.state == "failed"
    assert (
        "has nothing yet, since its restore failed (killed after the claim): restore it again" in told.reason
    )
    with refused(UsageError, "was claimed by job 'trial'", "no-claim"):
        Job(job.root, "third").restore(
            url, orders_pipeline(), parameters, options=options_of(job.root, tmp_path), claim_mode="claim"
        )
    assert not Job(job.root, "third").exists
    store = open_store(url)
    with refused(UsageError, "was claimed by job 'trial'"):
        dispose_savepoint(store, owner=OWNER, clock=job.clock)
    new.delete()
    assert dispose_savepoint(store, owner=OWNER, clock=job.clock) > 0
    with pytest.raises(NotFoundError):
        read_savepoint(store)
