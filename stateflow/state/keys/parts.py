"""The columns of many full keys at once: what `columns` encodes, decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.errors import CorruptError, IncompatibleError
from stateflow.format.encoding import SIGN
from stateflow.state.keys.arrow_bytes import Array, of_decimal_words
from stateflow.state.keys.arrow_types import DECIMAL, INSTANT

_LONG_SIGN = np.uint64(SIGN)
_DAY_SIGN = np.uint32(1 << 31)


class KeyParts:
    """Reads the same part of all keys, one part after the other."""

    def __init__(self, keys: Sequence[bytes], where: str) -> None:
        self._keys = keys
        self._where = where
        self._raw = b"".join(keys)
        self._data: Array = np.frombuffer(self._raw, dtype=np.uint8)
        lengths = np.fromiter(map(len, keys), dtype=np.int64, count=len(keys))
        self._ends: Array = np.cumsum(lengths)
        self._starts: Array = self._ends - lengths
        self._pairs: Array | None = None
        self._width = int(lengths[0])
        # While all keys are alike, the offset in each of them; else the position of each in the joined bytes.
        self._at: int | Array = 0 if bool((lengths == self._width).all()) else self._starts

    def group(self) -> Array:
        return self._word(2).astype(np.int32)

    def state_id(self) -> Array:
        return self._word(2)

    def part(self, name: str) -> Any:
        """A part of the key as an Arrow array."""
        match name:
            case "bool":
                return pa.array(self._bytes(1)[:, 0] == 1)
            case "int":
                return pa.array(self.signed())
            case "date":
                days = (self._word(4).astype(np.uint32) ^ _DAY_SIGN).view(np.int32)
                return pa.array(days).cast(pa.date32())
            case "datetime":
                return pa.array(self.signed()).cast(INSTANT)
            case "decimal":
                words = np.empty((len(self._keys), 2), dtype="<u8")
                words[:, 1] = self._word(8).astype(np.uint64) ^ _LONG_SIGN
                words[:, 0] = self._word(8)
                return of_decimal_words(words, DECIMAL)
        return self._text(name)

    def signed(self) -> Array:
        """A number of 64 bits."""
        return (self._word(8).astype(np.uint64) ^ _LONG_SIGN).view(np.int64)

    def namespace(self) -> None:
        """Passes over the empty namespace."""
        if self._bytes(1).any():
            raise IncompatibleError(
                f"{self._where} holds entries under namespaces, which its record does not name, as a newer stateflow may write "
                "them: use that version, or upgrade this one"
            )

    def list_position(self) -> tuple[Array, Array]:
        """Slot and position."""
        return self._word(8).astype(np.int64), self._word(4).astype(np.int64)

    def end(self) -> None:
        at = self._position()
        if bool((at != self._ends).any()):
            raise self._damaged(int(np.flatnonzero(at != self._ends)[0]), "goes on after its end")

    def _word(self, width: int) -> Array:
        return self._bytes(width).view(f">u{width}")[:, 0]

    def _bytes(self, width: int) -> Array:
        at = self._at
        if isinstance(at, int):
            if at + width > self._width:
                raise self._damaged(0, "ends too early")
            self._at = at + width
            block = self._data.reshape(len(self._keys), self._width)[:, at : at + width]
            return np.ascontiguousarray(block)
        short = at + width > self._ends
        if bool(short.any()):
            raise self._damaged(int(np.flatnonzero(short)[0]), "ends too early")
        self._at = at + width
        return np.lib.stride_tricks.sliding_window_view(self._data, width)[at]

    def _position(self) -> Array:
        return self._starts + self._at if isinstance(self._at, int) else self._at

    def _text(self, name: str) -> Any:
        begins = self._position()
        # Inside a part 00 is always followed by FF, so the first 00 01 from its beginning is its end.
        if self._pairs is None:
            self._pairs = np.flatnonzero((self._data[:-1] == 0) & (self._data[1:] == 1))
        at = np.searchsorted(self._pairs, begins)
        ends = np.append(self._pairs, len(self._data))[at]
        late = ends + 2 > self._ends
        if bool(late.any()):
            raise self._damaged(int(np.flatnonzero(late)[0]), "ends too early")
        self._at = ends + 2
        raw = self._raw
        parts = [raw[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
        if b"\0" in b"".join(parts):
            parts = [part.replace(b"\0\xff", b"\0") for part in parts]
        array = pa.array(parts, type=pa.binary())
        if name == "bytes":
            return array
        try:
            return array.cast(pa.string())
        except pa.ArrowInvalid:
            raise self._damaged(
                next(i for i, part in enumerate(parts) if not _is_text(part)), "is not text"
            ) from None

    def _damaged(self, index: int, how: str) -> CorruptError:
        return CorruptError(
            f"{self._where}: the state key {self._keys[index].hex()} {how}; run `stateflow verify`"
        )


def _is_text(part: bytes) -> bool:
    try:
        part.decode()
    except UnicodeDecodeError:
        return False
    return True
