"""The manifest of a RocksDB database: which files it consists of, which keys each spans, and how old its entries are.

A manifest is a log of changes. Its records lie in blocks of 32 KiB: `[checksum u32][length u16][kind u8][bytes]`, where a
long one goes on in the next record. A change is a row of fields, each a tag and what the tag stands for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError

from stateflow.errors import CorruptError
from stateflow.state.backends.blocks import DamagedBlockError, varint

_BLOCK = 32 << 10
_record = Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4

_COMPARATOR, _LOG, _NEXT_FILE, _LAST_SEQUENCE, _CURSOR, _DELETED, _NEW = 1, 2, 3, 4, 5, 6, 7
_PREVIOUS_LOG, _MIN_LOG, _NEW_2, _NEW_3, _NEW_4 = 9, 10, 100, 102, 103
_FAMILY, _FAMILY_ADDED, _FAMILY_DROPPED, _MAX_FAMILY, _GROUP = 200, 201, 202, 203, 300
_IGNORABLE = 1 << 13
"""Tags with this bit have their length in front, for readers that do not know them."""
_NUMBERS = frozenset(
    (_LOG, _NEXT_FILE, _LAST_SEQUENCE, _PREVIOUS_LOG, _MIN_LOG, _FAMILY, _MAX_FAMILY, _GROUP)
)
_TEXTS = frozenset((_COMPARATOR, _FAMILY_ADDED))
_END_OF_FILE_FIELDS = 1


@dataclass(frozen=True, slots=True)
class LiveFile:
    """One file of the database."""

    name: str
    level: int
    smallest: bytes
    largest: bytes
    """Of its keys, ranges that it deletes included."""
    first_sequence: int
    last_sequence: int

    def spans(self, begin: bytes, end: bytes) -> bool:
        """Whether it may say something of the keys from `begin` to `end`, exclusive."""
        return self.smallest < end and self.largest >= begin


def live_files(manifest: bytes, name: str) -> list[LiveFile]:
    """The files of the database after all changes, by name. `name` is how an error calls the manifest."""
    return _after_all_changes(manifest, name)[0]


def files_remembered(manifest: bytes, name: str) -> list[LiveFile]:
    """Every file that the manifest tells of, also those that a later change took away: its bytes still have their first and last keys."""
    return _after_all_changes(manifest, name)[1]


def _after_all_changes(manifest: bytes, name: str) -> tuple[list[LiveFile], list[LiveFile]]:
    live: dict[int, LiveFile] = {}
    added: list[LiveFile] = []
    try:
        for change in _records(manifest):
            _apply(change, live, added)
    except (DamagedBlockError, StructError, IndexError, ValueError) as error:
        raise CorruptError(
            f"the state file {name} is damaged ({error or type(error).__name__}): run `stateflow verify` and restore an intact "
            "checkpoint"
        ) from None
    return [live[number] for number in sorted(live)], added


def _records(log: bytes) -> Iterator[bytes]:
    at, parts = 0, b""
    while at + _record.size <= len(log):
        rest = _BLOCK - at % _BLOCK
        if rest < _record.size:
            at += rest
            continue
        _, length, kind = _record.unpack_from(log, at)
        if kind == 0 and length == 0:
            at += rest  # the block was filled up
            continue
        begin = at + _record.size
        at = begin + length
        if at > len(log) or kind not in (_FULL, _FIRST, _MIDDLE, _LAST):
            raise DamagedBlockError("a record that leads out of it")
        body = log[begin:at]
        if kind in (_FULL, _FIRST):
            parts = b""
        parts += body
        if kind in (_FULL, _LAST):
            yield parts
            parts = b""


def _apply(change: bytes, live: dict[int, LiveFile], added: list[LiveFile]) -> None:
    at = 0
    while at < len(change):
        tag, at = varint(change, at)
        if tag & _IGNORABLE or tag in _TEXTS:
            _, at = _text(change, at)
        elif tag in _NUMBERS:
            _, at = varint(change, at)
        elif tag == _DELETED:
            _, at = varint(change, at)
            number, at = varint(change, at)
            live.pop(number, None)
        elif tag == _CURSOR:
            _, at = varint(change, at)
            _, at = _text(change, at)
        elif tag == _NEW_4:
            number, file, at = _file(change, at)
            live[number] = file
            added.append(file)
        elif tag in (_NEW, _NEW_2, _NEW_3, _FAMILY_DROPPED):
            raise DamagedBlockError(f"a change of kind {tag}, which the backend's RocksDB does not write")
        else:
            raise DamagedBlockError(f"a change of kind {tag}")


def _file(change: bytes, at: int) -> tuple[int, LiveFile, int]:
    level, at = varint(change, at)
    number, at = varint(change, at)
    _, at = varint(change, at)  # its size
    smallest, at = _text(change, at)
    largest, at = _text(change, at)
    first, at = varint(change, at)
    last, at = varint(change, at)
    while True:
        field, at = varint(change, at)
        if field == _END_OF_FILE_FIELDS:
            break
        _, at = _text(change, at)
    return number, LiveFile(f"{number:06d}.sst", level, smallest[:-8], largest[:-8], first, last), at


def _text(change: bytes, at: int) -> tuple[bytes, int]:
    length, at = varint(change, at)
    end = at + length
    if end > len(change):
        raise DamagedBlockError("a text that leads out of its change")
    return change[at:end], end
