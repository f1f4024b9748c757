"""The canonical text of a state's type, as records keep it.

    bool int float str bytes date datetime decimal time timedelta uuid null
    list<T> set<T> frozenset<T> tuple<T,...> tuple<A,B> map<K,V> optional<T> union<A,B>
    struct Name{field:T,other?:T}      by field name; `?` marks a field with a default
    namedtuple Name{field:T,other?:T}  by position
    enum Name<...> literal<...>
    custom:<id>:<version>

A type that contains itself is written out once and only named inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec.inspect as shape

from stateflow.errors import UsageError
from stateflow.format.scalars import SCALARS

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


def schema_of(hint: Any) -> str:
    """The canonical text of a type; refuses what could not be restored."""
    try:
        node = shape.type_info(hint)
    except (TypeError, NameError) as error:
        raise UsageError(f"{type_name(hint)} cannot be kept in state: {error}") from None
    return _text(node, hint, ())


def type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not hasattr(hint, "__args__") else str(hint)


def _text(node: shape.Type, hint: Any, inside: tuple[Any, ...]) -> str:
    def text(inner: shape.Type) -> str:
        return _text(inner, hint, inside)

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
            return _fields("struct", node, hint, inside)
        case shape.StructType():
            return _fields("namedtuple" if node.array_like else "struct", node, hint, inside)
        case shape.NamedTupleType():
            return _fields("namedtuple", node, hint, inside)
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


def _fields(kind: str, node: Any, hint: Any, inside: tuple[Any, ...]) -> str:
    name = node.cls.__name__
    if node.cls in inside:
        return f"{kind} {name}"
    text: Callable[[shape.Type], str] = lambda inner: _text(inner, hint, (*inside, node.cls))  # noqa: E731
    parts = [f"{f.encode_name}{'' if f.required else '?'}:{text(f.type)}" for f in node.fields]
    return f"{kind} {name}{{{','.join(parts)}}}"
