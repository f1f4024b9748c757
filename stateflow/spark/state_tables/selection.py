"""Which part of a table a query needs: the keys that it names, and their key groups. Pure.

A filter that it does not understand selects more, never less: the caller filters the rows again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from stateflow.errors import UsageError
from stateflow.format.encoding import after, prefix
from stateflow.format.keygroups import key_group
from stateflow.state.keys.codec import KeyCodec

MOST_KEYS = 10_000
"""A filter that allows more combinations of key columns than this does not narrow the selection."""

Key = Sequence[tuple[str, str]]
Range = tuple[bytes, bytes]


@dataclass(frozen=True)
class Selection:
    """Key groups and keys. None stands for all of them."""

    groups: frozenset[int] | None = None
    keys: frozenset[tuple[Any, ...]] | None = None
    """Each has a value per key column. Their groups are among `groups`."""

    @property
    def everything(self) -> bool:
        return self.groups is None

    def overlaps(self, first: int, last: int) -> bool:
        """Whether the selection contains any of the key groups `first..last`."""
        return self.groups is None or any(first <= group <= last for group in self.groups)

    def of(self, first: int, last: int) -> list[tuple[int, int]]:
        """The selected key groups within `first..last`, as ranges."""
        if self.groups is None:
            return [(first, last)]
        runs: list[tuple[int, int]] = []
        for group in sorted(g for g in self.groups if first <= g <= last):
            if runs and runs[-1][1] == group - 1:
                runs[-1] = (runs[-1][0], group)
            else:
                runs.append((group, group))
        return runs

    def key_ranges(self, key: Key, max_parallelism: int, state_id: int, first: int, last: int) -> list[Range]:
        """The ranges of full keys that hold the selected keys within key groups `first..last`, in order."""
        ranges = []
        codec = KeyCodec([kind for _, kind in key])
        for values in self.keys or ():
            group = key_group(values, max_parallelism)
            if first <= group <= last and (self.groups is None or group in self.groups):
                begin = prefix(group, state_id) + codec.encode(plain(values))
                ranges.append((begin, after(begin)))
        return sorted(ranges)


EVERYTHING = Selection()


def of_keys(keys: Iterable[Any], key: Key, max_parallelism: int) -> Selection:
    """Selects exactly these keys. Each is a plain value or a tuple, as in user code."""
    codec = KeyCodec([kind for _, kind in key])
    parts = set()
    for key_value in keys:
        # Through bytes and back, so that True and 1, or 1.0 and 1.00, become the value that the state has.
        value = codec.decode(codec.encode(key_value), 0)[0]
        parts.add(tuple(value) if isinstance(value, tuple) else (value,))
    return Selection(frozenset(key_group(part, max_parallelism) for part in parts), frozenset(parts))


def of_values(
    equal: Mapping[str, Sequence[Any]], key: Key, max_parallelism: int, selection: Selection = EVERYTHING
) -> Selection:
    """`selection`, narrowed to rows whose key columns each have one of their values in `equal`."""
    lists = []
    for name, _ in key:
        if name not in equal:
            return selection
        lists.append(equal[name])
    count = 1
    for values in lists:
        count *= len(values)
    if count > MOST_KEYS:
        return selection
    try:
        narrower = of_keys((plain(parts) for parts in product(*lists)), key, max_parallelism)
    except UsageError:
        return selection  # a value that no key of this type can have
    return both(selection, narrower)


def of_groups(groups: Iterable[int]) -> Selection:
    return Selection(frozenset(groups))


def both(one: Selection, other: Selection) -> Selection:
    """The intersection of two selections."""
    if one.groups is None:
        return other
    if other.groups is None:
        return one
    groups = one.groups & other.groups
    if one.keys is None or other.keys is None:
        return replace(one if other.keys is None else other, groups=groups)
    return Selection(groups, one.keys & other.keys)


def plain(parts: tuple[Any, ...]) -> Any:
    """A key as in user code: the value itself when there is one column."""
    return parts[0] if len(parts) == 1 else parts
