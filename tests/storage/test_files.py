"""References to immutable files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from stateflow.checkpoint.copying import copy_files
from stateflow.errors import CorruptError, NotFoundError
from stateflow.format.references import references
from stateflow.savepoints.format import resolved
from stateflow.storage.files import checksum, inline, upload_file, verify
from stateflow.storage.store import PIECE
from tests.jobs.snapshots import checkpoint, ids, native, state
from tests.memory_store import MemoryStore
from tests.protocol.scenario import World
from tests.refusals.refusal import refused
from tests.storage.forging import twin


def test_an_uploaded_file_is_described_by_size_and_checksum(tmp_path: Path) -> None:
    content = bytes(range(256)) * 9_000  # more than two chunks
    assert len(content) > 2 * PIECE
    (tmp_path / "f").write_bytes(content)
    store = MemoryStore()
    ref = upload_file(store, "job/shared/e1-c1-a.sst", tmp_path / "f", "000012.sst")
    assert (ref.name, ref.path, ref.base, ref.data) == ("000012.sst", "job/shared/e1-c1-a.sst", "", None)
    assert (ref.size, ref.xxh3) == (len(content), xxhash.xxh3_64_hexdigest(content))
    assert ref.sha256 == hashlib.sha256(content).digest()
    assert store.read(ref.path) == content
    verify(ref, tmp_path / "f")


@given(st.binary(max_size=300))
def test_inline_bytes_carry_their_own_checksum(data: bytes) -> None:
    ref = inline("CURRENT", data)
    assert (ref.data, ref.size, ref.xxh3, ref.path) == (data, len(data), xxhash.xxh3_64_hexdigest(data), "")


def test_an_empty_file_has_a_checksum(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    assert checksum(tmp_path / "f") == (0, xxhash.xxh3_64_hexdigest(b""))


def test_an_empty_file_stays_empty_when_it_is_packed_copied_and_packed_again(tmp_path: Path) -> None:
    root, packed, again = MemoryStore("root"), MemoryStore("packed"), MemoryStore("again")
    record = checkpoint(root, sizes=(300, 20, 0, 0))
    once = native(root, record, packed, tmp_path, max_files=1)
    from_packed = resolved(once, "memory://packed")
    twice = native(root, from_packed, again, tmp_path, max_files=1, open_base=lambda base: packed)
    for made, store in ((once, packed), (twice, again)):
        assert state(made.record, store) == state(record, root)
        # The empty file shares its beginning with the one behind it.
        assert len({ref.offset for ref in references(made.record) if ref.path}) < 5
    new, _ = copy_files(
        from_packed, World(MemoryStore()).claim("x"), lambda base: packed, ids=ids, scratch=tmp_path
    )
    paths = {(ref.name, ref.path, ref.size) for ref in references(new) if ref.path}
    assert len({path for _, path, _ in paths}) == 4  # one for both empty ones
    assert [size for name, _, size in sorted(paths)] == [13, 300, 20, 0, 0]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda b: b[:-1], "has 2999 bytes instead of 3000"),
        (lambda b: b + b"x", "has 3001 bytes instead of 3000"),
        (lambda b: b[:1500] + bytes([b[1500] ^ 1]) + b[1501:], "does not match its checksum"),
        (lambda b: b"", "has 0 bytes instead of 3000"),
    ],
    ids=["cut", "grown", "flipped", "emptied"],
)
def test_damage_is_found_and_named(damage: object, words: str, tmp_path: Path) -> None:
    content = b"abc" * 1000
    (tmp_path / "f").write_bytes(content)
    ref = upload_file(MemoryStore(), "job/shared/a", tmp_path / "f", "a")
    assert callable(damage)
    (tmp_path / "f").write_bytes(damage(content))
    with refused(CorruptError, f"s3://b/root/job/shared/a {words}", "stateflow verify", "stateflow restore"):
        verify(ref, tmp_path / "f", "s3://b/root")


def test_other_bytes_with_the_same_checksum_are_damage_where_a_hash_is_recorded(tmp_path: Path) -> None:
    content = b"the balance of this user is 1000"
    (tmp_path / "f").write_bytes(content)
    ref = upload_file(MemoryStore(), "job/shared/a", tmp_path / "f", "a")
    (tmp_path / "f").write_bytes(twin(content, b"it is 1000000000"))
    with pytest.raises(CorruptError, match="job/shared/a does not match its checksum"):
        verify(ref, tmp_path / "f")
    verify(msgspec.structs.replace(ref, sha256=b""), tmp_path / "f")


def test_a_file_copied_into_a_savepoint_and_out_of_it_keeps_its_hash(tmp_path: Path) -> None:
    root, packed = MemoryStore("root"), MemoryStore("packed")
    record = msgspec.structs.replace(checkpoint(root), sinks={})
    hashes = {ref.name: ref.sha256 for ref in references(record) if ref.path}
    assert all(len(sha256) == 32 for sha256 in hashes.values())
    for limit in (0, 1):
        made = native(root, record, MemoryStore(f"target{limit}"), tmp_path, max_files=limit)
        assert {ref.name: ref.sha256 for ref in references(made.record) if ref.path} == hashes
    once = native(root, record, packed, tmp_path, max_files=1)
    moved = resolved(once, "memory://packed")
    new, _ = copy_files(
        moved, World(MemoryStore()).claim("x"), lambda base: packed, ids=ids, scratch=tmp_path
    )
    assert {ref.name: ref.sha256 for ref in references(new) if ref.path} == hashes


def test_a_missing_file_cannot_be_uploaded(tmp_path: Path) -> None:
    with refused(NotFoundError, "cannot be uploaded"):
        upload_file(MemoryStore(), "job/shared/a", tmp_path / "f", "a")
