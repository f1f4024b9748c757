"""Full keys of whole columns at once: the path of columnar operators, where a key may cost 50 ns, not 500."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.errors import UsageError
from stateflow.format.encoding import GROUP_WIDTH, PREFIX_WIDTH, SIGN
from stateflow.format.scalars import KEY_TYPES, KEYS
from stateflow.state.keys.arrow_bytes import Array, decimal_words, put_together, taken_apart
from stateflow.state.keys.arrow_types import ARROW, wide

_DAY_SIGN = np.uint32(1 << 31)
_LONG_SIGN = np.uint64(SIGN)
_WORDS: dict[str, tuple[str, ...]] = {scalar.name: scalar.key_words for scalar in KEYS if scalar.key_words}
_ENCODED_FROM: dict[str, pa.DataType] = {
    name: ARROW[name] if name in _WORDS else pa.large_binary() for name in KEY_TYPES
}


def encode_columns(
    types: Sequence[str], columns: Sequence[Any], key_groups: Array, state_id: int, suffix: bytes
) -> list[bytes]:
    """Adjacent parts of fixed width form one structured array, whose bytes are cut into pieces; texts go in between."""
    block = _Block(len(key_groups))
    block.add(">u2", key_groups)
    block.add(">u2", state_id)
    pieces, block = _pieces(block, types, columns)
    block.add_bytes(suffix)
    if not pieces:
        return block.cut()
    joined = _joined(*pieces, block.array())
    return joined.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def lengthened(keys: Any, types: Sequence[str], columns: Sequence[Any]) -> Any:
    """Keys, as an Arrow array of large binaries, with further parts behind them."""
    pieces, block = _pieces(_Block(len(keys)), types, columns)
    return _joined(keys, *pieces, block.array())


def of_state(keys: Any, state_id: int) -> list[bytes]:
    """Full keys, as an Arrow array of large binaries, of whichever state: the same ones of another state."""
    offsets, data = taken_apart(keys)
    data = data.copy()
    for place, byte in enumerate(state_id.to_bytes(PREFIX_WIDTH - GROUP_WIDTH, "big"), GROUP_WIDTH):
        data[offsets[:-1] + place] = byte
    width = int(offsets[1]) if len(keys) else 0
    if bool((np.diff(offsets) == width).all()) and width:
        return data.view(f"V{width}").tolist()  # type: ignore[no-any-return]
    return put_together(offsets, data).to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def _pieces(block: _Block, types: Sequence[str], columns: Sequence[Any]) -> tuple[list[Any], _Block]:
    """The complete bytes of keys, and the parts of fixed width at their end. `block` has their first bytes."""
    pieces: list[Any] = []
    for name, column in zip(types, columns, strict=True):
        if name in _WORDS:
            for form, word in zip(_WORDS[name], words_of(name, column), strict=True):
                block.add(form, word)
            continue
        pieces += [block.array(), _escaped(name, column)]
        block = _Block(block.count)
        block.add_bytes(b"\0\1")
    return pieces, block


def _joined(*pieces: Any) -> Any:
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.large_binary()))


class _Block:
    """Parts of fixed width of all keys."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._forms: list[str] = []
        self._words: list[Any] = []

    def add(self, form: str, word: Any) -> None:
        self._forms.append(form)
        self._words.append(word)

    def add_bytes(self, constant: bytes) -> None:
        for byte in constant:
            self.add("u1", byte)

    def cut(self) -> list[bytes]:
        """The part of each key."""
        rows = self._rows()
        # Of "V" and not of "S", which would cut zeros off. Slices of the whole would take three times as long.
        return rows.view(f"V{rows.dtype.itemsize}").tolist()  # type: ignore[no-any-return]

    def array(self) -> Any:
        """The part of each key, as an Arrow array."""
        rows = self._rows()
        offsets = np.arange(self.count + 1, dtype=np.int64) * rows.dtype.itemsize
        return put_together(offsets, rows.view(np.uint8))

    def _rows(self) -> Array:
        rows = np.empty(self.count, dtype=[(f"f{i}", form) for i, form in enumerate(self._forms)])
        for index, word in enumerate(self._words):
            rows[f"f{index}"] = word
        return rows


def words_of(name: str, column: Any) -> tuple[Array, ...]:
    """The unsigned words of a fixed-width part."""
    if name == "int" and isinstance(column, np.ndarray) and column.dtype == np.int64:
        return (column.view(np.uint64) ^ _LONG_SIGN,)
    array = _arrow(name, column)
    if name == "bool":
        return (array.cast(pa.uint8()).to_numpy(),)
    if name == "date":
        return (array.cast(pa.int32()).to_numpy().view(np.uint32) ^ _DAY_SIGN,)
    if name == "decimal":
        words = decimal_words(array)
        return words[:, 1] ^ _LONG_SIGN, words[:, 0]
    return (array.cast(pa.int64()).to_numpy().view(np.uint64) ^ _LONG_SIGN,)


def text_of(name: str, column: Any) -> tuple[Array, Array]:
    """Where each text or byte string begins, and the end of the last; and the bytes of all of them."""
    return taken_apart(_arrow(name, column))


def _escaped(name: str, column: Any) -> Any:
    array = _arrow(name, column)
    _, data = taken_apart(array)
    return pc.replace_substring(array, b"\0", b"\0\xff") if bool((data == 0).any()) else array


def key_column(name: str, column: Any) -> Any:
    """One array of the key type's own Arrow type, or of its wide one where the column has that; without nulls."""
    own = ARROW[name]
    return _arrow(name, column, wide(own) if getattr(column, "type", None) == wide(own) else own)


def _arrow(name: str, column: Any, wanted: pa.DataType | None = None) -> Any:
    """One array of the type that the encoding starts from, without nulls."""
    wanted = wanted or _ENCODED_FROM[name]
    try:
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        elif not isinstance(column, pa.Array):
            column = pa.array(column, type=pa.string() if name == "str" else None, from_pandas=True)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_timestamp(column.type) and column.type.tz is None:
            raise UsageError(
                "a key column of timestamps has no time zone, so it names no instants: give it one"
            )
        if name == "str" and not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            raise pa.ArrowInvalid(f"it holds {column.type}")
        if column.type != wanted:
            column = pc.cast(column, wanted)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"a key column cannot be read as {name}: {error}") from None
    if column.null_count:
        raise UsageError(f"a key column holds {column.null_count} nulls: drop such rows or give them a value")
    return column
