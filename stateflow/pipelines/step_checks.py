"""Checks a step of a flow before Spark is there: its targets, columns and functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

from stateflow.errors import UsageError
from stateflow.names import OPTIONS, suggestion
from stateflow.pipelines.code.signatures import never_runs, takes
from stateflow.pipelines.code.source_text import shown_aggregation
from stateflow.pipelines.conditions.expression import condition_of
from stateflow.pipelines.graph import NodeRows
from stateflow.pipelines.inputs.files import Files
from stateflow.pipelines.inputs.places import between, same_place
from stateflow.pipelines.inputs.tables import DeltaTable
from stateflow.pipelines.rows.row_type import RowType

_TAKES = {
    "append": "delta(path)",
    "upsert": "delta(path)",
    "function": "a function of (frame, delivery)",
    "collect": "memory(name)",
}


def check_source(uid: str, factory: Any) -> None:
    """Whether `factory` can be opened: a table, or a function of the SparkSession."""
    if hasattr(factory, "streaming"):
        return
    if isinstance(factory, str | PathLike):
        raise UsageError(
            f"source {uid!r} cannot read {str(factory)!r}: say sf.delta({str(factory)!r}), or sf.files({str(factory)!r}, 'json')"
        )
    if not callable(factory) or not takes(factory, 1):
        raise UsageError(
            f"source {uid!r} cannot read {factory!r}: give it sf.delta(path), sf.files(path, format), or a function from SparkSession to a "
            "streaming DataFrame"
        )


def check_transform(uid: str, function: Any) -> None:
    """Whether `function` is a stateless step, as far as its source text tells."""
    if not callable(function) or not takes(function, 1):
        raise UsageError(f"{uid} cannot call {function!r}: give transform() a function of one DataFrame")
    if found := shown_aggregation(function):
        raise UsageError(aggregates(uid, found))


def aggregates(uid: str, what: str) -> str:
    """The reason why a step may not aggregate."""
    return (
        f"{uid} has {what}, which would see the rows of one batch only: keep what is summed up in the state of a "
        "keyed operator"
    )


def check_sink(
    uid: str, mode: str, target: Any, options: Mapping[str, Any], rows: RowType | None = None
) -> None:
    """Whether `stream.<mode>(uid, target, **options)` can be; `rows` are the stream's, when they are declared."""
    given = {name: value for name, value in options.items() if value is not None}
    taken = {"keys", "order_by", "operation", "delete_when"} if mode == "upsert" else set()
    if unknown := sorted(set(given) - taken):
        meant = suggestion(unknown[0], taken - {"operation"}, OPTIONS) or ": leave it out"
        raise UsageError(f"sink {uid!r} ({mode}) does not take {', '.join(unknown)}{meant}")
    if not _fits(mode, target):
        raise UsageError(
            f"sink {uid!r} ({mode}) cannot write to {target!r}: give it {_TAKES.get(mode, 'a known mode')}"
            f"{_instead(mode, target)}"
        )
    if isinstance(target, DeltaTable) and target.read_with:
        raise UsageError(
            f"sink {uid!r} ({mode}): option {target.read_with[0]!r} of {target} is for reading it and would do nothing: leave it out; "
            "'delta.*' sets properties of a table that the sink makes"
        )
    if mode == "function" and never_runs(target):
        raise UsageError(
            f"sink {uid!r} (function): {target!r} is an async function or a generator, which does nothing where it is only called: give a "
            "plain function, which may call asyncio.run(...)"
        )
    if mode == "upsert" and not given.get("keys"):
        raise UsageError(f"sink {uid!r} (upsert) has no key columns: say keys=['id']")
    columns = {"keys": _names(given.get("keys")), "order_by": _names(given.get("order_by"))}
    if isinstance(target, DeltaTable):
        columns["partition_by"] = target.partition_by
    # Delta's columns are the same in capitals.
    known = {name.lower() for name in rows.names} if rows is not None else set()
    for what, names in columns.items():
        for name in names:
            if rows is not None and name.lower() not in known:
                raise UsageError(
                    f"sink {uid!r} ({mode}): {rows.name} has no column {name!r} for {what}; "
                    f"it has {', '.join(rows.names)}"
                )
    condition = given.get("delete_when")
    if condition is not None and not isinstance(condition, str):
        raise UsageError(
            f"sink {uid!r} (upsert): delete_when is {condition!r}: give it a condition in SQL, such as \"op = 'delete'\""
        )
    if condition is not None and rows is not None:
        condition_of(f"sink {uid!r} (upsert), delete_when", condition, rows)


