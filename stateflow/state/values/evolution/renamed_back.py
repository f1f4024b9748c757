"""Code of an earlier release does not know the new names of its fields: it would take the renamed ones for gone, or another field for its
own."""

from __future__ import annotations

from stateflow.format.records import StateSchema
from stateflow.state.values.evolution.decision import Evolution, RefusedError
from stateflow.state.values.evolution.declared_types import DeclaredType
from stateflow.state.values.evolution.migrations import chosen, plain_one
from stateflow.state.values.evolution.versions import changed, followed


def refuse_renamed_back(recorded: StateSchema, declared: DeclaredType) -> None:
    """Raises RefusedError if the type is an earlier one of the state, and its fields have other names in the record."""
    earlier = next((version for version in recorded.versions if version.value == declared.schema), None)
    if earlier is None or recorded.value == declared.schema or _converted_by_code(recorded, declared):
        return
    way = [changed(v.value, into) for v, into in followed(recorded, earlier) if not v.migrated]
    back = declared.change(recorded.value)
    if not (renamed := _renamed([*way, back])):
        return
    # A field that has the earlier name today comes before an alias.
    free = all((former, None) in back.sources for former in renamed.values())
    names = ", ".join(f"{former} is called {name}" for name, former in renamed.items())
    way_on = (
        "to read them, give the field its name of today as an alias"
        if free
        else "another field has the earlier name today"
    )
    raise RefusedError(f"{names} since, and values would be lost: {way_on}")


def _converted_by_code(recorded: StateSchema, declared: DeclaredType) -> bool:
    return (
        chosen(declared.migrations, recorded.value) is not None or plain_one(declared.migrations) is not None
    )


def _renamed(way: list[Evolution]) -> dict[str, str]:
    """By path of a field after these changes, the one that it had before them."""
    names: dict[str, str] = {}
    for change in way:
        # A class that stands at two places is compared once, and told at both.
        for name, former in dict.fromkeys(change.sources):
            if former is not None and (first := names.pop(former, former)) != name:
                names[name] = first
    return names
