"""Describes a ready-made operator to people, from the options that its record keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateflow.format.records import OPTION_AGGREGATE, OPTION_INPUTS, OPTION_KIND

_NONE = "none"


def operator_text(options: Mapping[str, str]) -> str:
    """One line, such as "left interval join of clicks with views, within -10 minutes to 0"; empty for other operators."""
    match options.get(OPTION_KIND, ""):
        case "interval join":
            within = f"{_join(options, 'interval ')}, within {options.get('within', '?')}"
            return _with(options, within, "held back")
        case "as-of join":
            waits = "; takes the version known now" if options.get("wait") == "False" else ""
            return f"{_with(options, _join(options, 'as-of '), 'keep', 'held back')}{waits}"
        case "latest-version join":
            return _join(options, "latest-version ")
        case "window join":
            return _with(
                options,
                f"{_join(options, '')} in {options.get('window', '?')}",
                "lateness",
                "late",
                "held back",
            )
        case "running aggregate":
            return f"running {_aggregates(options)}"
        case "window aggregate":
            what = f"{_aggregates(options)} in {options.get('window', '?')}"
            return _with(options, what, "lateness", "late", "emit", "held back")
        case "window code":
            return _with(
                options, f"code for each {options.get('window', '?')}", "lateness", "late", "held back"
            )
        case "deduplication":
            return _with(
                options, f"deduplication, keeps the {options.get('keep', '?')}", "within", "held back"
            )
        case "top":
            return _with(options, f"first {options.get('n', '?')} by {options.get('by', '?')}", "per")
        case "latest":
            return f"last row by {options.get('order_by of the key', '?')}"
        case "enrichment":
            return "enrichment"
        case kind:
            return kind


def combiner_text(note: Any) -> str:
    """What the newest batch measured of an operator whose batches can be combined; empty for other operators. `note` is the
    operator's part of a record's statistics, where other programs may have written anything."""
    match note:
        case {"rows": int(rows), "groups": int(groups), "combined": bool(combined)} if groups:
            did = "was summed up" if combined else "was not summed up"
            return f"the newest batch {did} before the shuffle: {rows / groups:,.1f} rows per group"
    return ""


def late_text(figures: Any) -> str:
    """How many rows of the newest batch came late to an operator. `figures` is the operator's part of a record's statistics."""
    match figures:
        case {"counters": dict(counters)}:
            counts = (
                (name, counters.get(f"{name.replace(' ', '_')}_rows")) for name in ("late", "partly late")
            )
            counted = [f"{count:,} {name}" for name, count in counts if isinstance(count, int) and count]
            return f"of the newest batch {' and '.join(counted)}" if counted else ""
    return ""


def _join(options: Mapping[str, str], kind: str) -> str:
    left, _, right = options.get(OPTION_INPUTS, "").partition(" and ")
    how = f"{options['how']} " if "how" in options else ""
    return f"{how}{kind}join{f' of {left} with {right}' if right else ''}"


def _aggregates(options: Mapping[str, str]) -> str:
    names = [
        name.removeprefix(OPTION_AGGREGATE).strip("'")
        for name in options
        if name.startswith(OPTION_AGGREGATE)
    ]
    return f"aggregate{'s' if len(names) != 1 else ''} {', '.join(names)}"


def _with(options: Mapping[str, str], text: str, *names: str) -> str:
    """The text with the options that are set."""
    set_options = [
        f"{name} {value}" for name in names if (value := options.get(name, _NONE)) not in (_NONE, "0")
    ]
    return ", ".join([text, *set_options])
