"""Reads from a native library's file (ELF, little endian) what it needs from the machine that loads it."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_MACHINES = {3: "i686", 40: "armv7l", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRTAB, _SONAME, _VERNEED, _VERNEEDNUM = 1, 5, 14, 0x6FFFFFFE, 0x6FFFFFFF
_GLIBC = re.compile(r"GLIBC_(\d+)\.(\d+)")
_OF_GLIBC = re.compile(r"(lib(c|m|dl|rt|pthread|util|resolv|mvec)|ld-linux-?[\w-]*)\.so(\.\d+)*$")

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Native:
    """One library or program."""

    machine: str
    needed: tuple[str, ...] = ()
    """Names of the libraries that it links."""
    glibc: Version = (0, 0)
    """The oldest glibc that has every symbol it uses."""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Demands:
    """What many libraries need together."""

    machines: tuple[str, ...]
    glibc: Version
    libraries: tuple[str, ...]
    """Libraries that the host must have: they are neither part of glibc nor among the packed files."""


def native(data: bytes) -> Native | None:
    """The library or program in a file; None when it is not an ELF file."""
    if data[:4] != b"\x7fELF" or len(data) < 64 or data[5] != 1:
        return None
    machine = _MACHINES.get(struct.unpack_from("<H", data, 18)[0], "unknown")
    try:
        return _linked(data, machine) if data[4] == 2 else Native(machine)
    except (struct.error, ValueError):
        return Native(machine)


def demands(natives: Iterable[tuple[str, Native]]) -> Demands:
    """The demands of all libraries. Each comes with the name of its file."""
    machines: set[str] = set()
    packed: set[str] = set()
    needed: set[str] = set()
    glibc: Version = (0, 0)
    for name, each in natives:
        machines.add(each.machine)
        packed |= {name.rpartition("/")[2], each.name}
        needed.update(each.needed)
        glibc = max(glibc, each.glibc)
    foreign = sorted(name for name in needed - packed if not _OF_GLIBC.match(name))
    return Demands(tuple(sorted(machines)), glibc, tuple(foreign))


def _linked(data: bytes, machine: str) -> Native:
    segments = list(_segments(data))
    dynamic = next(((at, size) for kind, at, _, size in segments if kind == _DYNAMIC), None)
    if dynamic is None:
        return Native(machine)
    entries = list(_entries(data, *dynamic))
    tags = dict(entries)
    loads = [(address, at, size) for kind, at, address, size in segments if kind == _LOAD]
    strings = _offset(loads, tags[_STRTAB]) if _STRTAB in tags else 0
    names = tuple(_text(data, strings + value) for tag, value in entries if tag == _NEEDED)
    versions = (
        _versions(data, _offset(loads, tags[_VERNEED]), tags.get(_VERNEEDNUM, 0), strings)
        if _VERNEED in tags
        else ()
    )
    glibc: Version = max(
        ((int(match[1]), int(match[2])) for text in versions if (match := _GLIBC.fullmatch(text))),
        default=(0, 0),
    )
    return Native(machine, names, glibc, _text(data, strings + tags[_SONAME]) if _SONAME in tags else "")


def _segments(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Kind, offset in the file, address and size of each segment."""
    (start,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for i in range(count):
        kind, _, at, address, _, length = struct.unpack_from("<IIQQQQ", data, start + i * size)
        yield kind, at, address, length


def _entries(data: bytes, at: int, size: int) -> Iterator[tuple[int, int]]:
    for place in range(at, at + size, 16):
        tag, value = struct.unpack_from("<qQ", data, place)
        if tag == 0:
            return
        yield tag, value


def _offset(loads: list[tuple[int, int, int]], address: int) -> int:
    for start, at, size in loads:
        if start <= address < start + size:
            return address - start + at
    raise ValueError(f"address {address:#x} is in no segment")


def _versions(data: bytes, at: int, count: int, strings: int) -> Iterator[str]:
    """Names of the symbol versions that it needs, from every library."""
    for _ in range(count):
        _, many, _, first, following = struct.unpack_from("<HHIII", data, at)
        entry = at + first
        for _ in range(many):
            _, _, _, name, step = struct.unpack_from("<IHHII", data, entry)
            yield _text(data, strings + name)
            entry += step
        at += following


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode("ascii", "replace")
