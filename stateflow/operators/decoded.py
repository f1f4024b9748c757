"""Decodes many keys at once: with a Python call per key, decoding took a tenth of the time of firing timers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stateflow.format.encoding import EMPTY_NAMESPACE, SIGN
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.values.arrow.packed_instants import datetimes_of

_WORDS = frozenset(("int", "datetime"))
"""Types that are one word of eight bytes in a key."""
_KEY_AT = 4
"""Where the key begins in a full key: behind key group and state id."""


def decoded_keys(codec: KeyCodec, full: Sequence[bytes]) -> list[Any]:
    """The keys of full keys with the empty namespace."""
    if full and all(name in _WORDS for name in codec.types):
        try:
            columns = _columns(codec.types, full)
        except ValueError:  # one of them is damaged; below, the codec says which
            pass
        else:
            return columns[0] if len(columns) == 1 else list(map(codec.make, *columns))
    return [codec.decode(each, _KEY_AT)[0] for each in full]


def _columns(types: Sequence[str], full: Sequence[bytes]) -> list[list[Any]]:
    """A list per part of the key; ValueError when one of them cannot be such a key."""
    raw, words = b"".join(full), [(f"f{i}", ">u8") for i in range(len(types))]
    form = np.dtype([("head", f"V{_KEY_AT}"), *words, ("namespace", f"V{len(EMPTY_NAMESPACE)}")])
    if set(map(len, full)) != {form.itemsize}:
        raise ValueError("keys of another width")
    rows = np.frombuffer(raw, dtype=form)
    out = []
    for i, name in enumerate(types):
        values = signed(rows[f"f{i}"])
        out.append(datetimes_of(values) if name == "datetime" else values.tolist())
    return out


def signed(words: Any) -> Any:
    """Signed integers from words that sort as they do."""
    return (words.astype(np.uint64) ^ np.uint64(SIGN)).view(np.int64)
