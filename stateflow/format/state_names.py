"""Under which names a state stands in two records, or in code and a record. A renamed state names its earlier names as aliases."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stateflow.format.records import StateSchema


def names_in(declared: Mapping[str, StateSchema], recorded: Mapping[str, StateSchema]) -> dict[str, str]:
    """By declared state, its name in the record, if it is there."""
    names = found_names({name: schema.aliases for name, schema in declared.items()}, recorded)
    # Older code runs again: what newer code had renamed says so in its aliases.
    taken = {*names.values(), *declared}
    for old, schema in recorded.items():
        if old not in taken:
            name = next((alias for alias in schema.aliases if alias in declared and alias not in names), None)
            if name is not None:
                names[name] = old
    return names


def found_names(declared: Mapping[str, tuple[str, ...]], recorded: Collection[str]) -> dict[str, str]:
    """Looks under its own name first, then under an alias. A name that another state has taken does not count."""
    left, names = set(recorded), {}
    for name, aliases in declared.items():
        if (old := next((n for n in (name, *aliases) if n in left), None)) is not None:
            names[name] = old
            left.remove(old)
    return names
