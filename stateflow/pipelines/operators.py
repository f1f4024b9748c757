"""What a task needs to know of its operator: plain values that travel to the workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stateflow.pipelines.process import Process
from stateflow.pipelines.rows import RowType


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


MAIN = ""
"""The name of an operator's main output, beside its side outputs."""
DEAD_LETTERS = "dead_letters"
DEAD_LETTER_SCHEMA = "operator string, key string, error string, traceback string, rows string, row_count long, checkpoint_id long"
"""One dead letter per failed key and batch; `rows` is a JSON array of the key's rows."""
