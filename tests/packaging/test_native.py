"""What native code asks of its host is read from the files themselves."""

from __future__ import annotations

import platform
import random
import struct
from importlib.util import find_spec
from pathlib import Path

import pytest

from stateflow.packaging.native import Demands, Native, demands, native


def rocksdb() -> bytes:
    spec = find_spec("rocksdict")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.so")).read_bytes()


@pytest.fixture(scope="module")
def library() -> bytes:
    return rocksdb()


def test_a_library_of_this_machine_tells_its_machine_its_libraries_and_its_glibc(library: bytes) -> None:
    found = native(library)
    assert found is not None
    assert found.machine == platform.machine()
    assert "libc.so.6" in found.needed
    assert (
        (2, 5) <= found.glibc <= tuple(map(int, platform.libc_ver()[1].split(".")))
    )  # else it would not load here


@pytest.mark.parametrize("data", [b"", b"import os\n", b"\x7fELF", b"\xfe\xed\xfa\xce" + bytes(100)])
def test_what_is_no_library_is_none(data: bytes) -> None:
    assert native(data) is None


def test_a_library_that_is_cut_off_or_damaged_is_not_trusted_and_raises_nothing(library: bytes) -> None:
    random_ = random.Random(5)
    for _ in range(200):
        damaged = bytearray(library[: random_.choice((100, 1000, 4096))])
        for _ in range(4):
            damaged[random_.randrange(64, len(damaged))] = random_.randrange(256)
        assert native(bytes(damaged)) is None or native(bytes(damaged)).machine == platform.machine()  # type: ignore[union-attr]


def test_another_machine_is_told_by_the_header(library: bytes) -> None:
    other = bytearray(library)
    struct.pack_into("<H", other, 18, 183)
    found = native(bytes(other))
    assert found is not None
    assert found.machine == "aarch64"


def test_together_they_ask_for_the_newest_glibc_and_for_what_none_of_them_brings() -> None:
    own = Native("x86_64", ("libc.so.6", "libm.so.6", "libz.so.1"), (2, 17), "libown.so.1")
    user = Native(
        "x86_64", ("libown.so.1", "bundled-1a2b.so", "libssl.so.3", "ld-linux-x86-64.so.2"), (2, 28)
    )
    found = demands([("a/libown.so", own), ("a/user.so", user), ("a.libs/bundled-1a2b.so", Native("x86_64"))])
    assert found == Demands(("x86_64",), (2, 28), ("libssl.so.3", "libz.so.1"))
