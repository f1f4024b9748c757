"""One host's cache serves jobs and savepoints of several people: nobody changes what another one reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stateflow.checkpoint.verification import ExpectedFile, damage
from stateflow.errors import CorruptError, UnavailableError
from stateflow.format.records import FileRef
from stateflow.storage.cache import FileCache
from stateflow.storage.files import inline, upload_file, verify
from stateflow.storage.local import LocalStore
from stateflow.storage.store import Store
from tests.memory_store import MemoryStore
from tests.refusals.refusal import refused
from tests.storage.forging import twin

OURS = b"the balance of this user is 1000"
FORGED = twin(OURS, b"it is 1000000000")
PATH = "orders/shared/e1-c1-a.sst"


@pytest.fixture
def cache(tmp_path: Path) -> FileCache:
    return FileCache(tmp_path / "cache", 1 << 30)


@pytest.fixture(params=["memory", "local"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """A job's root, and the folder of a savepoint that somebody else has made."""
    if request.param == "memory":
        yield MemoryStore("root"), MemoryStore("savepoint")
    else:
        yield LocalStore(tmp_path / "root"), LocalStore(tmp_path / "savepoint")


def stored(store: Store, folder: Path, content: bytes, path: str = PATH) -> FileRef:
    local = folder / f"written-{len(list(folder.iterdir()))}"
    local.write_bytes(content)
    return upload_file(store, path, local, "000007.sst")


def without_hash(ref: FileRef) -> FileRef:
    """As a record of somebody else may name it."""
    return msgspec.structs.replace(ref, sha256=b"")


def test_the_forged_file_is_what_the_checksum_cannot_tell_apart(tmp_path: Path) -> None:
    ours, forged = (stored(MemoryStore(), tmp_path, content) for content in (OURS, FORGED))
    assert (ours.size, ours.xxh3) == (forged.size, forged.xxh3)
    assert ours.sha256 != forged.sha256


@pytest.mark.parametrize("theirs_is", ["old", "new"])
@pytest.mark.parametrize("ours_is", ["old", "new"])
@pytest.mark.parametrize("path", [PATH, "state/a-000001.sst"])
def test_a_foreign_savepoint_changes_nothing_that_a_job_reads(
    stores: tuple[Store, Store], cache: FileCache, tmp_path: Path, path: str, ours_is: str, theirs_is: str
) -> None:
    root, savepoint = stores
    ours, forged = stored(root, tmp_path, OURS), stored(savepoint, tmp_path, FORGED, path)
    ours = without_hash(ours) if ours_is == "old" else ours
    forged = without_hash(forged) if theirs_is == "old" else forged
    assert cache.fetch(savepoint, forged).read_bytes() == FORGED
    assert cache.fetch(root, ours).read_bytes() == OURS
    assert cache.fetch(savepoint, forged).read_bytes() == FORGED
    assert cache.link(root, ours, tmp_path / "mine").read_bytes() == OURS


@pytest.mark.parametrize("claims_a_hash", [True, False])
def test_what_a_task_has_written_stands_beside_a_forged_file(
    stores: tuple[Store, Store], cache: FileCache, tmp_path: Path, claims_a_hash: bool
) -> None:
    root, savepoint = stores
    forged = stored(savepoint, tmp_path, FORGED)
    cache.fetch(savepoint, forged if claims_a_hash else without_hash(forged))
    written = tmp_path / "own.sst"
    written.write_bytes(OURS)
    ours = upload_file(root, PATH, written, "000007.sst")
    cache.add(root, ours, written)
    assert cache.fetch(root, ours).read_bytes() == OURS
    assert cache.misses == 1


def test_a_savepoint_that_states_our_hash_for_its_own_bytes_is_damaged_and_leaves_nothing(
    stores: tuple[Store, Store], cache: FileCache, tmp_path: Path
) -> None:
    root, savepoint = stores
    ours, forged = stored(root, tmp_path, OURS), stored(savepoint, tmp_path, FORGED)
    lying = msgspec.structs.replace(forged, sha256=ours.sha256)
    with refused(CorruptError, "does not match its checksum"):
        cache.fetch(savepoint, lying)
    with refused(CorruptError, "does not match its checksum"):
        cache.link(savepoint, lying, tmp_path / "mine")
    assert cache.fetch(root, ours).read_bytes() == OURS


@pytest.mark.parametrize("first", ["ours", "forged"])
def test_bytes_inside_of_a_record_are_told_apart_too(cache: FileCache, tmp_path: Path, first: str) -> None:
    store = MemoryStore()
    refs = {"ours": inline("CURRENT", OURS), "forged": inline("CURRENT", FORGED)}
    cache.fetch(store, refs[first])
    assert cache.fetch(store, refs["ours"]).read_bytes() == OURS
    assert cache.fetch(store, refs["forged"]).read_bytes() == FORGED
    assert cache.fetch(store, without_hash(stored(store, tmp_path, FORGED))).read_bytes() == FORGED
    assert cache.fetch(store, stored(store, tmp_path, OURS, "another")).read_bytes() == OURS


