"""What other packages offer by entry point, loaded when somebody needs it and refused when two of them claim one name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from typing import Any

from stateflow.distribution import DISTRIBUTION
from stateflow.errors import UsageError

SINKS = "stateflow.sinks"
"""The group of kinds of sink: the name is the kind's in records, the value its `SinkKind`."""

SOURCES = "stateflow.sources"
"""The group of sources: the name is that of `sf.NAME`, the value what makes the source of a place."""


@dataclass(frozen=True, slots=True)
class Offer:
    """An entry point: a name, and where its object is."""

    group: str
    name: str
    value: str
    """`package.module:OBJECT`"""
    package: str

    def load(self) -> Any:
        """The object. UsageError says which package cannot be loaded, and why."""
        try:
            return loaded(self.value)
        except Exception as error:
            raise UsageError(
                f"{self.package} offers {self.name!r} ({self.group}), and it cannot be loaded: {type(error).__name__}: {error}; "
                "install what it needs, or uninstall it"
            ) from error


def loaded(value: str) -> Any:
    """The object that `package.module:OBJECT` names."""
    module, _, name = value.partition(":")
    return getattr(import_module(module), name)


@cache
def installed(group: str) -> tuple[Offer, ...]:
    """What the installed packages offer, by name."""
    found = {
        Offer(group, entry.name, entry.value, entry.dist.name if entry.dist is not None else "a package")
        for entry in metadata.entry_points(group=group)
    }
    return tuple(sorted(found, key=lambda offer: (offer.name, offer.package)))


def claims(group: str, ours: Mapping[str, str]) -> dict[str, tuple[Offer, ...]]:
    """Who offers each name; more than one is a conflict. `ours` are the library's own."""
    found: dict[str, tuple[Offer, ...]] = {
        name: (Offer(group, name, value, DISTRIBUTION),) for name, value in ours.items()
    }
    for offer in installed(group):
        found[offer.name] = (*found.get(offer.name, ()), offer)
    return found


def only(offers: tuple[Offer, ...]) -> Offer:
    """The one that offers a name. UsageError where several do."""
    if len(offers) > 1:
        packages = " and ".join(sorted({offer.package for offer in offers}))
        raise UsageError(
            f"{packages} both offer {offers[0].name!r} ({offers[0].group}), and a record could mean either: uninstall one of them"
        )
    return offers[0]
