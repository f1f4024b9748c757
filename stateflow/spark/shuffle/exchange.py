"""Brings the rows of a key together: key group, subtask, one shuffle, one sort, by Spark or by the task.

    _sf_group   pmod(xxhash64(key), max parallelism)
    _sf_place   one long that decides nearly all comparisons: the key group, then the key's low bits or a hash of it

If the sort began with the key group alone, it would compare whole rows for all but the first key of a group. Where the rows
of a key need no order, Spark does not sort at all: the task sorts them (`spark/task/sorted_rows.py`), by the place alone where no
two keys share one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stateflow.errors import IncompatibleError, UsageError
from stateflow.format.keygroups import default_assignment
from stateflow.format.scalars import BY_NAME
from stateflow.operators.condition_sql import NotInSparkError, default_sql
from stateflow.pipelines.rows.conversions import converted
from stateflow.pipelines.rows.row_type import RowType, key_advice, key_type, quoted
from stateflow.spark.internals.plans import keep_empty_tasks
from stateflow.spark.shuffle.numbered_tasks import to_tasks
from stateflow.spark.task.carried import GROUP_AT, Carried, carried, everything

GROUP, PLACE, LATE, SIDE = "_sf_group", "_sf_place", "_sf_late", "_sf_side"


@dataclass(frozen=True)
class KeyedInput:
    """One input of an operator, as its frame comes in."""

    frame: DataFrame
    columns: tuple[str, ...]
    order_by: tuple[str, ...]
    rows: RowType
    declared: RowType | None = None
    """All columns that its rows are declared with, where the operator needs only some."""

    @cached_property
    def types(self) -> dict[str, str]:
        """The columns that come in, and their types."""
        return dict(self.frame.dtypes)


def key_types_of(uid: str, keyed: KeyedInput) -> tuple[str, ...]:
    """The key's types: the row type declares them, or else the frame has them."""
    out = []
    for name in keyed.columns:
        field = keyed.rows.field(name)
        spark = field.type if field is not None else keyed.types.get(name)
        if spark is None:
            raise _missing(uid, name, keyed.frame)
        kind = key_type(spark)
        if kind is None:
            raise UsageError(
                f"operator {uid!r}: key column {name!r} is a {spark}, which cannot be a key: {key_advice(spark)}"
            )
        out.append(kind)
    return tuple(out)


def same_key_types(uid: str, inputs: Sequence[KeyedInput]) -> tuple[str, ...]:
    """The key's types, which all inputs have in common."""
    types, *others = (key_types_of(uid, keyed) for keyed in inputs)
    for other in others:
        if other != types:
            raise IncompatibleError(
                f"operator {uid!r}: its two inputs are keyed by different types, ({', '.join(types)}) and "
                f"({', '.join(other)}): cast one of them"
            )
    return types


def carried_by(inputs: Sequence[KeyedInput], key_types: Sequence[str], *, place: bool = True) -> Carried:
    """The columns that an operator's task needs of these inputs; with `place`, it takes the rows in that order."""
    late = any(LATE in keyed.frame.columns for keyed in inputs)
    ordered = any(keyed.order_by for keyed in inputs)
    rows = [keyed.rows for keyed in inputs]
    columns = [keyed.columns for keyed in inputs]
    return carried(columns, key_types, rows, late=late, ordered=ordered, place=place)


def exchanged(
    uid: str,
    inputs: Sequence[KeyedInput],
    key_types: tuple[str, ...],
    max_parallelism: int,
    assignment: Sequence[tuple[int, int]],
    *,
    ordered: bool = True,
    carry: Carried | None = None,
) -> DataFrame:
    """The operator's rows, partition by subtask, sorted by key group, key, side and order; or not sorted, as `carry` says.

    `carry` says which columns there are; without it all. Built as SQL text: every Column built in Python costs a dozen
    calls into the JVM, which slows small batches down.
    """
    if carry is None:
        carry = everything(len(key_types)) if len(inputs) == 1 else carried_by(inputs, key_types, place=False)
    names = [
        f"_sf_key{i}" if field is None else quoted(inputs[0].rows.fields[field].name)
        for i, field in enumerate(carry.keys)
    ]
    connected = len(inputs) > 1
    frames = []
    for side, keyed in enumerate(inputs):
        keep_empty_tasks(keyed.frame.sparkSession)
        for column in keyed.columns:
            if column not in keyed.frame.columns:
                raise _missing(uid, column, keyed.frame)
        keys = [
            f"cast({quoted(column)} as {BY_NAME[kind].spark})"
            for column, kind in zip(keyed.columns, key_types, strict=True)
        ]
        fields = [(f.name, field_sql(uid, keyed, f.name, f.type)) for f in keyed.rows.fields]
        group = f"cast(pmod(xxhash64({', '.join(keys)}), {max_parallelism}) as int)"
        place = _place(group, key_types, keys)
        columns = [
            f"{place if carry.place else group} as {PLACE if carry.place else GROUP}",
            *(
                f"{key} as {name}"
                for key, name, field in zip(keys, names, carry.keys, strict=True)
                if field is None
            ),
        ]
        if carry.late:
            columns.append(f"{LATE if LATE in keyed.frame.columns else 'false'} as {LATE}")
        if connected:
            columns.append(f"cast({side} as tinyint) as {SIDE}")
            given = dict(zip(carry.sides[side], (value for _, value in fields), strict=True))
            columns += [
                f"{given.get(carry.shared_index + i) or f'cast(null as {kind})'} as _sf_in{i}"
                for i, kind in enumerate(carry.shared)
            ]
        else:
            columns += [f"{value} as {quoted(name)}" for name, value in fields]
        columns += [f"{order_sql(uid, keyed, o)} as _sf_by{side}_{i}" for i, o in enumerate(keyed.order_by)]
        frames.append(keyed.frame.selectExpr(*columns))
    frame = frames[0]
    for further in frames[1:]:
        # Each input has its own order columns: they may differ in number, type and direction.
        frame = frame.unionByName(further, allowMissingColumns=True)
    names_kept = [name for name in frame.columns if not name.startswith("_sf_by")]
    of_row = f"cast(shiftright({PLACE}, {GROUP_AT}) as int)" if carry.place else GROUP
    frame = to_tasks(frame, len(assignment), subtask_of(assignment, max_parallelism, of_row))
    if ordered and not carry.mixed:
        first = PLACE if carry.place else _place(GROUP, key_types, names)
        by = [first, *names, *([SIDE] if connected else [])]
        frame = frame.sortWithinPartitions(*(F.expr(e) for e in by), *directions(inputs))
    return frame.selectExpr(*map(quoted, names_kept)) if len(names_kept) < len(frame.columns) else frame


