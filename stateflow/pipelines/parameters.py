"""A pipeline's parameters: as text on a command line and in a record, and as the function's arguments.

A job's next run takes the parameters of its last one where nobody gives others.
"""

from __future__ import annotations

import inspect as signatures
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

import msgspec
import msgspec.inspect

from stateflow.errors import UsageError
from stateflow.masking import masked

if TYPE_CHECKING:
    from stateflow.format.records import Record


def required_parameters(function: Callable[..., Any], record: Record | None) -> dict[str, str]:
    """The parameters of a record that the function requires: a run that is started without them takes these."""
    accepted = signatures.signature(function).parameters
    values = known_parameters(function, record)
    return {
        n: v for n, v in values.items() if n in accepted and accepted[n].default is signatures.Parameter.empty
    }


def known_parameters(function: Callable[..., Any], record: Record | None) -> dict[str, str]:
    """The parameters of a record that the pipeline function still takes."""
    if record is None:
        return {}
    accepted = list(signatures.signature(function).parameters.values())[1:]
    names = {p.name for p in accepted if p.kind is not p.VAR_KEYWORD}
    return {name: value for name, value in record.parameters.items() if name in names}


def as_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """The parameters as text, as a command line takes them and `from_text` reads them; those that are None are left out."""
    return {name: _text(value) for name, value in values.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        try:
            return msgspec.json.encode(value, order="sorted").decode()
        except TypeError:
            return str(value)
    return str(value)


def from_text(pipeline: str, parameter: signatures.Parameter, value: Any) -> Any:
    """The argument for a value: text becomes the type that the parameter is annotated with, where that can be."""
    wanted = parameter.annotation
    if get_origin(wanted) in (Union, UnionType):
        inner = [one for one in get_args(wanted) if one is not type(None)]
        wanted = inner[0] if len(inner) == 1 else wanted
    if not isinstance(value, str) or wanted in (str, parameter.empty, Any):
        return value
    try:
        if wanted is bool:
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[
                value.lower()
            ]
        if wanted in (int, float, Path):
            return wanted(value)
        if isinstance(msgspec.inspect.type_info(wanted), msgspec.inspect.CustomType):
            return value  # text cannot stand for it
        if value[:1] in ("[", "{"):
            return msgspec.json.decode(value, type=wanted)
        return msgspec.convert(value, wanted, strict=False)
    except (KeyError, ValueError):  # msgspec's own are ValueErrors
        raise UsageError(
            f"pipeline {pipeline!r}: parameter {parameter.name!r} is {masked(parameter.name, value)!r}, which is no {_named(wanted)}"
            + (": write it as JSON, such as '[1, 2]'" if get_origin(wanted) in (list, tuple, set) else "")
            + (": write it as JSON, such as '{\"a\": 1}'" if get_origin(wanted) is dict else "")
        ) from None
    except TypeError:
        return value  # no type at all


def _named(wanted: Any) -> str:
    return wanted.__name__ if isinstance(wanted, type) and not get_args(wanted) else str(wanted)
