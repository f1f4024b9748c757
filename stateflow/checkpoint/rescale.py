"""Another parallelism for a job: an edit of its newest record, in which no file is copied. Pure.

A rescale only narrows ranges. It never joins pieces of one shard again, because a task that opened a piece has deleted the
other pieces' keys from it. Only a run joins pieces, by reading them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec

from stateflow.errors import UsageError
from stateflow.format.keygroups import default_assignment
from stateflow.format.records import OperatorListState, OperatorState, Record, Shard


def rescaled(operator: OperatorState, parallelism: int, where: str) -> OperatorState:
    """The operator's state, divided among another number of subtasks."""
    assignment = _assignment(parallelism, operator.max_parallelism, where)
    if assignment == operator.assignment:
        return operator
    shards = sorted(operator.all_shards, key=lambda shard: shard.first)
    return msgspec.structs.replace(
        operator,
        assignment=assignment,
        shards=tuple(
            tuple(piece for shard in near if (piece := clipped(shard, first, last)) is not None)
            for first, last, near in _divided(shards, assignment)
        ),
        operator_states={
            name: redistributed(state, parallelism) for name, state in operator.operator_states.items()
        },
        hosts=(),
    )


def _divided(
    shards: Sequence[Shard], assignment: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int, Sequence[Shard]]]:
    """Each range with the shards that reach into it. Ranges of shards are ascending and apart, so nobody looks at all of them."""
    firsts, lasts = [shard.first for shard in shards], [shard.last for shard in shards]
    for first, last in assignment:
        yield first, last, shards[bisect_left(lasts, first) : bisect_right(firsts, last)]


def first_assignment(
    uid: str, own: int, parallelism: int, max_parallelism: int
) -> tuple[tuple[int, int], ...]:
    """The key groups of each subtask, before any other assignment. `own` is the parallelism that the pipeline gives the operator. It is taken
    as it is; without it (0) the operator has that of the run, as far as there are key groups."""
    return _assignment(own or min(parallelism, max_parallelism), max_parallelism, f"operator {uid!r}")


def _assignment(parallelism: int, max_parallelism: int, where: str) -> tuple[tuple[int, int], ...]:
    if not 1 <= parallelism <= max_parallelism:
        raise UsageError(
            f"{where} cannot have parallelism {parallelism}: use 1 to {max_parallelism}, its max_parallelism; for "
            "more, restore a canonical savepoint with another max_parallelism (`--max-parallelism`)"
        )
    return default_assignment(parallelism, max_parallelism)


def kept_key_groups(record: Record, count: int, job: str) -> str:
    """Says which operators keep another number of key groups than `count`, and how to change that; empty if none does."""
    others = {uid: o.max_parallelism for uid, o in record.operators.items() if o.max_parallelism != count}
    if not others:
        return ""
    operators = ", ".join(f"{uid!r} keeps {groups}" for uid, groups in sorted(others.items()))
    return (
        f"instead of {count} key groups {operators}, with which its state began; `stateflow savepoint create {job} --type canonical` "
        f"and `stateflow restore {job} ... --from URL --max-parallelism {count}` change that"
    )


def clipped(shard: Shard, first: int, last: int) -> Shard | None:
    """The part of a shard in `first..last`; None if empty. It keeps the files and their original range."""
    low, high = max(shard.first, first), min(shard.last, last)
    if low > high:
        return None
    if (low, high) == (shard.first, shard.last):
        return shard
    groups = shard.last - shard.first + 1

    def share_of(count: int) -> int:
        # What lies below the piece's end without what lies below its beginning: rounded in each piece by itself, a small state
        # would lose its entries to the rounding, more of them with each rescale, until it looks empty.
        return count * (high + 1 - shard.first) // groups - count * (low - shard.first) // groups

    return msgspec.structs.replace(
        shard,
        first=low,
        last=high,
        physical_first=shard.first if shard.physical_first is None else shard.physical_first,
        physical_last=shard.last if shard.physical_last is None else shard.physical_last,
        entries=share_of(shard.entries),
        expiring=tuple(
            msgspec.structs.replace(share, entries=share_of(share.entries), size=share_of(share.size))
            for share in shard.expiring
        ),
    )


def joined(shards: Sequence[Shard], limit: int) -> tuple[tuple[Shard, ...], ...]:
    """The shards of a subtask in groups: the smallest pair of neighbours together if it has at most `limit` bytes, all others
    alone. It joins only one pair, so that a batch after a rescale takes hardly longer than others."""
    neighbours = [
        (one.bytes + other.bytes, at)
        for at, (one, other) in enumerate(pairwise(shards))
        if one.last + 1 == other.first and one.backend == other.backend
    ]
    size, at = min(neighbours, default=(limit + 1, -1))
    if size > limit:
        return tuple((shard,) for shard in shards)
    pair = tuple(shards[at : at + 2])
    return (*((s,) for s in shards[:at]), pair, *((s,) for s in shards[at + 2 :]))


def redistributed(state: OperatorListState, parallelism: int) -> OperatorListState:
    """Gives the elements of lists and unions to the subtasks round-robin. Broadcast state is one copy and stays as it is."""
    if state.kind == "broadcast":
        return state
    elements = [element for part in state.parts for element in part]
    parts = tuple(tuple(elements[subtask::parallelism]) for subtask in range(parallelism))
    return msgspec.structs.replace(state, parts=parts)


def rescaled_operators(
    operators: Mapping[str, OperatorState], parallelism: int, job: str, own: Mapping[str, int] | None = None
) -> dict[str, OperatorState]:
    """Every operator at this parallelism, except those with one of their own. A run's pipeline names these in `own`; it may have
    changed since the record. For a run, 0 keeps the parallelism of the others.
    """
    out = {}
    for uid, operator in operators.items():
        wanted = _own(uid, operator, own) or parallelism
        keeps = not wanted and own is not None
        out[uid] = operator if keeps else rescaled(operator, wanted, f"operator {uid!r} of job {job!r}")
    return out


def needs_rescale(record: Record | None, parallelism: int, own: Mapping[str, int] | None = None) -> bool:
    """Whether a run must first write a rescale record. 0 keeps the current parallelism."""
    operators = record.operators if record is not None else {}
    return any(
        (wanted := _own(uid, operator, own) or parallelism) and len(operator.assignment) != wanted
        for uid, operator in operators.items()
    )


def _own(uid: str, operator: OperatorState, own: Mapping[str, int] | None) -> int:
    return operator.parallelism if own is None else own.get(uid, 0)