def check_table_of_its_own(uid: str, target: Any, others: Iterable[tuple[str, Any]]) -> None:
    """Whether no other sink of the pipeline writes to the same table; `others` are their uids and targets."""
    if not isinstance(target, DeltaTable):
        return
    for other, taken in others:
        if isinstance(taken, DeltaTable) and same_place(taken.path, target.path):
            raise UsageError(
                f"sinks {other!r} and {uid!r} write to one table, {target.path}: give each a path of its own, or union() their rows "
                "before one sink"
            )


def refuse_own_output(sources: Iterable[tuple[str, Any]], sinks: Iterable[tuple[str, Any]]) -> None:
    """UsageError for a source that reads what a sink of its pipeline writes: each run would double the rows."""
    written = [(uid, target) for uid, target in sinks if isinstance(target, DeltaTable)]
    for source, factory in sources:
        for sink, target in written:
            if _reads(factory, target):
                raise UsageError(
                    f"source {source!r} reads {factory.path}, and sink {sink!r} writes to {target.path}, so that every row would come in "
                    "again: give the sink another path"
                )


def _reads(factory: Any, target: DeltaTable) -> bool:
    if isinstance(factory, DeltaTable):
        return same_place(factory.path, target.path)
    if not isinstance(factory, Files):
        return False
    if between(target.path, factory.path) is not None:
        return True
    below = between(factory.path, target.path)
    # Of the folders below its own, Spark reads those of partitions, or all if it is told to.
    return below is not None and (factory.reads_subfolders or all("=" in name for name in below))


def _fits(mode: str, target: Any) -> bool:
    if mode in ("append", "upsert"):
        return isinstance(target, DeltaTable)
    if mode == "function":
        return callable(target) and takes(target, 2)
    return mode == "collect" and getattr(target, "kind", "") == "memory"


def _instead(mode: str, target: Any) -> str:
    word = {"append": "delta", "upsert": "delta", "collect": "memory"}.get(mode)
    return (
        f", here sf.{word}({str(target)!r})" if word and target and isinstance(target, str | PathLike) else ""
    )


def _names(given: str | Iterable[str] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())


def own_parallelism(uid: str, parallelism: int | None) -> int:
    """The number of subtasks that a step asks for; 0 when it leaves that to the run."""
    if parallelism is None:
        return 0
    if isinstance(parallelism, bool) or not isinstance(parallelism, int) or parallelism < 1:
        raise UsageError(
            f"operator {uid!r}: parallelism is the number of its subtasks, at least 1, not {parallelism!r}: leave it out for the "
            "run's"
        )
    return parallelism


def check_same_rows(one: NodeRows, other: NodeRows) -> None:
    """Whether the rows of two streams can be of one, as far as their types are declared."""
    if one.rows is None or other.rows is None:
        return
    mine = {field.name: field.type for field in one.rows.fields}
    theirs = {field.name: field.type for field in other.rows.fields}
    step = "bring both to the same columns with transform(..., type=) before"
    where = f"union: {other.node.named} and {one.node.named}"
    if lone := sorted(mine.keys() ^ theirs.keys()):
        has, lacks = (one, other) if lone[0] in mine else (other, one)
        raise UsageError(
            f"{where}: {has.node.named} has a column {lone[0]!r}, which {lacks.node.named} lacks: {step}"
        )
    for name, kind in mine.items():
        if theirs[name] != kind:
            raise UsageError(
                f"{where}: column {name!r} is a {kind} in {one.node.named} and a {theirs[name]} in {other.node.named}: {step}"
            )
