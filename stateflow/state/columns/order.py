"""The order of many keys, found before they are cut into bytes. Backends read and write sorted keys several times faster,
and so does everything before them: the bytes of neighbours lie beside each other in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.format.scalars import KEYS
from stateflow.state.keys.arrow_bytes import Array
from stateflow.state.keys.columns import text_of, words_of

_FIXED = frozenset(scalar.name for scalar in KEYS if scalar.key_words)
_MOST_BYTES = 32
"""Leading bytes of texts that are compared first; texts that agree in them are compared as a whole."""
_FIRST_BYTES: Array = np.array([~((1 << 64 - 8 * n) - 1) & (1 << 64) - 1 for n in range(9)], dtype=np.uint64)
"""Masks that keep the first bytes of a word."""


def sort_words(types: Sequence[str], columns: Sequence[Any], groups: Array) -> tuple[list[Array], bool]:
    """Numbers that sort as the encoded keys do, the most significant first; and whether they tell all keys apart."""
    words = [groups.astype(np.uint64)]
    for name, column in zip(types, columns, strict=True):
        if name in _FIXED:
            words += [word.astype(np.uint64) for word in words_of(name, column)]
            continue
        some, exact = _text_words(name, column)
        words += some
        if not exact:
            return words, False
    return words, True


def order_of(words: Sequence[Array]) -> Array | None:
    """The indices that sort rows by their words; None when they are sorted already."""
    packed = _packed(words)
    if not packed or _is_sorted(packed):
        return None
    first = packed[0]
    order = np.argsort(first)
    tied = tied_rows([first], order) if len(packed) > 1 else None
    if tied is not None:
        places = order[tied]
        order[tied] = places[np.lexsort([word[places] for word in reversed(packed)])]
    return order


def tied_rows(words: Sequence[Array], order: Array | None) -> Array | None:
    """Which of the sorted rows agree with a neighbour in all words, if any does."""
    equal: Any = True
    for word in words:
        row = word if order is None else word[order]
        equal = equal & (row[1:] == row[:-1])
    if not bool(np.any(equal)):
        return None
    tied = np.zeros(len(words[0]), dtype=bool)
    tied[1:] = equal
    tied[:-1] |= equal
    return tied


def inverse(order: Array) -> Array:
    """Where each row is among the sorted ones."""
    back = np.empty(len(order), dtype=np.int64)
    back[order] = np.arange(len(order))
    return back


def _packed(words: Sequence[Array]) -> list[Array]:
    """The same in as few words as the ranges of their values allow."""
    packed: list[Array] = []
    room = 0
    for word in words:
        if not len(word):
            return []
        low, high = word.min(), word.max()
        bits = int(high - low).bit_length()
        if not bits:
            continue
        if bits <= room:
            packed[-1] = (packed[-1] << np.uint64(bits)) | (word - low)
            room -= bits
        else:
            packed.append(word - low)
            room = 64 - bits
    return packed


def _is_sorted(words: Sequence[Array]) -> bool:
    decided: Any = False
    for word in words:
        above, below = word[1:], word[:-1]
        if not bool(np.all(decided | (above >= below))):
            return False
        decided = decided | (above > below)
    return True


def _text_words(name: str, column: Any) -> tuple[list[Array], bool]:
    """The first bytes of each text, with zeros behind it."""
    offsets, data = text_of(name, column)
    lengths = np.diff(offsets)
    longest = int(lengths.max(initial=0))
    exact = longest <= _MOST_BYTES and not bool((data == 0).any())
    padded = np.concatenate([data, np.zeros(8, dtype=np.uint8)])
    # One word begins at every byte.
    at_byte: Array = np.ndarray((len(data) + 1,), dtype=">u8", buffer=padded, strides=(1,))
    words = []
    for begin in range(0, min(longest, _MOST_BYTES), 8):
        left = np.clip(lengths - begin, 0, 8)
        word = at_byte[np.minimum(offsets[:-1] + begin, len(data))].astype(np.uint64)
        words.append(word & _FIRST_BYTES[left])
    return words, exact


def taken(column: Any, order: Array) -> Any:
    """The rows of an array in another order."""
    return column.take(pa.array(order)) if isinstance(column, pa.Array) else column[order]
