"""A record before it has a slot. Every `Record` is made from a `Draft`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from stateflow.format.records import (
    Kind,
    Link,
    Micros,
    Name,
    OperatorState,
    Owner,
    Prepared,
    Record,
    ShownState,
    SourceState,
)

_CONTINUED = (
    "sources",
    "operators",
    "timeline",
    "watermark",
    "now",
    "parameters",
    "versions",
    "shift",
    "final",
)


class Draft(msgspec.Struct, frozen=True):
    """The fields of a record that are known before it has a slot. `Record` says what each of them means."""

    kind: Kind
    based_on: int | None = None
    timeline: int = 1
    now: Micros = 0
    seed: int = 0
    watermark: Micros | None = None
    sources: dict[str, SourceState] = {}
    operators: dict[Name, OperatorState] = {}
    sinks: dict[str, Prepared] = {}
    feeds: tuple[ShownState, ...] = ()
    statistics: dict[str, Any] = {}
    versions: dict[str, str] = {}
    parameters: dict[str, str] = {}
    shift: int = 0
    final: bool = False
    origin: str = ""

    @classmethod
    def continuing(cls, kind: Kind, parent: Record | None, **changes: Any) -> Draft:
        """A draft with the state of `parent`, apart from `changes`."""
        inherited: Mapping[str, Any] = {name: getattr(parent, name) for name in _CONTINUED} if parent else {}
        return cls(kind, **{**inherited, **changes})

    def record(
        self,
        *,
        job: str,
        slot: int,
        epoch: int,
        writer: str,
        owner: Owner,
        at: Micros,
        previous: Link | None = None,
        floor: int = 1,
        kept: tuple[int, ...] = (),
        cut: int = 0,
    ) -> Record:
        """The finished record: this draft plus slot, link, floor and what is kept below it from the log."""
        return Record(
            **msgspec.structs.asdict(self),
            job=job,
            slot=slot,
            epoch=epoch,
            writer=writer,
            owner=owner,
            at=at,
            previous=previous,
            floor=floor,
            kept=kept,
            cut=cut,
        )
