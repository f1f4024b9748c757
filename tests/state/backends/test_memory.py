"""What only the memory backend does: its frozen file, and when it speaks up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stateflow.errors import CorruptError, IncompatibleError, UnavailableError, UsageError
from stateflow.format.records import FileRef, Shard
from stateflow.state.backends import memory
from stateflow.state.backends.memory import memory_backend
from stateflow.storage.files import checksum
from tests.refusals.refusal import refused

FROZEN = bytes.fromhex("53464d454d 01 0200000000000000 03000000 01000000 000161 78 03000000 00000000 000162")


def opened(data: bytes, tmp_path: Path) -> Any:
    ref = FileRef(memory.FILE, len(data), "", data=data)
    return memory_backend()(Shard(0, 127, "memory", (ref,)), tmp_path / "open", lambda _: tmp_path)


def test_the_file_never_changes(tmp_path: Path) -> None:
    backend = memory_backend()(Shard(0, 127, "memory"), tmp_path / "open", lambda _: tmp_path)
    backend.write([(b"\0\1b", b""), (b"\0\1a", b"x")])
    (file,) = backend.snapshot().new
    assert file.data == FROZEN
    assert list(opened(FROZEN, tmp_path).scan(b"\0", b"\1")) == [(b"\0\1a", b"x"), (b"\0\1b", b"")]


@pytest.mark.parametrize("damaged", [b"", FROZEN[:-1], FROZEN + b"x", b"X" + FROZEN[1:], FROZEN[:20]])
def test_a_damaged_file_is_named(damaged: bytes, tmp_path: Path) -> None:
    with refused(CorruptError, "state file entries"):
        opened(damaged, tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    with refused(IncompatibleError, "format 2 of a newer stateflow"):
        opened(FROZEN[:5] + b"\2" + FROZEN[6:], tmp_path)


def test_a_large_state_is_warned_of(
    shelf_of: Callable[..., Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_LARGE", 1 << 20)
    shelf = shelf_of(memory_backend(), "memory")
    with caplog.at_level(logging.WARNING):
        backend = shelf.open()
        backend.write([(b"\0\1a", bytes(1 << 19))])
        shard = shelf.seal(backend)
        assert not caplog.messages
        backend = shelf.open(shard)
        backend.write([(b"\0\1b", bytes(1 << 20))])
        shelf.seal(backend)
    assert caplog.messages == [
        "a shard in memory has 1 MiB and is written in full with every batch: use the rocksdb backend"
    ]


def test_a_full_disk_names_the_scratch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    backend = memory_backend(0)(Shard(0, 127, "memory"), tmp_path / "scratch", lambda _: tmp_path)
    backend.write([(b"\0\1a", b"x")])
    monkeypatch.setattr(Path, "write_bytes", full)
    with refused(UnavailableError, "scratch is full"):
        backend.snapshot()


def test_a_threshold_beyond_a_record_is_refused() -> None:
    with refused(UsageError, "inline_threshold"):
        memory_backend(2 << 20)


def test_a_bit_that_flipped_in_a_cached_file_is_found(tmp_path: Path) -> None:
    made = tmp_path / "cached"
    backend = memory.memory_backend(0)(
        Shard(first=0, last=1, backend="memory"), tmp_path / "a", lambda ref: made
    )
    backend.write([(b"\0\0\0\1key", b"value100")])
    (file,) = backend.snapshot().new
    assert file.path is not None
    made.write_bytes(file.path.read_bytes())
    size, xxh3 = checksum(made)
    made.write_bytes(made.read_bytes().replace(b"value100", b"value101"))
    shard = Shard(first=0, last=1, backend="memory", files=(FileRef(file.name, size, xxh3, path="x"),))
    with refused(CorruptError, "does not match its checksum"):
        memory.memory_backend(0)(shard, tmp_path / "b", lambda ref: made)
