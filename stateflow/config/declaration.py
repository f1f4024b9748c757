"""One option: what it may be set to, how a value is read, and how it is written back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, cast

from stateflow.config.retention_rule import RetentionRule, retention_rule
from stateflow.quantities import duration, size, written_duration, written_size

Kind = Literal["number", "yes/no", "text", "size", "duration", "choice", "trigger", "retention", "mapping"]
Trigger = Literal["drain", "until-stopped"] | timedelta


@dataclass(frozen=True, slots=True)
class OptionDeclaration:
    """The declaration of one option."""

    kind: Kind
    doc: str
    flink: tuple[str, ...]
    choices: tuple[str, ...]
    least: Any
    most: Any
    secret: bool
    place: bool
    """Whether it names a folder, an endpoint or a credential."""
    deletes: bool = False
    """Whether it decides what is deleted."""

    @property
    def guarded(self) -> bool:
        """Whether it counts from a file that is found in the working folder only once the user has trusted that."""
        return self.place or self.deletes


def read(declaration: OptionDeclaration, value: Any) -> Any:
    """The value in the option's own type. ValueError says what would be right."""
    result = _READERS[declaration.kind](value)
    if declaration.choices and result not in declaration.choices:
        raise ValueError(f"{value!r} is not one of {', '.join(declaration.choices)}")
    if declaration.least is not None and result < declaration.least:
        raise ValueError(f"{value!r} is less than {written(declaration, declaration.least)}")
    if declaration.most is not None and result > declaration.most:
        raise ValueError(f"{value!r} is more than {written(declaration, declaration.most)}")
    return result


def written(declaration: OptionDeclaration, value: Any) -> str:
    """The value as one writes it in `stateflow.toml`, without quotes. A secret mapping shows only its keys."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ", ".join(
            f"{key}=***" if declaration.secret else f"{key}={value[key]}" for key in sorted(value)
        )
    if isinstance(value, timedelta):
        return written_duration(value)
    return written_size(value) if declaration.kind == "size" else str(value)


def _read_number(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return int(str(value).strip().replace("_", ""))
    except ValueError:
        raise ValueError(f"{value!r} is not a whole number") from None


def _read_flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    flags = {
        "true": True,
        "yes": True,
        "on": True,
        "1": True,
        "false": False,
        "no": False,
        "off": False,
        "0": False,
    }
    try:
        return flags[str(value).strip().lower()]
    except KeyError:
        raise ValueError(f"{value!r} is neither true nor false") from None


def _read_text(value: Any) -> str:
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    raise ValueError(f"{value!r} is not a text")


def _read_size(value: Any) -> int:
    return size(str(value))


def _read_duration(value: Any) -> timedelta:
    return value if isinstance(value, timedelta) else duration(str(value))


def _read_trigger(value: Any) -> Trigger:
    if value in ("drain", "until-stopped"):
        return cast(Trigger, value)
    try:
        interval = _read_duration(value)
    except ValueError:
        interval = timedelta(0)
    if interval <= timedelta(0):
        raise ValueError(f"{value!r} is neither drain, until-stopped nor an interval like '30 seconds'")
    return interval


def _read_retention(value: Any) -> RetentionRule:
    return value if isinstance(value, RetentionRule) else retention_rule(_read_text(value))


def _read_mapping(value: Any) -> dict[str, str]:
    """Reads a table, a JSON object, or 'key=value,key=value'. An error never repeats a value: it may be secret."""
    if isinstance(value, str):
        try:
            pairs = json.loads(value) if value.lstrip().startswith("{") else dict(_pairs(value))
        except ValueError:
            raise ValueError("it has to be a JSON object or key=value pairs with commas between") from None
        value = pairs
    if not isinstance(value, Mapping) or any(isinstance(each, Mapping | list) for each in value.values()):
        raise ValueError("it has to be a table of names and plain values")
    if empty := [str(key) for key, each in value.items() if each is None]:
        raise ValueError(
            f"{empty[0]} in it is null, which would be the text None: give it a value, or leave it out"
        )
    return {
        str(key): str(each).lower() if isinstance(each, bool) else str(each) for key, each in value.items()
    }


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError
        yield key.strip(), value.strip()


_READERS: Mapping[Kind, Callable[[Any], Any]] = {
    "number": _read_number,
    "yes/no": _read_flag,
    "text": _read_text,
    "size": _read_size,
    "duration": _read_duration,
    "choice": _read_text,
    "trigger": _read_trigger,
    "retention": _read_retention,
    "mapping": _read_mapping,
}
