"""Where a run ends, as people write it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from stateflow.errors import UsageError

if TYPE_CHECKING:
    from stateflow.pipelines.flow import Flow


def parse_bounds(texts: Iterable[str] | None) -> Any:
    """`--until` as the runner takes it: one bound for all sources, or one per source uid."""
    bounds: dict[str, int | datetime] = {}
    for text in texts or ():
        uid, equals, value = text.partition("=")
        if equals and uid in bounds:
            raise UsageError(f"--until is given twice for source {uid!r}: give the one that is meant")
        bounds[uid if equals else ""] = _bound(value if equals else text)
    if not bounds:
        return None
    if "" in bounds:
        if len(bounds) > 1 or len(list(texts or ())) > 1:
            raise UsageError("--until is given once for all sources, or as SOURCE=... for each")
        return bounds[""]
    return bounds


def check_bounds(until: Any, flow: Flow) -> None:
    """UsageError for a bound that is none, or of a source that the pipeline does not have. A source without a bound is not read."""
    for bound in until.values() if isinstance(until, Mapping) else () if until is None else (until,):
        if isinstance(bound, bool) or not isinstance(bound, int | datetime):
            raise UsageError(
                f"until is {bound!r}: give a version, such as until=17, or a time, such as until=datetime(2026, 1, 31, tzinfo=UTC)"
            )
    uids = [node.uid for node in flow.sources]
    for uid in until if isinstance(until, Mapping) else ():
        if uid not in uids:
            raise UsageError(
                f"until names a source {uid!r}, and pipeline {flow.name!r} has none of that uid: it has {', '.join(sorted(uids))}"
            )


def _bound(text: str) -> int | datetime:
    if text.strip().isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(
            f"--until {text!r} is neither a version nor a time: write 17 or 2026-01-31T12:00:00+00:00"
        ) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)
