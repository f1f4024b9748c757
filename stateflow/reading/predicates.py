"""What a bisection looks for: a condition in the part of SQL that `where=` takes, or a Python function.

A condition has `value` and `previous`, the value in the checkpoint before; of a value with fields each field by its name, and
as `previous_FIELD`. As in SQL, a comparison with nothing is neither true nor false, and does not hold.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stateflow.errors import UsageError, UserCodeError, placed
from stateflow.format.records import StateSchema
from stateflow.format.scalars import BY_NAME
from stateflow.pipelines.conditions.expression import condition_of
from stateflow.pipelines.rows.row_type import Field, RowType
from stateflow.state.values import schema_text

PREVIOUS = "previous"
_OTHERWISE = {
    "--first": "give a Python function, as FILE:FUNCTION",
    "--expect": "give the right value, with --expect-value",
}
"""What serves where a condition does not."""

_Pair = tuple[Any, Any]
"""A value, and the one in the checkpoint before."""


@dataclass(frozen=True)
class Predicate:
    """Whether something is wrong with a value."""

    text: str
    of_each: Callable[[Sequence[_Pair]], Iterable[bool]]
    """Whether it holds for each value and the previous one."""
    uses_previous: bool

    def holds(self, value: Any, previous: Any) -> bool:
        return next(iter(self.of_each([(value, previous)])))


def condition(text: str, schema: StateSchema, what: str = "--first") -> Predicate:
    """The condition over values of a state; `what` names it. UsageError names what there is."""
    fields = _fields(schema)
    otherwise = _OTHERWISE.get(what, _OTHERWISE["--first"])
    if not fields:
        raise UsageError(
            f"values of kind {schema.kind} with the type {schema.value} have no columns for a condition: {otherwise}"
        )
    struct = [name for name, _ in fields] != ["value"] or _is_struct(schema)
    own = dict(fields)
    former = {_former(name, struct): name for name in own}
    columns = {**own, **{name: own[of] for name, of in former.items() if name not in own}}
    rows = RowType(
        "the state", tuple(Field(name, kind) for name, kind in columns.items()), make=tuple, typed=False
    )
    expression = condition_of(what, text, rows, otherwise)
    used = set(expression.columns())
    for name in sorted(used & own.keys() & former.keys()):
        raise UsageError(
            f"{what}: {name!r} is a field of the state, and would be the former value of its field {former[name]!r}, too: {otherwise}"
        )

    def of_each(pairs: Sequence[_Pair]) -> Iterator[bool]:
        # A command that evaluates no condition does not wait for pyarrow.
        import pyarrow as pa

        from stateflow.pipelines.conditions.evaluation import holds

        values = [
            {_former(name, struct): one for name, one in _row(before, struct).items()} | _row(now, struct)
            for now, before in pairs
        ]
        try:
            yield from holds(
                expression, lambda name: pa.array([row.get(name) for row in values]), len(values)
            ).tolist()
        except (OverflowError, pa.ArrowException) as error:
            if len(pairs) > 1:  # One in front of it may be the one that is looked for.
                for pair in pairs:
                    yield from of_each([pair])
            elif isinstance(error, OverflowError):
                raise UserCodeError(f"{what}: {error}") from error
            else:
                raise UsageError(
                    f"{what}: {text!r} compares values of two types: {error}; {otherwise}"
                ) from error

    return Predicate(text, of_each, bool(used & former.keys()))


def _is_struct(schema: StateSchema) -> bool:
    return schema.kind != "timer" and not list(_of_tree("value", schema_text.read_schema(schema.value)))


def _former(name: str, struct: bool) -> str:
    """What a condition calls the value in the checkpoint before."""
    return f"{PREVIOUS}_{name}" if struct else PREVIOUS


def _row(value: Any, struct: bool) -> dict[str, Any]:
    if not struct:
        return {"value": value}
    return value if isinstance(value, dict) else {}


def _fields(schema: StateSchema) -> list[tuple[str, str]]:
    """Names and Spark's types of what a condition can use."""
    if schema.kind == "timer":
        return [] if schema.many else [("value", "timestamp")]
    if schema.kind in ("list", "columns") or schema.by or schema.timed:
        return []
    try:
        tree = schema_text.read_schema(schema.value)
    except schema_text.UnreadableText:
        return []
    return list(_of_tree("value", tree)) or list(_of_struct(tree))


def _of_tree(name: str, tree: Any) -> Iterator[tuple[str, str]]:
    if isinstance(tree, schema_text.OptionalText):
        tree = tree.item
    if isinstance(tree, schema_text.ScalarText) and tree.name in BY_NAME:
        yield name, BY_NAME[tree.name].spark


def _of_struct(tree: Any) -> Iterator[tuple[str, str]]:
    if isinstance(tree, schema_text.OptionalText):
        tree = tree.item
    if isinstance(tree, schema_text.StructText):
        for field in tree.fields:
            yield from _of_tree(field.name, field.type)


def function(name: str, call: Callable[..., Any]) -> Predicate:
    """A Python function of the value, or of the value and the one in the checkpoint before. UsageError where it is not clear which."""
    count = _values_taken(name, call)

    def holds(value: Any, previous: Any) -> bool:
        try:
            return bool(call(value) if count == 1 else call(value, previous))
        except Exception as error:
            nothing = "; where there is nothing it gets None" if value is None or previous is None else ""
            raise UserCodeError(f"{name} failed: {placed(error)}{nothing}") from error

    return Predicate(name, lambda pairs: (holds(*pair) for pair in pairs), count == 2)


def _values_taken(name: str, call: Callable[..., Any]) -> int:
    """How many values it is called with. A parameter with a default is the user's own, such as a limit, and keeps it."""
    try:
        parameters = tuple(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):
        parameters = ()
    for each in parameters:
        if each.kind is each.VAR_POSITIONAL:
            raise UsageError(
                f"{name} takes *{each.name}: name its arguments, the value, or the value and the previous one"
            )
    in_order = [
        each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    if len(in_order) > 1 and _has_default(in_order[1]):
        second = in_order[1].name
        raise UsageError(
            f"{name}: its second argument {second!r} has a default: leave the default out to get the previous value in it, or write "
            f"`*, {second}=...` to keep the default"
        )
    count = sum(not _has_default(each) for each in in_order) or len(in_order)
    others = [each for each in parameters if each.kind is each.KEYWORD_ONLY and not _has_default(each)]
    if count not in (1, 2) or others:
        raise UsageError(
            f"{name} has to take the value, or the value and the previous one: give each further argument a default, or leave it out"
        )
    return count


def _has_default(parameter: inspect.Parameter) -> bool:
    return parameter.default is not parameter.empty