def spread(uid: str, given: KeyedInput, parallelism: int) -> DataFrame:
    """The rows of an operator without keys, evenly over its subtasks, in their order. Columns: late, then the fields.

    Spark sorts the rows of each task before it deals them out, so that a task that runs twice deals them alike.
    """
    keep_empty_tasks(given.frame.sparkSession)
    columns = [
        f"{LATE if LATE in given.frame.columns else 'false'} as {LATE}",
        *(f"{field_sql(uid, given, f.name, f.type)} as {quoted(f.name)}" for f in given.rows.fields),
        *(f"{order_sql(uid, given, o)} as _sf_by0_{i}" for i, o in enumerate(given.order_by)),
    ]
    frame = given.frame.selectExpr(*columns).repartition(parallelism)
    if not given.order_by:
        return frame
    ordered = frame.sortWithinPartitions(*directions([given]))
    return ordered.selectExpr(LATE, *(quoted(f.name) for f in given.rows.fields))


def subtask_of(assignment: Sequence[tuple[int, int]], max_parallelism: int, group: str = GROUP) -> str:
    """The subtask that owns a key group, as SQL."""
    parallelism = len(assignment)
    if tuple(assignment) == default_assignment(parallelism, max_parallelism):
        return f"cast({group} * {parallelism} div {max_parallelism} as int)"
    owner = [0] * max_parallelism
    for subtask, (first, last) in enumerate(assignment):
        owner[first : last + 1] = [subtask] * (last + 1 - first)
    return f"element_at(array({','.join(map(str, owner))}), {group} + 1)"


def _place(group: str, key_types: tuple[str, ...], keys: Sequence[str]) -> str:
    # A null key goes to a task, too: the task refuses it by name.
    low = f"coalesce({keys[0]}, 0L)" if key_types == ("int",) else f"xxhash64({', '.join(keys)})"
    return f"(shiftleft(cast({group} as bigint), {GROUP_AT}) | ({low} & {(1 << GROUP_AT) - 1}L))"


def directions(inputs: Sequence[KeyedInput]) -> list[Column]:
    """How rows are sorted by their order columns, of which each input has its own."""
    return [
        F.desc(f"_sf_by{side}_{i}") if order.startswith("-") else F.asc(f"_sf_by{side}_{i}")
        for side, keyed in enumerate(inputs)
        for i, order in enumerate(keyed.order_by)
    ]


def order_sql(uid: str, keyed: KeyedInput, order: str) -> str:
    """What rows are sorted by: the column as user code has it, in its declared type and with its default."""
    name = order.removeprefix("-")
    if name not in keyed.frame.columns:
        raise _missing(uid, name, keyed.frame)
    field = (keyed.declared or keyed.rows).field(name)
    if field is None:
        return quoted(name)
    value = field_sql(uid, keyed, name, field.type)
    if field.default is None:
        return value
    try:
        return f"coalesce({value}, {default_sql(field)})"
    except NotInSparkError:
        raise UsageError(
            f"operator {uid!r}: rows cannot be sorted by {name!r}, whose default in {keyed.rows.name} Spark cannot put in: give it a value in "
            "a step before, as in .withColumn(..., F.coalesce(...)), and declare no default"
        ) from None


def field_sql(uid: str, keyed: KeyedInput, name: str, type_: str) -> str:
    """A column of an input in its declared type."""
    have = keyed.types.get(name)
    if have is None:
        raise _missing(uid, name, keyed.frame)
    return converted(f"operator {uid!r}", name, have, type_, keyed.rows.name)


def _missing(uid: str, name: str, frame: DataFrame) -> IncompatibleError:
    have = ", ".join(c for c in frame.columns if not c.startswith("_sf_"))
    return IncompatibleError(
        f"operator {uid!r} needs column {name!r}, which its input does not have; it has {have}"
    )
