"""Under which names a state stands in two records, or in code and a record. A renamed state names its earlier names as aliases."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from stateflow.format.records import StateSchema

States = Mapping[str, StateSchema]


def names_in(declared: States, recorded: States) -> dict[str, str]:
    """By declared state, its name in the record, if it is there. One that was let go of is taken up only where no other fits."""
    known = {name: schema.aliases for name, schema in declared.items()}
    live = {name for name, schema in recorded.items() if not schema.forgotten}
    names = found_names(known, live)
    left = {name: aliases for name, aliases in known.items() if name not in names}
    names |= found_names(left, recorded.keys() - live)
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


def former_names(name: str, recorded_as: str, former: Collection[str]) -> tuple[str, ...]:
    """All earlier names of a state that is called `name` now and `recorded_as` in the record before, which knows the `former` ones."""
    return tuple(each for each in dict.fromkeys((*former, recorded_as)) if each != name)


def names_along(records: Sequence[States], state: str) -> list[str | None]:
    """What a state of the first of these records is called in each of them; None where it is not. Neighbours in time are compared, since
    an alias may name the last name only, or be gone by now."""
    name, known, names = state, records[0], list[str | None]()
    for states in records:
        # Two releases with the same names have the same states.
        found = name if states.keys() == known.keys() else names_in(known, states).get(name)
        names.append(found)
        if found is not None:
            name, known = found, states
    return names


def names_between(records: Sequence[States]) -> dict[str, str]:
    """By state of the last of these records, which are neighbours in time, its name in the first."""
    names: dict[str, str] = {}
    for state in records[-1]:
        first = names_along(records[::-1], state)[-1]
        if first is not None and first not in names.values():
            names[state] = first
    return names
