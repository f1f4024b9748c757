"""Brings the rows of a key together: key group, subtask, one shuffle, one sort.

    _group    pmod(xxhash64(key), max parallelism)
    _order    one long that decides nearly all comparisons of the sort: key group, then the key's low bits or a hash

Sorting by the key group first would leave the sort comparing whole rows for all but the first key of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stateflow.errors import IncompatibleError, UsageError
from stateflow.rows import SPARK_OF_KEY, RowType, key_type
from stateflow.state.keygroups import default_assignment

GROUP, SUBTASK, LATE, SIDE = "_sf_group", "_sf_subtask", "_sf_late", "_sf_side"


@dataclass(frozen=True)
class KeyedInput:
    """One input of an operator, as its frame comes in."""

    frame: DataFrame
    columns: tuple[str, ...]
    order_by: tuple[str, ...]
    rows: RowType


def key_types_of(uid: str, given: KeyedInput) -> tuple[str, ...]:
    """The key's types, by the row type where it says, else by the frame."""
    out = []
    for name in given.columns:
        field = given.rows.field(name)
        spark = field.type if field is not None else dict(given.frame.dtypes).get(name)
        if spark is None:
            raise _missing(uid, name, given.frame)
        found = key_type(spark)
        if found is None:
            raise UsageError(
                f"operator {uid!r}: key column {name!r} is a {spark}, which cannot be a key: "
                "use a bool, int, str, bytes, date, timestamp or decimal"
            )
        out.append(found)
    return tuple(out)


def key_names(count: int) -> list[str]:
    return [f"_sf_key{i}" for i in range(count)]


def exchanged(
    uid: str,
    inputs: Sequence[KeyedInput],
    key_types: tuple[str, ...],
    max_parallelism: int,
    assignment: Sequence[tuple[int, int]],
    *,
    ordered: bool = True,
) -> DataFrame:
    """The operator's rows, partition by subtask, sorted by key group, key, side and order.

    Columns: group, keys, (side, late,) then the fields of the one input, or a struct per input.
    """
    frames = []
    for side, given in enumerate(inputs):
        names = key_names(len(key_types))
        for name in given.columns:
            if name not in given.frame.columns:
                raise _missing(uid, name, given.frame)
        keys = [
            F.col(f"`{name}`").cast(SPARK_OF_KEY[kind]).alias(alias)
            for name, kind, alias in zip(given.columns, key_types, names, strict=True)
        ]
        late = F.col(LATE) if LATE in given.frame.columns else F.lit(False).alias(LATE)
        fields = [_field(uid, given, f.name, f.type) for f in given.rows.fields]
        columns: list[Column] = [*keys, late]
        if len(inputs) > 1:
            columns.append(F.lit(side).cast("tinyint").alias(SIDE))
            for other, theirs in enumerate(inputs):
                shape = f"struct<{','.join(f'`{f.name}`:{f.type}' for f in theirs.rows.fields)}>"
                columns.append(
                    (F.struct(*fields) if other == side else F.lit(None)).cast(shape).alias(f"_sf_in{other}")
                )
        else:
            columns += fields
        columns += [
            _order_column(uid, given, name).alias(f"_sf_by{side}_{i}")
            for i, name in enumerate(given.order_by)
        ]
        frames.append(given.frame.select(*columns))
    frame = frames[0]
    for further in frames[1:]:
        # Each input is ordered by columns of its own: they may differ in number, type and direction.
        frame = frame.unionByName(further, allowMissingColumns=True)
    names = key_names(len(key_types))
    group = F.expr(f"cast(pmod(xxhash64({', '.join(names)}), {max_parallelism}) as int)")
    frame = frame.withColumn(GROUP, group)
    frame = frame.withColumn(SUBTASK, subtask_of(assignment, max_parallelism))
    frame = frame.repartitionById(len(assignment), SUBTASK)
    if ordered:
        by: list[Column | str] = [_prefix(key_types), *names]
        if len(inputs) > 1:
            by.append(SIDE)
        frame = frame.sortWithinPartitions(*by, *_directions(inputs))
    fields_out = [f"_sf_in{i}" for i in range(len(inputs))] if len(inputs) > 1 else list(inputs[0].rows.names)
    sides = [SIDE] if len(inputs) > 1 else []
    picked = [
        F.col(GROUP),
        *map(F.col, names),
        F.col(LATE),
        *map(F.col, sides),
        *(F.col(f"`{n}`") for n in fields_out),
    ]
    return frame.select(*picked)


def subtask_of(assignment: Sequence[tuple[int, int]], max_parallelism: int) -> Column:
    """The subtask that owns a key group, in the JVM."""
    parallelism = len(assignment)
    if tuple(assignment) == default_assignment(parallelism, max_parallelism):
        return F.expr(f"cast({GROUP} * {parallelism} div {max_parallelism} as int)")
    owner = [0] * max_parallelism
    for subtask, (first, last) in enumerate(assignment):
        owner[first : last + 1] = [subtask] * (last + 1 - first)
    return F.expr(f"element_at(array({','.join(map(str, owner))}), {GROUP} + 1)")


def _prefix(key_types: tuple[str, ...]) -> Column:
    names = ", ".join(key_names(len(key_types)))
    low = "_sf_key0" if key_types == ("int",) else f"xxhash64({names})"
    return F.expr(f"shiftleft(cast({GROUP} as bigint), 48) | ({low} & 281474976710655L)")


def _directions(inputs: Sequence[KeyedInput]) -> list[Column]:
    return [
        F.col(f"_sf_by{side}_{i}").desc() if name.startswith("-") else F.col(f"_sf_by{side}_{i}").asc()
        for side, given in enumerate(inputs)
        for i, name in enumerate(given.order_by)
    ]


def _order_column(uid: str, given: KeyedInput, order: str) -> Column:
    name = order.removeprefix("-")
    if name not in given.frame.columns:
        raise _missing(uid, name, given.frame)
    return F.col(f"`{name}`")


def _field(uid: str, given: KeyedInput, name: str, type_: str) -> Column:
    if name not in given.frame.columns:
        raise _missing(uid, name, given.frame)
    return F.col(f"`{name}`").cast(type_).alias(name)


def _missing(uid: str, name: str, frame: DataFrame) -> IncompatibleError:
    have = ", ".join(c for c in frame.columns if not c.startswith("_sf_"))
    return IncompatibleError(
        f"operator {uid!r} needs column {name!r}, which its input does not have; it has {have}"
    )
