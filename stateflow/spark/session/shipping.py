"""Sends user code to the workers by value, because they cannot import a pipeline's file by name.

Plain cloudpickle loses three things that a worker needs to read and write rows and state: annotations written as text,
because they have no module to look names up in; msgspec Structs, because their fields lie outside of Python's reach;
and classes that msgspec has used, because they carry a cache that cannot be pickled.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from inspect import Parameter, signature
from types import ModuleType, new_class
from typing import Any, get_type_hints

import msgspec

from stateflow.errors import UsageError
from stateflow.spark.internals.pickling import (
    Pickler,
    goes_by_name,
    pickle_by_value,
    tracked_as,
    tracking_number,
)
from stateflow.spark.session.sent_modules import NO_MODULES, SentModules

_CACHES = ("__msgspec_cache__",)
_OF_STRUCTS = frozenset(
    ("__struct_fields__", "__struct_config__", "__struct_defaults__", "__struct_encode_fields__", "__match_args__",
     "__dict__", "__weakref__", "__slots__", "__annotations__", "__orig_bases__")
)  # fmt: skip


def by_value(modules: Iterable[ModuleType]) -> None:
    """Pickles classes and functions of these modules by value instead of by name."""
    for module in modules:
        pickle_by_value(module)


def packed(value: Any) -> bytes:
    """A value, pickled with the user code that it needs, for `unpacked` in a worker."""
    with io.BytesIO() as file:
        try:
            _Packer(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)  # type: ignore[no-untyped-call]
        except (pickle.PicklingError, TypeError, RecursionError) as error:
            raise UsageError(
                f"the pipeline's code cannot be sent to the workers: {error}: keep what cannot be pickled (sessions, "
                "connections, locks) out of operators, or make it in open()"
            ) from error
        return file.getvalue()


def parcel(task: Any) -> Callable[[], Any]:
    """Unpickles the task in the worker, with the modules that it names. These go beside it, for its code needs them to be read."""
    return partial(unpacked, packed(replace(task, sent_modules=NO_MODULES)), task.sent_modules)


def unpacked(data: bytes, sent_modules: SentModules = NO_MODULES) -> Any:
    """Unpickles in the worker."""
    try:
        sent_modules.enter()
        return pickle.loads(data)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"the pipeline's code cannot be loaded in a worker: {error}: put the folder of such modules on PYTHONPATH, send them along "
            "(`spark-submit --py-files`), or install them on every host"
        ) from error


class _Packer(Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, msgspec.StructMeta) and not goes_by_name(obj):
            parts, attributes = _struct_parts(obj)
            return _make_struct, parts, attributes, None, None, _set_attributes
        reduced = super().reducer_override(obj)  # type: ignore[no-untyped-call]
        if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) == 6:
            attributes = reduced[2][0]
            for name in _CACHES:
                attributes.pop(name, None)
            if "__annotations__" in attributes:
                attributes["__annotations__"] = _resolved(obj)
        return reduced


def _resolved(cls: type) -> dict[str, Any]:
    """The class's own annotations as types, where they can be looked up."""
    own = dict(vars(cls).get("__annotations__", {}))
    try:
        hints = get_type_hints(cls, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return own
    return {name: hints[name] for name in own}


def _struct_parts(cls: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of `_make_struct`, and the class's attributes. Methods refer to their class, so they come later."""
    own = _resolved(cls)
    attributes = {
        name: value
        for name, value in vars(cls).items()
        if name not in _OF_STRUCTS and name not in _CACHES and name not in own
    }
    first = {n: attributes.pop(n) for n in ("__module__", "__qualname__", "__post_init__") if n in attributes}
    fields = {
        field.name: {
            "name": None if field.encode_name == field.name else field.encode_name,
            "default": field.default,
            "default_factory": field.default_factory,
        }
        for field in msgspec.structs.fields(cls)
        if field.name in own
    }
    config = {name: getattr(cls.__struct_config__, name) for name in _CONFIG}
    parameters = signature(cls).parameters
    config["kw_only"] = any(parameters[name].kind is Parameter.KEYWORD_ONLY for name in fields)
    tracked = tracking_number(cls)
    return (tracked, cls.__name__, cls.__bases__, own, fields, first, config), attributes


_CONFIG = ("frozen", "eq", "order", "array_like", "gc", "repr_omit_defaults", "omit_defaults", "weakref", "dict",
           "cache_hash", "forbid_unknown_fields", "tag", "tag_field")  # fmt: skip


def _make_struct(
    tracked: str,
    name: str,
    bases: tuple[type, ...],
    annotations: dict[str, Any],
    fields: dict[str, dict[str, Any]],
    namespace: dict[str, Any],
    config: dict[str, Any],
) -> type:
    body = {**namespace, "__annotations__": annotations}
    for field, arguments in fields.items():
        # msgspec's field objects cannot be pickled, so the worker makes them here.
        set_arguments = {n: v for n, v in arguments.items() if v is not None or n == "default"}
        body[field] = msgspec.field(**set_arguments)
    cls = new_class(name, bases, config, lambda ns: ns.update(body))
    return tracked_as(tracked, cls)


def _set_attributes(cls: type, attributes: dict[str, Any]) -> type:
    for name, value in attributes.items():
        setattr(cls, name, value)
    return cls
