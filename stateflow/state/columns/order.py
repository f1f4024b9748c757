"""The order of many full keys. Backends read and write sorted keys several times faster than others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_PREFIX = 24
"""Bytes of each key that are compared as words; the rest decides only between keys that agree in all of them."""
_WORD = 8


def order_of(keys: Sequence[bytes]) -> Array | None:
    """The indices that sort the keys; None when they are sorted already."""
    if len(keys) < 2:
        return None
    words = _words(keys)
    order = np.argsort(words[0])
    tied = _tied([words[0][order]])
    if tied is not None:
        places = order[tied]
        places = places[np.lexsort([word[places] for word in reversed(words)])]
        again = _tied([word[places] for word in words])
        if again is not None:
            # A word has zeros behind a shorter key, and longer keys are cut off: what still ties is compared as a whole.
            places[again] = sorted(places[again].tolist(), key=keys.__getitem__)
        order[tied] = places
    return None if bool((order[1:] > order[:-1]).all()) else order


def inverse(order: Array) -> Array:
    """Where each key is among the sorted ones."""
    back = np.empty(len(order), dtype=np.int64)
    back[order] = np.arange(len(order))
    return back


def _words(keys: Sequence[bytes]) -> list[Array]:
    """The beginnings of the keys as unsigned words, the most significant first. Bytes that all keys have in common are
    left out: a state's id, or the high bytes of numbers."""
    heads = np.array(keys, dtype=f"S{_PREFIX}").view("u1").reshape(-1, _PREFIX)
    varying = np.flatnonzero((heads != heads[0]).any(axis=0))
    words = []
    for begin in range(0, max(len(varying), 1), _WORD):
        packed = np.zeros((len(keys), _WORD), dtype="u1")
        some = varying[begin : begin + _WORD]
        packed[:, : len(some)] = heads[:, some]
        words.append(packed.view(">u8").reshape(-1).astype("u8"))
    return words


def _tied(words: Sequence[Array]) -> Array | None:
    """Which rows have an equal neighbour, if any has."""
    equal = words[0][1:] == words[0][:-1]
    for word in words[1:]:
        equal &= word[1:] == word[:-1]
    if not bool(equal.any()):
        return None
    tied = np.zeros(len(equal) + 1, dtype=bool)
    tied[1:] = equal
    tied[:-1] |= equal
    return tied
