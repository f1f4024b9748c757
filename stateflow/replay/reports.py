"""Reports of replays that are kept beside a job, small and without secrets, for whoever approves what was tried.

They decide nothing. An erasure deletes them all, since they hold rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from stateflow.checkpoint.log import read_if_there
from stateflow.format.layout import JobLayout
from stateflow.format.records import FORMAT, ClockMicros, Owner, encode
from stateflow.masking import is_secret, without_secrets
from stateflow.storage.store import Store

if TYPE_CHECKING:
    from stateflow.replay.comparison import ReplayReport

MOST_REPORTS = 20
"""A job keeps the newest ones."""
MOST_CHANGES = 100
"""Changes that a report keeps, over all sinks and states."""
MOST_TEXT = 500
"""Characters of a key or a row."""
_VALUES = {"before", "after", "first", "second"}
"""Of a change, beside its key."""
_OF_FEEDS = {"state", "kind", "before", "after"}
"""Columns of a feed, which may have underscores behind their names."""


class KeptReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of `replays/<name>`."""

    format: int = FORMAT
    name: str
    at: ClockMicros
    owner: Owner
    max_changed: float | None = None
    """The limit, if there was one."""
    excess: str = ""
    """Why the changes are more than the limit lets pass, as a sentence."""
    document: dict[str, Any]
    """The report as JSON, with the first changes."""


def kept_report(
    report: ReplayReport, name: str, *, at: int, owner: Owner, max_changed: float | None = None
) -> KeptReport:
    excess = "" if max_changed is None else report.excess(max_changed)
    return KeptReport(
        name=name,
        at=at,
        owner=owner,
        max_changed=max_changed,
        excess=without_secrets(excess),
        document=bounded(report.document()),
    )


def keep(store: Store, layout: JobLayout, report: KeptReport) -> None:
    """Stores it, and deletes the oldest beyond `MOST_REPORTS`."""
    store.put(layout.replay_report(report.name), encode(report))
    for old in kept_reports(store, layout)[MOST_REPORTS:]:
        store.delete([layout.replay_report(old.name)])


def find(store: Store, layout: JobLayout, name: str) -> KeptReport | None:
    return read_if_there(store, layout.replay_report(name), KeptReport)


def kept_reports(store: Store, layout: JobLayout) -> list[KeptReport]:
    """Newest first."""
    names = [entry.path.rpartition("/")[2] for entry in store.list(layout.replays)]
    found = [report for name in names if (report := find(store, layout, name)) is not None]
    return sorted(found, key=lambda report: (report.at, report.name), reverse=True)


def forget(store: Store, layout: JobLayout, name: str = "") -> None:
    """The report of this name; without one, all."""
    store.delete(
        [layout.replay_report(name)] if name else [entry.path for entry in store.list(layout.replays)]
    )


def figure(count: int, unknown_batches: int) -> str:
    """A number of rows of a sink. Of batches that could not be compared nobody knows how many there are."""
    return f"{count:,}" if not unknown_batches else f"{count:,} + ?" if count else "?"


def name_of(words: str, key: str) -> str:
    """A name for people, which is the same for the same key and another one for another."""
    plain = re.sub("[^A-Za-z0-9._-]+", "-", words).strip("-._")[:80] or "replay"
    return f"{plain}-{sha256(key.encode()).hexdigest()[:12]}"


def bounded(document: Mapping[str, Any]) -> dict[str, Any]:
    """The report's document with its first changes, which have no secrets and no long texts."""
    groups, unsteady = [*document["sinks"], *document["states"]], document["nondeterministic"]
    most = max(1, MOST_CHANGES // max(1, len(groups)))
    return {
        **document,
        "sinks": [_group(sink, most) for sink in document["sinks"]],
        "states": [_group(state, most) for state in document["states"]],
        "nondeterministic": _change(unsteady, _secrets_of(unsteady)) if unsteady else None,
        **{
            name: [_cut(without_secrets(sentence)) for sentence in document[name]]
            for name in ("uncompared", "findings", "notes")
        },
    }


def _group(group: Mapping[str, Any], most: int) -> dict[str, Any]:
    kept = {name: value for name, value in group.items() if name != "unknown"}
    if "unknown" in group:
        kept["unknown_batches"] = len(group["unknown"])
    secrets = _secrets_of(group)
    return {**kept, "changes": [_change(change, secrets) for change in group["changes"][:most]]}


def _secrets_of(group: Mapping[str, Any]) -> frozenset[str]:
    """Which parts of a change in state nobody may read. A key has no names of its columns, and a value none of its state."""
    keys = {"key"} if any(map(is_secret, group.get("key_columns", ()))) else set()
    return frozenset(keys | (_VALUES if is_secret(group.get("state", "")) else set()))


def _change(change: Mapping[str, Any], secrets: Collection[str]) -> dict[str, Any]:
    columns = {column for name in _VALUES for column in _secret_columns(change.get(name))}
    return {
        name: value
        if name not in _VALUES and name != "key"
        else "***"
        if name in secrets and value is not None
        else _shown(value, columns)
        for name, value in change.items()
    }


def _shown(value: Any, secret_columns: Collection[str]) -> Any:
    """As JSON without secrets; what is too long is its beginning, as text."""
    plain = _plain(value, secret_columns)
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    return plain if len(text) <= MOST_TEXT else _cut(text)


def _plain(value: Any, secret_columns: Collection[str] = ()) -> Any:
    if isinstance(value, Mapping):
        return {
            str(name): "***" if str(name) in secret_columns or is_secret(str(name)) else _plain(each)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bool | int | float) or value is None:
        return value
    return without_secrets(str(value))


def _secret_columns(row: Any) -> set[str]:
    """The columns of a feed's row that hold what its state holds, if the state is called like a secret: its name stands in the row."""
    columns = {str(name).rstrip("_"): str(name) for name in row} if isinstance(row, Mapping) else {}
    if not columns.keys() >= _OF_FEEDS or not is_secret(str(row[columns["state"]])):
        return set()
    return {name for column, name in columns.items() if column in ("map_key", "before", "after")}


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 3]}..."
