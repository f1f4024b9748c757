"""The description of an operator for its tasks: plain values that travel to the workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stateflow.errors import UsageError
from stateflow.format.records import StateSchema
from stateflow.pipelines.processes.process import Output, Process
from stateflow.pipelines.rows.row_type import RowType, row_type


@dataclass(frozen=True)
class OperatorSpec:
    """One keyed operator of a pipeline."""

    uid: str
    process: Callable[[], Process[Any]]
    process_type: type[Process[Any]]
    key_columns: tuple[str, ...]
    key_types: tuple[str, ...]
    rows: tuple[RowType, ...]
    """One per input; two for connected streams."""
    output: RowType
    sides: Mapping[str, RowType] = field(default_factory=dict)
    state_ids: Mapping[str, int] = field(default_factory=dict)
    on_error: str = "fail"
    dead_letter_limit: int = 10_000
    """Most rows that one subtask diverts in a batch; one more fails it."""
    indexes: Mapping[str, StateSchema] = field(default_factory=dict)
    """The states that have an index of expiries. Without its index, a state with a ttl hides expired entries and keeps them."""
    evolved: Mapping[str, StateSchema] = field(default_factory=dict)
    """States whose type has changed, so that stored values may be of an earlier type."""
    waited: bool = False
    """True if rows come from another operator, which puts them out when the watermark has reached them. While it takes such
    rows, the watermark of the batch before counts: they are ahead of it."""
    held_back: int = 0
    """By how many microseconds the operator's watermark is behind that of the batch: its rows may be that far behind."""


MAIN = ""
"""The name of an operator's main output, beside its side outputs."""
DEAD_LETTERS = "dead_letters"
DEAD_LETTER = "dead_letter"
"""The `on_error` that diverts the rows on which user code raises."""
DEAD_LETTER_SCHEMA = "operator string, key string, error string, traceback string, rows string, row_count long, checkpoint_id long"
"""One dead letter per failed key and batch; `rows` is a JSON array of the key's rows."""


def check_on_error(uid: str, on_error: str) -> None:
    if on_error not in ("fail", DEAD_LETTER):
        raise UsageError(f"operator {uid!r}: on_error is 'fail' or 'dead_letter', not {on_error!r}")


def side_outputs(uid: str, outputs: Sequence[Output[Any]], on_error: str) -> dict[str, RowType]:
    """An operator's side outputs by name, with its dead letters when it diverts keys."""
    sides = {side.name: row_type(side.type) for side in outputs}
    if len(sides) != len(outputs):
        raise UsageError(f"operator {uid!r}: two side outputs have one name")
    if DEAD_LETTERS in sides or MAIN in sides:
        raise UsageError(
            f"operator {uid!r}: a side output cannot be called {next(n for n in (DEAD_LETTERS, MAIN) if n in sides)!r}, "
            "which is another output's name: rename it"
        )
    if on_error == DEAD_LETTER:
        sides[DEAD_LETTERS] = row_type(DEAD_LETTER_SCHEMA)
    return sides
