"""Functions of user code that make a state's values of today from those of earlier types, as `migrate=` names them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, get_args, get_type_hints

from stateflow.errors import StateflowError, UsageError, UserCodeError, placed
from stateflow.format.records import SchemaVersion, StateSchema
from stateflow.state.keys.text import shown
from stateflow.state.values import schema_text as text
from stateflow.state.values.evolution.decision import RefusedError
from stateflow.state.values.plain import plain_reader
from stateflow.state.values.serializers import Serializer, serializer_for

_PLAIN = (Any, dict, list, object)


@dataclass(frozen=True, slots=True)
class Migration:
    """One function."""

    function: Callable[[Any], Any]
    argument: Serializer | None
    """The reader of the stored values that the function takes; None: it takes them as plain data."""
    result: Serializer | None
    """The type of its results; None: they are of today's type."""

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))

    def takes(self, schema: str) -> bool:
        return self.argument is not None and form(self.argument.schema) == form(schema)

    def reader(self, schema: str) -> Callable[[bytes], Any]:
        """Reads stored bytes of the type `schema`, and gives the function's result for the value."""
        argument = self.argument
        read = (
            argument.loads
            if argument is not None
            else plain_reader(StateSchema(id=0, kind="value", value=schema))
        )
        function = self.function

        def migrated(plain: bytes) -> Any:
            value = read(plain)
            try:
                return function(value)
            except StateflowError:
                raise
            except Exception as error:
                raise UserCodeError(
                    f"migrate function {self.name} failed on the stored value {shown(value)}: "
                    f"{placed(error)}: let it take such a value"
                ) from error

        return migrated


def migrations_of(
    migrate: Callable[[Any], Any] | Sequence[Callable[[Any], Any]] | None,
) -> tuple[Migration, ...]:
    """The functions of `migrate=`, each with the types that its annotations name."""
    if migrate is None:
        return ()
    functions = [migrate] if callable(migrate) else migrate
    if not isinstance(functions, (list, tuple)):
        raise UsageError(f"migrate= takes a function of one value, or a list of such, not {migrate!r}")
    made = tuple(map(_migration, functions))
    taken: dict[str, str] = {}
    for one in made:
        key = "" if one.argument is None else form(one.argument.schema)
        if key in taken:
            what = f"values of {one.argument.schema}" if one.argument is not None else "plain data"
            raise UsageError(
                f"migrate functions {taken[key]} and {one.name} both take {what}: annotate what each takes"
            )
        taken[key] = one.name
    return made


def _migration(function: Callable[[Any], Any]) -> Migration:
    if not callable(function):
        raise UsageError(f"migrate= takes a function of one value, or a list of such, not {function!r}")
    try:
        hints = get_type_hints(function) if inspect.isfunction(function) or inspect.ismethod(function) else {}
        parameters = list(inspect.signature(function).parameters.values())
    except NameError as error:
        raise UsageError(
            f"migrate function {function.__name__}: {error}: define the types of its annotations in the module"
        ) from None
    except (TypeError, ValueError):
        hints, parameters = {}, []
    if hints:
        # A worker has the function without its module, where the names in its annotations could be looked up.
        getattr(function, "__func__", function).__annotations__ = dict(hints)
    argument = hints.get(parameters[0].name) if parameters else None
    result = hints.get("return")
    return Migration(
        function,
        None if _says_nothing(argument) else serializer_for(argument),
        None if _says_nothing(result) else serializer_for(result),
    )


def _says_nothing(hint: Any) -> bool:
    return hint is None or hint in _PLAIN or any(map(_says_nothing, get_args(hint)))


@lru_cache(maxsize=512)
def form(schema: str) -> str:
    """A text that is the same for two types whose values are stored alike, whatever their classes are called."""
    try:
        return repr(_bare(text.read_schema(schema)))
    except text.UnreadableText:
        return schema


def _bare(tree: Any) -> Any:
    match tree:
        case text.StructText(_, fields, by_position, tag):
            bare = tuple(text.FieldText(f.name, _bare(f.type)) for f in fields)
            if not by_position:
                bare = tuple(sorted(bare, key=lambda f: f.name))
            return text.StructText("", bare, by_position, tag)
        case text.ReferenceText():
            return text.ReferenceText("")
        case text.ChoiceText(_, members):
            return text.ChoiceText("", tuple(("", value) for _, value in members))
        case text.UnionText(members):
            return text.UnionText(tuple(sorted(map(_bare, members), key=repr)))
    return dataclasses.replace(
        tree,
        **{
            part.name: tuple(map(_bare, value)) if isinstance(value, tuple) else _bare(value)
            for part in dataclasses.fields(tree)
            if not isinstance(value := getattr(tree, part.name), str)
        },
    )


def chosen(migrations: Sequence[Migration], schema: str) -> Migration | None:
    """The function that takes values of a type by its annotation."""
    return next((one for one in migrations if one.takes(schema)), None)


def plain_one(migrations: Sequence[Migration]) -> Migration | None:
    """The function that takes plain data, of whatever type."""
    return next((one for one in migrations if one.argument is None), None)


def missing(version: SchemaVersion) -> RefusedError:
    return RefusedError(
        f"values are still stored as {version.value}, which a function of migrate= converted, and none takes that now: keep it"
    )
