"""Row types: from a dataclass, msgspec Struct, NamedTuple or schema string to named fields with Spark types.

A field's type is the text that Spark's DDL uses, so that it can be recorded and compared without Spark.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections import namedtuple
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from stateflow.errors import UsageError
from stateflow.format.scalars import BY_NAME, BY_TYPE, COLUMN_TYPES, KEY_TYPES, KEYS
from stateflow.pipelines.rows.defaults import Default, defaults_of
from stateflow.pipelines.rows.type_text import fields_of, inside_of, parts_of_schema
from stateflow.state.values.schema import FieldAliases, refuse_aliases_as_defaults, refuse_shared_aliases

_DECIMAL_KEY = BY_NAME["decimal"]
_SCALE = re.compile(r"decimal\(\s*\d+\s*,\s*(\d+)\s*\)")
_KEYS_OF_SPARK = {spark: scalar.name for scalar in KEYS for spark in (scalar.spark, *scalar.other_spark)}
_ALIASES = {column.alias: column.name for column in COLUMN_TYPES if column.alias}
_INSIDE = re.compile(rf"(?<=[<,:])(\s*)({'|'.join(_ALIASES)})(?=\s*[,>])", re.I)
_NAME = re.compile(r"[^\W\d]\w*")
_TYPE = re.compile(r"[a-z_]+(\(\s*\d+\s*(,\s*\d+\s*)?\))?|(array|map|struct)\s*<.*>", re.I | re.S)


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: str
    hint: Any = None
    """The Python type, when the row type has one."""
    nullable: bool = True
    default: Default | None = field(default=None, compare=False)
    """What stands for a null; None when the type allows None, or when there is no default."""
    former: tuple[str, ...] = field(default=(), compare=False)
    """Its earlier names, where it has no hint that says them."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Its earlier names, from `sf.field(aliases=[...])`."""
        if self.former:
            return self.former
        extras = get_args(self.hint)[1:] if get_origin(self.hint) is Annotated else ()
        return tuple(name for extra in extras if isinstance(extra, FieldAliases) for name in extra.names)


@dataclass(frozen=True, slots=True)
class RowType:
    """Names, types and a way to make one row from its values in field order."""

    name: str
    fields: tuple[Field, ...]
    make: Callable[..., Any]
    typed: bool

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.fields)

    @property
    def ddl(self) -> str:
        """The schema as Spark's DDL."""
        return ", ".join(f"{quoted(f.name)} {f.type}" for f in self.fields)

    def defaults_but(self, left_out: Collection[str]) -> dict[str, Default]:
        """By field: the value that stands for a null, without the fields that are left out."""
        return {f.name: f.default for f in self.fields if f.default is not None and f.name not in left_out}

    @property
    def never_null(self) -> tuple[str, ...]:
        """The columns that a schema in words declares as `not null`. A class says what its rows have, and is not held to it."""
        return () if self.typed else tuple(f.name for f in self.fields if not f.nullable)

    def only(self, names: Collection[str]) -> RowType:
        """The rows with these columns alone."""
        fields = tuple(field for field in self.fields if field.name in names)
        return RowType(self.name, fields, self.make, self.typed)

    def with_columns(self, **more: str) -> RowType:
        """Rows with further columns of these types, as tuples with names. A column keeps its earlier names."""
        columns = {**{f.name: f.type for f in self.fields}, **more}
        plain = row_type(", ".join(f"{quoted(name)} {type}" for name, type in columns.items()))
        former = {f.name: f.aliases for f in self.fields}
        fields = tuple(dataclasses.replace(f, former=former.get(f.name, ())) for f in plain.fields)
        return RowType(plain.name, fields, plain.make, plain.typed)

    def field(self, name: str) -> Field | None:
        return next((f for f in self.fields if f.name == name), None)


def key_type(spark_type: str) -> str | None:
    """The key type's name for a Spark type; None when it cannot be a key."""
    if not spark_type.startswith("decimal"):
        return _KEYS_OF_SPARK.get(spark_type)
    return None if _is_too_fine(spark_type) else "decimal"


def key_advice(spark_type: str) -> str:
    """What to do about a column of a type that cannot be a key."""
    if _is_too_fine(spark_type):
        return (
            f"cast it to {_DECIMAL_KEY.spark} or to a string, for a key has no more digits behind the point"
        )
    return f"use {', '.join(KEY_TYPES[:-1])} or {KEY_TYPES[-1]}"


