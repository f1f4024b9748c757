"""Streams whose rows replace each other: what may follow them, and making rows of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stateflow.errors import UsageError
from stateflow.pipelines.rows import RowType, row_type

OPERATION, UPSERT, DELETE = "_op", "upsert", "delete"
"""The column that tells what a change is, where a stream deletes, too; and what stands in it."""


def refuse_changes(step: str, changes: tuple[str, ...] | None, step_before: str) -> None:
    """Whether a step that takes each row for a new one may follow."""
    if changes is not None:
        keys = f" by {', '.join(changes)}" if changes else ""
        raise UsageError(
            f"{step}: the rows of {step_before} replace each other{keys}: take them with .upsert(), or make them rows with "
            ".changes_as_rows(op='op')"
        )


def refuse_mixed(operations: set[str], step_before: str) -> None:
    """Whether the rows of several streams can be of one."""
    if len(operations) > 1:
        raise UsageError(
            f"union: of the streams beside {step_before} some delete and others do not: make rows of each with "
            ".changes_as_rows(op='op') first"
        )


def operation_rows(rows: RowType, op: str, operation: str) -> RowType:
    """The rows with a column `op` that says what each change is; `operation` is where it stands already, if it does."""
    if rows.field(op) is not None and op != operation:
        raise UsageError(f"changes_as_rows: {rows.name} has a column {op!r} already: give op= another name")
    plain = replace(rows, fields=tuple(field for field in rows.fields if field.name != operation))
    return row_type(f"{plain.ddl}, `{op}` string")


def with_operation(op: str, operation: str, frame: Any) -> Any:
    """A DataFrame with that column, as the last one."""
    names = [f"`{name}`" for name in frame.columns if name != operation]
    return frame.selectExpr(*names, f"`{operation}` as `{op}`" if operation else f"'{UPSERT}' as `{op}`")
