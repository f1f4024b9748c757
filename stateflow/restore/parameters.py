"""Which parameters a restore takes, and where each comes from.

The caller's parameters win. An existing job keeps its own: those of its newest record, or, when it goes back to one of its own
checkpoints, those of that checkpoint. The author of a savepoint has written its parameters, which may name an output: so only a
new job takes them, and the plan says so.
"""

from __future__ import annotations

import inspect as signatures
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stateflow.format.records import Record
from stateflow.masking import masked
from stateflow.pipelines.parameters import as_texts, known_parameters, required_parameters

Whose = Literal["checkpoint", "savepoint", "other job"]
"""The kind of snapshot: a checkpoint of the job itself, a savepoint, or a checkpoint of another job."""
Source = Literal["given", "job", "checkpoint", "savepoint", "other job", "default"]

SOURCES: Mapping[Source, str] = {
    "given": "given",
    "job": "the job's own",
    "checkpoint": "the checkpoint's",
    "savepoint": "the savepoint's",
    "other job": "the other job's",
    "default": "the pipeline's default",
}


@dataclass(frozen=True)
class ParameterRestore:
    """One parameter after the restore. `value` is None when the pipeline's function chooses it."""

    name: str
    value: str | None
    origin: Source
    job: str | None = None
    """The value in the job's newest record, if it differs."""
    snapshot: str | None = None
    """The value in the snapshot, if it differs."""

    kind: str = ""
    """The type of a value that is no text when the pipeline gets it: False and the text "false" look alike."""

    def masked_text(self, value: str | None) -> str:
        return "" if value is None else masked(self.name, value)

    def document(self) -> dict[str, Any]:
        """The parameter for people and programs, with secrets hidden."""
        hidden = {name: getattr(self, name) for name in ("value", "job", "snapshot")}
        return {
            "name": self.name,
            "origin": self.origin,
            **{name: None if value is None else self.masked_text(value) for name, value in hidden.items()},
        }


def restored_parameters(
    function: Callable[..., Any],
    given: Mapping[str, Any],
    *,
    own: Record | None,
    snapshot: Record,
    whose: Whose,
    typed: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda values: values,
) -> tuple[dict[str, Any], tuple[ParameterRestore, ...]]:
    """The values to build the pipeline with, and a line per parameter. `own` is the job's newest record, if it has one. `typed`
    gives the values as the function gets them."""
    theirs, ours = known_parameters(function, snapshot), known_parameters(function, own)
    origins: dict[str, Source] = {}
    values: dict[str, Any] = {}

    def take(texts: Mapping[str, Any], origin: Source) -> None:
        values.update(texts)
        origins.update(dict.fromkeys(texts, origin))

    if whose == "checkpoint":
        # By now the pipeline may need a parameter that the checkpoint does not have.
        take(required_parameters(function, own), "job")
        take(theirs, "checkpoint")
    elif own is not None:
        take(ours, "job")
    else:
        take(theirs, whose)
    take(given, "given")

    texts = {**_defaults(function), **dict.fromkeys(values), **as_texts(values)}

    def other(recorded: Mapping[str, str], name: str) -> str | None:
        return recorded[name] if name in recorded and recorded[name] != texts.get(name) else None

    names = dict.fromkeys([*_accepted(function), *values])
    kinds = {
        name: type(value).__name__ for name, value in typed(values).items() if not isinstance(value, str)
    }
    return values, tuple(
        ParameterRestore(
            name,
            texts.get(name),
            origins.get(name, "default"),
            other(ours, name),
            other(theirs, name),
            kinds.get(name, ""),
        )
        for name in names
    )


def _accepted(function: Callable[..., Any]) -> dict[str, signatures.Parameter]:
    parameters = list(signatures.signature(function).parameters.values())[1:]
    return {p.name: p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}


def _defaults(function: Callable[..., Any]) -> dict[str, str]:
    """The defaults that have a stable text. The text of other objects may contain their address."""
    defaults = {name: p.default for name, p in _accepted(function).items() if p.default is not p.empty}
    return as_texts({name: d for name, d in defaults.items() if isinstance(d, (str, int, float, bool))})