def _is_too_fine(spark_type: str) -> bool:
    """Whether it has decimals that would be rounded as a key, so that different keys would become one."""
    found = _SCALE.fullmatch(spark_type)
    return found is not None and int(found[1]) > _DECIMAL_KEY.arrow[2]


def spark_type(hint: Any, where: str) -> tuple[str, bool]:
    """`(type, nullable)` of a Python type hint."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        for extra in arguments[1:]:
            if isinstance(extra, str):
                return extra, arguments[0] is Any or type(None) in get_args(arguments[0])
        return spark_type(arguments[0], where)
    if origin in (Union, types.UnionType):
        inner = [a for a in arguments if a is not type(None)]
        if len(inner) == 1 and len(arguments) == 2:
            return spark_type(inner[0], where)[0], True
    scalar = BY_TYPE.get(hint)
    if scalar is not None and scalar.spark:
        return scalar.spark, False
    if origin in (list, tuple) and arguments and (origin is list or arguments[1:] == (Ellipsis,)):
        return f"array<{spark_type(arguments[0], where)[0]}>", False
    if origin is dict:
        return f"map<{spark_type(arguments[0], where)[0]},{spark_type(arguments[1], where)[0]}>", False
    if _is_record(hint):
        inner_fields = ",".join(f"{f.name}:{f.type}" for f in _of_class(hint).fields)
        return f"struct<{inner_fields}>", False
    raise UsageError(
        f"{where} has type {hint!r}, which has no Spark type: use bool, int, float, str, bytes, datetime, date, "
        "Decimal, list, dict, Optional, a dataclass or a msgspec Struct"
    )


def nested_in(hint: Any) -> tuple[str, Any]:
    """What a type hint is, `list`, `dict` or `record`, and the type inside of it; empty for a scalar."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return (
            ("", None) if any(isinstance(extra, str) for extra in arguments[1:]) else nested_in(arguments[0])
        )
    if origin in (Union, types.UnionType):
        inner = [each for each in arguments if each is not type(None)]
        return nested_in(inner[0]) if len(inner) == 1 else ("", None)
    if origin in (list, tuple) and arguments:
        return "list", arguments[0]
    if origin is dict:
        return "dict", arguments[1]
    return ("record", hint) if _is_record(hint) else ("", None)


def row_type(declared: Any) -> RowType:
    """The row type of a class or of a schema string such as `"user long, total double"`."""
    if isinstance(declared, RowType):
        return declared
    if isinstance(declared, str):
        made, where = _from_schema(declared), f"schema {declared!r}"
    elif _is_record(declared):
        made, where = _of_class(declared), declared.__name__
    else:
        raise UsageError(
            f"{declared!r} is not a row type: use a dataclass, a msgspec Struct, a NamedTuple or a schema string"
        )
    _refuse_alike(where, made.names)
    for each in made.fields:
        _refuse_alike_inside(f"{where}, in column {each.name!r}", each.type)
    return made


def _refuse_alike(where: str, names: Sequence[str]) -> None:
    known: dict[str, str] = {}
    for name in names:
        if (other := known.setdefault(name.lower(), name)) != name:
            raise UsageError(
                f"{where}: {other!r} and {name!r} differ in case alone, and are one name to Spark: call one of them otherwise"
            )


def _refuse_alike_inside(where: str, type: str) -> None:
    kind, inside = inside_of(type)
    fields = fields_of(inside) if kind == "struct" else []
    _refuse_alike(where, [name for name, _ in fields])
    for each in [of for _, of in fields] or (parts_of_schema(inside) if kind else []):
        _refuse_alike_inside(where, each)


def untyped_rows(where: str, columns: Sequence[tuple[str, str]]) -> RowType:
    """The rows of a frame whose type nobody declares, from the names and types of its columns; `where` names who takes them."""
    for name, _ in columns:
        if not _NAME.fullmatch(name):
            other = re.sub(r"\W", "_", name)
            raise UsageError(
                f"{where}: column {name!r} of its rows needs another name, of letters, digits and _ alone: rename it before, such as "
                f".transform(lambda frame: frame.withColumnRenamed({name!r}, {(other if _NAME.fullmatch(other) else f'c_{other}')!r}))"
            )
    try:
        return row_type(", ".join(f"{quoted(name)} {kind}" for name, kind in columns))
    except UsageError as error:
        raise UsageError(f"{where}, the columns of its rows: {error}") from None


