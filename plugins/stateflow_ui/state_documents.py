"""What the pages are told of state: a key's history, differences, reports of replays. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stateflow.observe.status import owner_document
from stateflow.reading.diff import KINDS
from stateflow.reading.history import KeyVersion
from stateflow.replay.reports import KeptReport
from stateflow_ui.documents import millis
from stateflow_ui.state_reader import ReadDifferences, ReadHistory

MOST_TEXT = 2000
"""Characters of a value."""


def history(found: ReadHistory) -> dict[str, Any]:
    asked = found.asked
    return {
        "operator": asked.operator,
        "state": asked.state,
        "key": asked.key,
        "map_key": asked.map_key,
        "namespace": asked.namespace,
        "versions": [
            {**_version(version), "previous": found.previous.get(version.slot)}
            for version in found.history.versions
        ],
        "checkpoints": found.history.checkpoints,
        "nothing": found.history.nothing,
        "notes": [*([found.cut] if found.cut else []), *found.history.notes],
    }


def _version(version: KeyVersion) -> dict[str, Any]:
    return {
        "slot": version.slot,
        "at": millis(version.at),
        "kind": version.kind,
        "what": version.what,
        "value": shown(version.value),
        "numbers": numbers(version.value),
        "more": version.result is not None and version.result.more,
        "dag_run": version.dag_run,
        "code": version.versions.get("revision", "")
        or version.versions.get("modules", "").removeprefix("sha256:")[:12],
    }


def differences(found: ReadDifferences) -> dict[str, Any]:
    return {
        "before": {"slot": found.before.slot, "at": millis(found.before.at)},
        "after": {"slot": found.after.slot, "at": millis(found.after.at)},
        "kinds": [kind for kind in KINDS if any(counts.get(kind) for counts in found.counts.values())],
        "states": [
            {
                "operator": operator,
                "state": state,
                "counts": counts,
                "first": [
                    {
                        name: shown(value)
                        for name, value in change.json.items()
                        if name not in ("operator", "state")
                    }
                    for change in found.first[operator, state]
                ],
            }
            for (operator, state), counts in found.counts.items()
        ],
        "notes": found.notes,
    }


def replays(reports: Sequence[KeptReport]) -> dict[str, Any]:
    """The newest first."""
    return {
        "replays": [
            {
                "name": report.name,
                "at": millis(report.at),
                "by": owner_document(report.owner),
                "max_changed": report.max_changed,
                "excess": report.excess,
                "report": _report(report.document),
            }
            for report in reports
        ]
    }


def _report(document: Mapping[str, Any]) -> dict[str, Any]:
    """With keys and rows as texts."""
    groups = {
        name: [
            {**group, "changes": [_change(change) for change in group["changes"]]} for group in document[name]
        ]
        for name in ("sinks", "states")
    }
    return {**document, **groups}


def _change(change: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: shown(value) if name in ("key", "before", "after") else value for name, value in change.items()
    }


def shown(value: Any) -> str | None:
    """The value as a text, or the beginning of it if that is long; None where there is nothing.

    A browser would read the number 9007199254740993 as 9007199254740992, and -0.0 as 0.
    """
    if value is None:
        return None
    text = _text(value)
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 1]}…"


def numbers(value: Any) -> dict[str, str]:
    """What a curve may draw of a value: the number itself, under an empty name, or those of its fields that are numbers."""
    fields = value if isinstance(value, Mapping) else {"": value}
    texts = {name: _text(field) for name, field in fields.items() if _is_number(field)}
    return texts if sum(map(len, texts)) + sum(map(len, texts.values())) <= MOST_TEXT else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
