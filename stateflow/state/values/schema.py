"""The canonical text of a state's type, as records keep it.

    bool int float str bytes date datetime decimal time timedelta uuid null
    list<T> set<T> frozenset<T> tuple<T,...> tuple<A,B> map<K,V> optional<T> union<A,B>
    struct Name{field:T,other?:T}      by field name; `?` marks a field with a default
    struct Name('type'='tag'){...}     with a tag, under the name of its field
    namedtuple Name{field:T,other?:T}  by position
    enum Name<...> literal<...>
    custom:<id>:<version>

A type that contains itself is written out once and only named inside. A text with aliases has `field was older was oldest`
where the others have `field`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_origin, get_type_hints

import msgspec
import msgspec.inspect as shape

from stateflow.errors import UsageError
from stateflow.format.scalars import SCALARS
from stateflow.names import with_options
from stateflow.state.values.schema_text import WAS

_PLAIN: dict[type[Any], str] = {
    **{type(shape.type_info(scalar.type)): scalar.name for scalar in SCALARS},
    shape.NoneType: "null",
}
_COLLECTIONS: dict[type[Any], str] = {
    shape.ListType: "list<{}>",
    shape.SetType: "set<{}>",
    shape.FrozenSetType: "frozenset<{}>",
    shape.VarTupleType: "tuple<{},...>",
}


@dataclass(frozen=True, slots=True)
class FieldAliases:
    """The earlier names of a record's field."""

    names: tuple[str, ...]


@with_options
def field(*, aliases: Sequence[str]) -> FieldAliases:
    """Gives the earlier names of a field of a dataclass, msgspec.Struct, NamedTuple or TypedDict, so that state stored under
    them keeps its value: `total: Annotated[float, sf.field(aliases=["amount"])]`."""
    if isinstance(aliases, str) or not all(isinstance(name, str) and name for name in aliases):
        raise UsageError(f'aliases of a field are a list of names, such as ["amount"], not {aliases!r}')
    return FieldAliases(tuple(aliases))


def schema_of(hint: Any, *, aliases: bool = False) -> str:
    """The canonical text of a type, if wanted with the aliases of fields; refuses what could not be restored."""
    return _text(_node(hint), hint, (), aliases)


def _node(hint: Any) -> shape.Type:
    try:
        return shape.type_info(hint)
    except (TypeError, NameError) as error:
        raise UsageError(f"{type_name(hint)} cannot be kept in state: {error}") from None


_MODULES = re.compile(r"\b(?:\w+\.)+(?=\w)")


def type_name(hint: Any) -> str:
    """A type as its class was written, without modules."""
    return (
        hint.__name__
        if isinstance(hint, type) and not hasattr(hint, "__args__")
        else _MODULES.sub("", str(hint))
    )


def _text(node: shape.Type, hint: Any, inside: tuple[Any, ...], aliases: bool) -> str:
    def text(inner: shape.Type) -> str:
        return _text(inner, hint, inside, aliases)

    match node:
        case shape.Metadata():
            return text(node.type)
        case shape.ListType() | shape.SetType() | shape.FrozenSetType() | shape.VarTupleType():
            return _COLLECTIONS[type(node)].format(text(node.item_type))
        case shape.TupleType():
            return f"tuple<{','.join(map(text, node.item_types))}>"
        case shape.DictType():
            return f"map<{text(node.key_type)},{text(node.value_type)}>"
        case shape.UnionType():
            return _union(
                [text(inner) for inner in node.types if not isinstance(inner, shape.NoneType)], node
            )
        case shape.EnumType():
            members = ",".join(f"{member.name}={member.value!r}" for member in node.cls)
            return f"enum {node.cls.__name__}<{members}>"
        case shape.LiteralType():
            return f"literal<{','.join(map(repr, node.values))}>"
        case shape.DataclassType() | shape.TypedDictType():
            return _fields("struct", node, hint, inside, aliases)
        case shape.StructType():
            _refuse_options(node)
            return _fields("namedtuple" if node.array_like else "struct", node, hint, inside, aliases)
        case shape.NamedTupleType():
            return _fields("namedtuple", node, hint, inside, aliases)
    plain = _PLAIN.get(type(node))
    if plain is None:
        kind = "Any" if isinstance(node, shape.AnyType) else type_name(getattr(node, "cls", type(node)))
        where = "" if kind == type_name(hint) else f" ({kind} inside it)"
        raise UsageError(
            f"{type_name(hint)} cannot be kept in state{where}, because it does not say what to restore: "
            "use scalars, lists, dicts, dataclasses and unions of them, or give a CustomSerializer"
        )
    return plain


def _union(members: Sequence[str], node: shape.UnionType) -> str:
    text = members[0] if len(members) == 1 else f"union<{','.join(sorted(members))}>"
    return f"optional<{text}>" if len(members) < len(node.types) else text


