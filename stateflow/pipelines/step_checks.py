"""Checks a step of a flow before Spark is there: its source, columns and functions."""

from __future__ import annotations

from os import PathLike
from typing import Any

from stateflow.errors import UsageError
from stateflow.pipelines.code.signatures import takes
from stateflow.pipelines.code.source_text import shown_aggregation
from stateflow.pipelines.graph import NodeRows
from stateflow.pipelines.inputs.input import Declarable, FunctionInput, Input
from stateflow.pipelines.inputs.tables import is_name
from stateflow.pipelines.rows.defaults import Default
from stateflow.pipelines.rows.row_type import RowType


def declared_input(uid: str, factory: Any, rows: RowType | None) -> Input:
    """What a source reads: a table, files, topics, what a package offers, or a function of the SparkSession."""
    if isinstance(factory, Declarable):
        return factory.declared(uid, rows)
    if isinstance(factory, str) and is_name(factory):
        raise UsageError(f"source {uid!r} cannot read {factory!r}: say sf.table({factory!r})")
    if isinstance(factory, str | PathLike):
        raise UsageError(
            f"source {uid!r} cannot read {str(factory)!r}: say sf.delta({str(factory)!r}), or sf.files({str(factory)!r}, 'json')"
        )
    if not callable(factory) or not takes(factory, 1):
        raise UsageError(
            f"source {uid!r} cannot read {factory!r}: give it sf.delta(path), sf.files(path, format), sf.kafka(topic), or a function from SparkSession to a "
            "streaming DataFrame"
        )
    return FunctionInput(factory)


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
    of_mine, of_theirs = one.rows.defaults_but(()), other.rows.defaults_but(())
    for name in mine:
        # Whatever reads the union fills the nulls of all rows alike.
        if of_mine.get(name) != of_theirs.get(name):
            raise UsageError(
                f"{where}: a null of column {name!r} has {_stands_for(of_mine.get(name))} in {one.node.named} and "
                f"{_stands_for(of_theirs.get(name))} in {other.node.named}: give both the same class with transform(..., type=) before"
            )


def _stands_for(default: Default | None) -> str:
    if default is None:
        return "no default"
    return f"the default {default.value!r}" if default.factory is None else "a default of its own"
