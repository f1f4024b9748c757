"""Many checkpoints in a store over a network: each file is fetched once, and many requests are under way at once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow.errors import NotFoundError, UsageError
from stateflow.format.records import FileRef
from stateflow.jobs.job import Job
from stateflow.reading.bisect import first_of_key
from stateflow.reading.history import history_of_key
from stateflow.reading.key_state import last_changes
from stateflow.reading.past_states import KeyOfState, PastStates
from stateflow.reading.predicates import function
from stateflow.reading.query import StateReader
from stateflow.state.values.serializers import serializer_for
from stateflow.storage.cache import FileCache
from stateflow.storage.local import LocalStore
from tests.reading.grown import EVERY_KIND, TOTAL, GrownJob, full
from tests.refusals.refusal import refused

_int = serializer_for(int)
ASKED = KeyOfState("balance", "total", "1")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> GrownJob:
    """User 1 has another value in every third of 24 checkpoints; user 2, who may share its shard, in each."""
    made = GrownJob(tmp_path_factory.mktemp("job") / "root")
    for number in range(24):
        changes = {full(TOTAL, 2): _int.dumps(number), full(TOTAL, 5): _int.dumps(number)}
        if number % 3 == 0:
            changes[full(TOTAL, 1)] = _int.dumps(number)
        made.batch(lambda model, changes=changes: changes)  # type: ignore[misc]
    return made


class Watched:
    """Fetches, as they are under way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fetched: Counter[str] = Counter()
        self.most = self._now = 0
        self._lock = threading.Lock()
        fill = FileCache._fill

        def watched(cache: FileCache, store: Any, ref: FileRef, entry: Path) -> Any:
            with self._lock:
                self.fetched[ref.path or ref.name] += 1
                self._now += 1
                self.most = max(self.most, self._now)
            time.sleep(0.005)
            try:
                return fill(cache, store, ref, entry)
            finally:
                with self._lock:
                    self._now -= 1

        monkeypatch.setattr(FileCache, "_fill", watched)


def versions(job: GrownJob, host: Path) -> list[tuple[int, str, Any]]:
    records = [job.at(slot) for slot in job.models]
    found = history_of_key(records, PastStates(job.place(host)), ASKED)
    assert found.checkpoints == 24
    return [(version.slot, version.what, version.value) for version in found.versions]


def test_the_newest_changes_of_a_key_are_those_of_any_state_and_namespace(tmp_path: Path) -> None:
    job = GrownJob(tmp_path / "root", schemas=EVERY_KIND)
    for number in range(4):
        job.batch(lambda model, number=number: job.put(model, "open", 7, number, "", "noon"))  # type: ignore[misc]
    job.batch(lambda model: job.put(model, "total", 8, 1))
    job.rescale(3)
    records, states = list(job.log().checkpoints), PastStates(job.place(tmp_path / "host"))
    assert last_changes(records, states.reader, "balance", "7", 5) == [3, 4, 5]
    assert last_changes(records, states.reader, "balance", "7", 2) == [4, 5]
    assert last_changes(records, states.reader, "balance", "8", 5) == [6]
    assert last_changes(records, states.reader, "balance", "9", 5) == []


def test_a_store_over_a_network_is_asked_for_many_files_at_once_and_for_each_once(
    job: GrownJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = versions(job, tmp_path / "local")
    assert [value for _, _, value in expected] == list(range(0, 24, 3))
    monkeypatch.setattr(LocalStore, "local_root", None)
    watched = Watched(monkeypatch)
    assert versions(job, tmp_path / "host") == expected
    assert watched.most > 4, "they were fetched one after the other"
    assert set(watched.fetched.values()) == {1}


def test_a_checkpoint_that_was_collected_meanwhile_is_named_and_the_rest_is_told(
    job: GrownJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = list(job.models)
    look_up = PastStates.look_up

    def gone(states: PastStates, record: Any, asked: KeyOfState, **options: Any) -> Any:
        if record.slot == slots[3]:
            raise NotFoundError(f"the file of checkpoint {record.slot} is missing")
        return look_up(states, record, asked, **options)

    monkeypatch.setattr(PastStates, "look_up", gone)
    found = history_of_key([job.at(slot) for slot in slots], PastStates(job.place(tmp_path)), ASKED)
    assert found.collected == (slots[3],)
    assert [(v.slot, v.what, v.value) for v in found.versions][:3] == [
        (slots[0], "kept", 0),
        (slots[4], "changed", 3),
        (slots[6], "changed", 6),
    ]


def test_a_record_that_shows_the_same_as_the_one_before_is_not_looked_at(
    job: GrownJob, tmp_path: Path
) -> None:
    last = job.at(max(job.models))
    states = PastStates(job.place(tmp_path))
    assert history_of_key([last, last, last], states, ASKED).look_ups == 1


def test_the_name_of_each_record_is_kept_on_disk_before_it_is_believed_several_at_once(
    job: GrownJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is busy makes each wait, so that a thousand took four seconds one after the other."""
    kept: set[str] = set()
    newest = {f"chk-{slot:08d}" for slot in sorted(job.models)[-2:]}
    two_at_once = threading.Barrier(2, timeout=20)

    def slowly(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        is_new = name not in kept
        kept.add(name)
        if is_new and name in newest:
            two_at_once.wait()

    monkeypatch.setattr("stateflow.storage.local.fsync_folder", slowly)
    asked = Job(job.root, "orders").history_of("balance", "total", "1")
    assert len(asked.versions) == 8
    assert {f"chk-{slot:08d}" for slot in job.models} <= kept


@pytest.mark.parametrize("wanted", [0, 3, 12, 21, 22])
def test_a_search_among_a_thousand_checkpoints_looks_at_ten(
    job: GrownJob, tmp_path: Path, wanted: int
) -> None:
    kept = [job.at(slot) for slot in job.models]
    records = [
        msgspec.structs.replace(kept[number * len(kept) // 1000], slot=number) for number in range(1000)
    ]
    states = PastStates(job.place(tmp_path / "host"))
    predicate = function("wanted", lambda value: value is not None and value >= wanted)
    found = first_of_key(records, states, ASKED, predicate, scan=False)
    # User 1 has the number of every third of the 24.
    first = next((at for at in range(1000) if at * len(kept) // 1000 // 3 * 3 >= wanted), None)
    assert (found.record and found.record.slot) == first
    assert 9 <= found.look_ups <= 10


def test_a_look_up_that_is_refused_is_not_taken_for_nothing(
    job: GrownJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise UsageError("more than can be read: export the state")

    monkeypatch.setattr(StateReader, "look_up", refuse)
    records, states = [job.at(slot) for slot in job.models], PastStates(job.place(tmp_path / "host"))
    with refused(UsageError, "export the state"):
        history_of_key(records, states, ASKED)
    for scan in (True, False):
        with refused(UsageError, "export the state"):
            first_of_key(records, states, ASKED, function("nothing", lambda value: value is None), scan=scan)
