"""Targets that are one although their addresses differ, as `localhost` and `127.0.0.1` do: seen once a run has opened them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stateflow.errors import UsageError


def refuse_one_identity(sinks: Mapping[str, str], sources: Mapping[str, Iterable[str]]) -> None:
    """UsageError for two sinks of one target, and for a source that reads what a sink writes. By uid what a sink's target is, empty where that is
    not known, and what a source reads."""
    known = {uid: identity for uid, identity in sinks.items() if identity}
    writes = dict[str, str]()
    for uid, identity in known.items():
        if (other := writes.setdefault(identity, uid)) != uid:
            raise UsageError(
                f"sinks {other!r} and {uid!r} write to one place, whose address they spell in two ways: give each one of its own, or union() their "
                "rows before one sink"
            )
    for source, read in sources.items():
        if (written := next((writes[each] for each in read if each in writes), None)) is not None:
            raise UsageError(
                f"source {source!r} reads what sink {written!r} writes, whose address they spell in two ways, so that every row would come in again: "
                "give the sink another target"
            )
