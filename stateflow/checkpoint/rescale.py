"""Another parallelism for a job: an edit of its newest record, in which no file is copied. Pure.

A shard's logical range only ever shrinks here, even when pieces of one shard come together again: a piece that was
opened meanwhile has deleted what its sibling owns. Pieces are joined by reading them, inside a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from stateflow.errors import UsageError
from stateflow.format.keygroups import default_assignment
from stateflow.format.records import OperatorListState, OperatorState, Record, Shard


def rescaled(operator: OperatorState, parallelism: int, where: str) -> OperatorState:
    """The operator's state, handed to another number of subtasks."""
    if not 1 <= parallelism <= operator.max_parallelism:
        raise UsageError(
            f"{where} cannot have parallelism {parallelism}: use 1 to {operator.max_parallelism}, its max_parallelism; for "
            "more, restore a canonical savepoint with --max-parallelism"
        )
    assignment = default_assignment(parallelism, operator.max_parallelism)
    if assignment == operator.assignment:
        return operator
    shards = sorted((s for subtask in operator.shards for s in subtask), key=lambda shard: shard.first)
    return msgspec.structs.replace(
        operator,
        assignment=assignment,
        shards=tuple(
            tuple(piece for shard in shards if (piece := clipped(shard, first, last)) is not None)
            for first, last in assignment
        ),
        operator_states={
            name: redistributed(state, parallelism) for name, state in operator.operator_states.items()
        },
        hosts=(),
    )


def kept_key_groups(record: Record, wanted: int, job: str) -> str:
    """Why operators that have state do not get `wanted` key groups, and how they would; empty if they have as many."""
    kept = {uid: o.max_parallelism for uid, o in record.operators.items() if o.max_parallelism != wanted}
    if not kept:
        return ""
    have = ", ".join(f"{uid!r} keeps {count}" for uid, count in sorted(kept.items()))
    return (
        f"of {wanted} key groups {have}, with which its state began; `stateflow savepoint create {job} --type canonical` and "
        f"`stateflow restore {job} ... --from URL --max-parallelism {wanted}` change that"
    )


def clipped(shard: Shard, first: int, last: int) -> Shard | None:
    """What of a shard lies in `first..last`; its files stay, and remember how wide they are."""
    low, high = max(shard.first, first), min(shard.last, last)
    if low > high:
        return None
    if (low, high) == (shard.first, shard.last):
        return shard
    groups = shard.last - shard.first + 1
    return msgspec.structs.replace(
        shard,
        first=low,
        last=high,
        physical_first=shard.first if shard.physical_first is None else shard.physical_first,
        physical_last=shard.last if shard.physical_last is None else shard.physical_last,
        entries=shard.entries * (high - low + 1) // groups,
    )


def joined(shards: Sequence[Shard], limit: int) -> tuple[tuple[Shard, ...], ...]:
    """The shards of a subtask, the two neighbours that are smallest together in one group if they have at most `limit`
    bytes. One pair at a time: a batch after a rescale is to be hardly longer than others."""
    neighbours = [
        (one.bytes + other.bytes, at)
        for at, (one, other) in enumerate(pairwise(shards))
        if one.last + 1 == other.first and one.backend == other.backend
    ]
    size, chosen = min(neighbours, default=(limit + 1, -1))
    if size > limit:
        return tuple((shard,) for shard in shards)
    pair = tuple(shards[chosen : chosen + 2])
    return (*((s,) for s in shards[:chosen]), pair, *((s,) for s in shards[chosen + 2 :]))


def redistributed(state: OperatorListState, parallelism: int) -> OperatorListState:
    """List elements go round in turn; union and broadcast state are everybody's as they are."""
    if state.kind != "list":
        return state
    elements = [element for part in state.parts for element in part]
    parts = tuple(tuple(elements[subtask::parallelism]) for subtask in range(parallelism))
    return msgspec.structs.replace(state, parts=parts)


def rescaled_operators(
    operators: Mapping[str, OperatorState], parallelism: int, job: str
) -> dict[str, OperatorState]:
    """Every operator at the same parallelism."""
    return {
        uid: rescaled(operator, parallelism, f"operator {uid!r} of job {job!r}")
        for uid, operator in operators.items()
    }


def needs_rescale(record: Record | None, parallelism: int) -> bool:
    """Whether a run with this parallelism (0: as it is) has to edit the record first."""
    if record is None or not parallelism:
        return False
    return any(len(operator.assignment) != parallelism for operator in record.operators.values())