def test_two_files_of_a_container_are_told_apart(cache: FileCache) -> None:
    store = MemoryStore()
    store.put("state/a.pack", OURS + FORGED)
    ours = FileRef("a.sst", len(OURS), inline("", OURS).xxh3, "state/a.pack", offset=0)
    forged = msgspec.structs.replace(ours, offset=len(OURS))
    assert cache.fetch(store, forged).read_bytes() == FORGED
    assert cache.fetch(store, ours).read_bytes() == OURS


def test_the_same_path_in_two_stores_is_two_entries_without_a_hash(
    stores: tuple[Store, Store], cache: FileCache, tmp_path: Path
) -> None:
    refs = [without_hash(stored(store, tmp_path, OURS)) for store in stores]
    assert refs[0] == refs[1]
    first, second = (cache.fetch(store, ref) for store, ref in zip(stores, refs, strict=True))
    assert first != second
    assert cache.misses == 2


def test_a_file_without_a_hash_is_fetched_once_and_found_after(
    stores: tuple[Store, Store], cache: FileCache, tmp_path: Path
) -> None:
    ref = without_hash(stored(stores[0], tmp_path, OURS))
    verify(ref, cache.fetch(stores[0], ref))
    cache.link(stores[0], ref, tmp_path / "mine")
    assert (cache.hits, cache.misses) == (1, 1)


def test_a_file_with_a_hash_that_moves_to_another_object_store_is_not_fetched_again(
    cache: FileCache, tmp_path: Path
) -> None:
    root, savepoint = MemoryStore("root"), MemoryStore("savepoint")
    cache.fetch(root, stored(root, tmp_path, OURS))
    assert (
        cache.fetch(savepoint, stored(savepoint, tmp_path, OURS, "state/a-000001.sst")).read_bytes() == OURS
    )
    assert (cache.hits, cache.misses) == (1, 1)


def test_who_overwrites_his_own_copy_on_disk_changes_nothing_for_others(
    cache: FileCache, tmp_path: Path
) -> None:
    # The entry is a hard link to his file, and what is compared at the beginning can be changed afterwards.
    root, savepoint = LocalStore(tmp_path / "root"), LocalStore(tmp_path / "savepoint")
    ours, theirs = stored(root, tmp_path, OURS), stored(savepoint, tmp_path, OURS)
    assert ours == theirs
    cache.fetch(savepoint, theirs)
    with (tmp_path / "savepoint" / PATH).open("r+b") as file:
        file.write(FORGED)
    assert cache.fetch(root, ours).read_bytes() == OURS


def test_a_file_that_was_exchanged_for_one_with_its_checksum_is_found_when_it_is_fetched(
    cache: FileCache, tmp_path: Path
) -> None:
    store = MemoryStore()
    ref = stored(store, tmp_path, OURS)
    store.put(PATH, FORGED)
    with refused(CorruptError, f"memory://test/{PATH}", "its checksum"):
        cache.fetch(store, ref)
    assert not [p for p in cache.folder.iterdir() if not p.name.startswith(".boot")]


def test_a_file_that_was_exchanged_for_one_with_its_checksum_is_found_by_a_deep_look(tmp_path: Path) -> None:
    store = MemoryStore()
    ref = stored(store, tmp_path, OURS)
    store.put(PATH, FORGED)
    sizes = {PATH: len(OURS)}
    assert damage(store, sizes, ExpectedFile.by(ref), deep=False) == ""
    assert (
        damage(store, sizes, ExpectedFile.by(ref), deep=True)
        == f"does not have the checksum {ref.sha256.hex()}"
    )
    assert damage(store, sizes, ExpectedFile.by(without_hash(ref)), deep=True) == ""


def test_what_is_distrusted_is_forgotten_for_its_own_store_only(
    stores: tuple[Store, Store], cache: FileCache, tmp_path: Path
) -> None:
    refs = [without_hash(stored(store, tmp_path, OURS)) for store in stores]
    entries = [cache.fetch(store, ref) for store, ref in zip(stores, refs, strict=True)]
    cache.distrust(stores[0], refs[0])
    assert [entry.exists() for entry in entries] == [False, True]


def test_the_folder_is_its_users_own(cache: FileCache) -> None:
    cache.fetch(MemoryStore(), inline("CURRENT", b"x"))
    assert cache.folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_is_shared_on_purpose_stays_shared(cache: FileCache) -> None:
    cache.folder.mkdir()
    cache.folder.chmod(0o2775)
    cache.fetch(MemoryStore(), inline("CURRENT", b"x"))
    assert cache.folder.stat().st_mode & 0o7777 == 0o2775


def test_another_users_folder_is_named_with_what_to_do(
    cache: FileCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    cache.folder.mkdir()
    monkeypatch.setattr(os, "scandir", refuse)
    with refused(UnavailableError, f"{cache.folder} is closed to this user", "cache_dir"):
        cache.fetch(MemoryStore(), inline("CURRENT", b"x"))
