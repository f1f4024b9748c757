"""What a step wants recorded, before it has a slot. The one birth of a `Record`."""

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
    """The part of a record that its step knows; `Record` says what each field means."""

    kind: Kind
    based_on: int | None = None
    timeline: int = 1
    now: Micros = 0
    seed: int = 0
    watermark: Micros | None = None
    sources: dict[str, SourceState] = {}
    operators: dict[Name, OperatorState] = {}
    sinks: dict[str, Prepared] = {}
    statistics: dict[str, Any] = {}
    versions: dict[str, str] = {}
    parameters: dict[str, str] = {}
    shift: int = 0
    final: bool = False
    origin: str = ""

    @classmethod
    def continuing(cls, kind: Kind, parent: Record | None, **changes: Any) -> Draft:
        """Leaves the state as `parent` has it, apart from `changes`."""
        same: Mapping[str, Any] = {name: getattr(parent, name) for name in _CONTINUED} if parent else {}
        return cls(kind, **{**same, **changes})

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
        cut: int = 0,
    ) -> Record:
        """The record, once the log has said where it stands."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return Record(
            **fields,
            job=job,
            slot=slot,
            epoch=epoch,
            writer=writer,
            owner=owner,
            at=at,
            previous=previous,
            floor=floor,
            cut=cut,
        )
