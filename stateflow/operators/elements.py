"""Operator state of one subtask: handed out when its task begins, gathered when it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stateflow.errors import StateflowError, StateTypeError, UsageError
from stateflow.pipelines.processes.process import Process
from stateflow.state.values.serializers import Serializer, serializer_for

Elements = Mapping[str, tuple[tuple[bytes, ...], ...]]
"""Per operator state the stored elements of every subtask, or the one copy of broadcast state."""


def hand_out(
    process: Process[Any], elements: Elements, subtask: int, *, whole: bool, watched: bool = False
) -> None:
    """Gives a process its subtask's elements. `whole`: a run begins, so union state shows those of all subtasks. `watched`: `gathered`
    tells of elements that were changed in place and not set.

    Between the batches of a run each subtask goes on with its own, as a task of Flink does between two checkpoints.
    """
    for name, declaration in type(process).declarations().operator.items():
        parts = elements.get(name, ())
        serializer: Serializer = serializer_for(declaration.type)
        state = process.__dict__[name]
        if declaration.kind == "broadcast":
            state.load(serializer.loads(parts[0][0]) if parts and parts[0] else {})
            continue
        own = parts[subtask] if subtask < len(parts) else ()
        shown = whole and declaration.kind == "union"
        others = [raw for at, part in enumerate(parts) if at != subtask for raw in part] if shown else []
        state.load(list(map(serializer.loads, own)), list(map(serializer.loads, others)))
        if watched:
            state.watch_reads(serializer.dumps)


def check_alike(uid: str, name: str, parts: Sequence[tuple[bytes, ...]]) -> None:
    """Broadcast state is recorded once, so every subtask must have reached the same value."""
    if any(part != parts[0] for part in parts):
        raise StateflowError(
            f"operator {uid!r}: broadcast state {name!r} differs between subtasks: process_broadcast must do the same everywhere"
        )


def gathered(uid: str, process: Process[Any]) -> dict[str, tuple[bytes, ...]]:
    """What the record keeps of a process's operator state for this subtask."""
    out: dict[str, tuple[bytes, ...]] = {}
    for name, declaration in type(process).declarations().operator.items():
        serializer: Serializer = serializer_for(declaration.type)
        state = process.__dict__[name]
        if declaration.kind != "broadcast" and (changed := state.changed_in_place()):
            raise UsageError(
                f"operator {uid!r}, state {name!r}: an element that was read was changed in place to {changed[0]!r} and not set, so the change is "
                f"lost: write self.{name}.update(values)"
            )
        try:
            out[name] = tuple(map(serializer.dumps, state.recorded()))
        except StateTypeError as error:
            raise StateTypeError(f"operator {uid!r}, state {name!r}: {error}") from None
    return out