def _of_class(declared: Any) -> RowType:
    refuse_aliases_as_defaults(declared)
    hints, defaults = _hints_of(declared), defaults_of(declared)
    fields = []
    for name in _field_names(declared):
        text, nullable = spark_type(hints[name], f"field {declared.__name__}.{name}")
        default = None if nullable else defaults.get(name)
        fields.append(Field(name, text, hints[name], nullable, default))
    refuse_shared_aliases(declared.__name__, {found.name: found.aliases for found in fields})
    return RowType(declared.__name__, tuple(fields), declared, True)


def _hints_of(declared: Any) -> dict[str, Any]:
    try:
        return get_type_hints(declared, include_extras=True)
    except NameError as error:
        raise UsageError(
            f"{declared.__name__}: {error}: Python finds the types of a row class by their names in its file, so define or import them at the "
            "top of that file, not in a function or below `if TYPE_CHECKING`"
        ) from None


def _from_schema(text: str) -> RowType:
    fields: list[Field] = []
    for part in parts_of_schema(text):
        odd = re.match(r"\s*`(?![^\W\d]\w*`)([^`]*)", part)
        if odd:
            raise UsageError(
                f"schema {text!r}: column {odd[1]!r} needs another name, of letters, digits and _ alone: if it is a source's, declare no schema "
                "for that, give the column another name in a .transform(...) behind it, and say the schema there"
            )
        match = re.match(r"\s*`?([^\W\d]\w*)`?\s*:?\s+(.+?)\s*\Z", part, re.S) or re.match(
            r"\s*(\w+)\s*:\s*(.+?)\s*\Z", part, re.S
        )
        if not match:
            raise UsageError(
                f"schema {text!r} cannot be read at {part.strip()!r}: write 'name type, name type'"
            )
        spark = match[2]
        nullable = not spark.lower().endswith(" not null")
        if not nullable:
            spark = spark[: -len(" not null")].strip()
        word, bracket, inside = spark.partition("<")
        # Names of fields inside of a struct keep their case.
        spark = word.strip().lower() + bracket + inside
        if not _TYPE.fullmatch(spark):
            raise UsageError(f"schema {text!r}: {spark!r} of column {match[1]!r} is no type that Spark has")
        if any(match[1] == field.name for field in fields):
            raise UsageError(f"schema {text!r} has two columns called {match[1]!r}")
        fields.append(Field(match[1], _one_name(spark), None, nullable))
    return RowType("Row", tuple(fields), named_rows("Row", [f.name for f in fields]), False)


def named_rows(name: str, columns: Sequence[str]) -> Any:
    """A class of named tuples, for rows without a class of their own. A column that Python takes no name of, such as `class`, has
    another one in `_fields`; `__fields__` has those of the columns, as in rows of Spark's."""
    made = typing.cast(Any, namedtuple(name, columns, rename=True))
    made.__fields__ = tuple(columns)
    return made


def quoted(name: str) -> str:
    """The name of a column as Spark's SQL takes any."""
    return "`" + name.replace("`", "``") + "`"


def unused_name(name: str, columns: Iterable[str]) -> str:
    """A name for one more column beside these: this one, with lines before it where a column has it."""
    taken = {column.lower() for column in columns}
    while name.lower() in taken:
        name = f"_{name}"
    return name


def text_in_sql(text: str) -> str:
    """A text in Spark's SQL, by its bytes: how Spark reads quotes and backslashes depends on its settings."""
    return f"cast(X'{text.encode().hex()}' as string)"


def _one_name(spark: str) -> str:
    """A type as Spark writes it, who knows several names for some, also inside of maps and lists."""
    if "<" not in spark:
        return _ALIASES.get(spark, spark)
    return _INSIDE.sub(lambda found: found[1] + _ALIASES[found[2].lower()], spark)


def _is_record(hint: Any) -> bool:
    return isinstance(hint, type) and (
        dataclasses.is_dataclass(hint)
        or issubclass(hint, msgspec.Struct)
        or (issubclass(hint, tuple) and hasattr(hint, "_fields"))
    )


def _field_names(declared: Any) -> list[str]:
    if dataclasses.is_dataclass(declared):
        return [f.name for f in dataclasses.fields(declared) if f.init]
    if issubclass(declared, msgspec.Struct):
        return list(declared.__struct_fields__)
    return list(typing.cast(Any, declared)._fields)


def without_nulls(column: str) -> str:
    """The advice for rows that have no key."""
    name = column if column.isidentifier() else quoted(column)
    return (
        f"leave such rows out before, with .transform(lambda rows: rows.where('{name} is not null')), or give them a value; "
        f"if every row has one, it is called otherwise than {column!r} in what is read"
    )
