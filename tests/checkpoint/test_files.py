"""References to immutable files."""

from __future__ import annotations

from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from stateflow.checkpoint.files import checksum, inline, upload_file, verify
from stateflow.checkpoint.memory_store import MemoryStore
from stateflow.checkpoint.store import PIECE
from stateflow.errors import CorruptError, NotFoundError


def test_an_uploaded_file_is_described_by_size_and_checksum(tmp_path: Path) -> None:
    content = bytes(range(256)) * 9_000  # more than two chunks
    assert len(content) > 2 * PIECE
    (tmp_path / "f").write_bytes(content)
    store = MemoryStore()
    ref = upload_file(store, "job/shared/e1-c1-a.sst", tmp_path / "f", "000012.sst")
    assert (ref.name, ref.path, ref.base, ref.data) == ("000012.sst", "job/shared/e1-c1-a.sst", "", None)
    assert (ref.size, ref.xxh3) == (len(content), xxhash.xxh3_64_hexdigest(content))
    assert store.read(ref.path) == content
    verify(ref, tmp_path / "f")


@given(st.binary(max_size=300))
def test_inline_bytes_carry_their_own_checksum(data: bytes) -> None:
    ref = inline("CURRENT", data)
    assert (ref.data, ref.size, ref.xxh3, ref.path) == (data, len(data), xxhash.xxh3_64_hexdigest(data), "")


def test_an_empty_file_has_a_checksum(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    assert checksum(tmp_path / "f") == (0, xxhash.xxh3_64_hexdigest(b""))


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
    with pytest.raises(
        CorruptError, match=f"s3://b/root/job/shared/a {words}.*stateflow verify.*stateflow restore"
    ):
        verify(ref, tmp_path / "f", "s3://b/root")


def test_a_missing_file_cannot_be_uploaded(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="cannot be uploaded"):
        upload_file(MemoryStore(), "job/shared/a", tmp_path / "f", "a")