def _fields(kind: str, node: Any, hint: Any, inside: tuple[Any, ...], aliases: bool) -> str:
    name = node.cls.__name__
    if node.cls in inside:
        return f"{kind} {name}"
    text: Callable[[shape.Type], str] = lambda inner: _text(inner, hint, (*inside, node.cls), aliases)  # noqa: E731
    older = _stored_aliases(_aliases(_declared(node.cls)), node) if aliases else {}
    parts = [
        f"{WAS.join((f.encode_name, *older.get(f.name, ())))}{'' if f.required else '?'}:{text(f.type)}"
        for f in node.fields
    ]
    tag = f"({node.tag_field!r}={node.tag!r})" if getattr(node, "tag", None) is not None else ""
    return f"{kind} {name}{tag}{{{','.join(parts)}}}"


def _refuse_options(node: shape.StructType) -> None:
    """By position a class stores its tag before its first field, so every field of its values stands one place behind its own. And a
    field that is left out for having its default has that of the code that reads it."""
    if node.array_like and node.tag is not None:
        raise UsageError(
            f"class {node.cls.__name__} has array_like=True and a tag, and cannot be kept in state: leave array_like=True out, and its fields "
            "are stored by name"
        )
    if not node.array_like and _declared(node.cls).__struct_config__.omit_defaults:
        raise UsageError(
            f"class {node.cls.__name__} has omit_defaults=True and cannot be kept in state, where a value that was left out would become the default "
            "of a later release: leave omit_defaults=True out"
        )


def _declared(cls: Any) -> Any:
    """The class as it was written: of `Timed[int]` that is `Timed`, which has the annotations."""
    return get_origin(cls) or cls


def refuse_aliases_as_defaults(cls: type) -> None:
    """UsageError for `amount: float = sf.field(...)`, which would make the aliases the field's default."""
    defaults = (
        *vars(cls).values(),
        *getattr(cls, "__struct_defaults__", ()),
        *getattr(cls, "_field_defaults", {}).values(),
    )
    for given in defaults:
        if isinstance(given, FieldAliases):
            raise UsageError(
                f"{cls.__name__}: sf.field(aliases={list(given.names)!r}) stands where a field's default stands, and belongs to its "
                f"type: write `Annotated[float, sf.field(aliases={list(given.names)!r})]`, with the field's own type"
            )


def _aliases(cls: type) -> dict[str, tuple[str, ...]]:
    refuse_aliases_as_defaults(cls)
    found = {
        name: given.names
        for name, annotated in get_type_hints(cls, include_extras=True).items()
        for given in getattr(annotated, "__metadata__", ())
        if isinstance(given, FieldAliases)
    }
    # A field may have its own name as an alias: its class did not rename it before.
    others = {name: [alias for alias in older if alias != name] for name, older in found.items()}
    refuse_shared_aliases(cls.__name__, others)
    return found


_RENAMES = (None, "lower", "upper", "camel", "pascal", "kebab")


def _stored_aliases(aliases: Mapping[str, tuple[str, ...]], node: Any) -> Mapping[str, tuple[str, ...]]:
    """The aliases as they are given, and as the class has renamed them: of `rename="camel"` the earlier field was stored in that way, too."""
    if not aliases or all(f.name == f.encode_name for f in node.fields):
        return aliases
    # A class does not keep its `rename`. Some fields may have a name of their own, so the one that most have is taken.
    rename = max(_RENAMES, key=lambda one: sum(_renamed(f.name, one) == f.encode_name for f in node.fields))
    return {
        name: tuple(dict.fromkeys((*older, *(_renamed(alias, rename) for alias in older))))
        for name, older in aliases.items()
    }


def _renamed(name: str, rename: Any) -> str:
    """The name under which msgspec stores a field. A name that no field can have is a stored one already."""
    return (
        msgspec.defstruct("One", [name], rename=rename).__struct_encode_fields__[0]
        if name.isidentifier()
        else name
    )


def refuse_shared_aliases(owner: str, aliases: Mapping[str, Sequence[str]]) -> None:
    """`aliases` is by field. A former name of two fields would give its values to both."""
    first: dict[str, str] = {}
    for name, older in aliases.items():
        for alias in older:
            if first.setdefault(alias, name) != name:
                raise UsageError(
                    f"fields {first[alias]} and {name} of {owner} have the alias {alias!r} both: leave it to the one that goes on from it"
                )
            if name in aliases.get(alias, ()):
                raise UsageError(
                    f"fields {alias} and {name} of {owner} have the name of each other as an alias, and both would keep their own values: to "
                    "exchange them, give both new names, with these as their aliases"
                )
