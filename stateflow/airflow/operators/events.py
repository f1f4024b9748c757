"""Events of the assets that follow a run. They come after the commit, so nothing here may fail a task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias

from stateflow.airflow.internals.asset_references import AssetRef
from stateflow.airflow.operators.assets import table_asset

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from stateflow.jobs.written_partitions import WrittenPartitions
    from stateflow.observe.status import SinkStatus

_log = logging.getLogger(__name__)


def announce(
    operator: BaseOperator,
    context: Context,
    asset: Asset,
    facts: Mapping[str, Any],
    *,
    but: AssetAlias | None = None,
) -> None:
    """Gives the event of each outlet the facts of the run. An alias stands for the job's own asset."""
    for outlet in operator.outlets or ():
        if outlet == but:
            continue
        try:
            if isinstance(outlet, AssetAlias):
                context["outlet_events"][outlet].add(asset, extra=dict(facts))
            elif isinstance(outlet, Asset | AssetRef):
                event = context["outlet_events"][outlet]
                event.extra = {**(event.extra or {}), **facts}
        except Exception as error:
            _log.warning("outlet %r gets no facts of the run: %s", outlet, error)


def announce_tables(
    context: Context, alias: AssetAlias, tables: Mapping[str, SinkStatus], facts: Mapping[str, Any]
) -> None:
    """An event for each table that a run has written. `tables` are its sinks by uid."""
    for uid, sink in tables.items():
        try:
            asset = table_asset(sink.target, sink.name)
            if asset is not None:
                context["outlet_events"][alias].add(asset, extra={**facts, "sink": uid})
        except Exception as error:
            _log.warning("table %s gets no event: %s", sink.target, error)


def announce_partitions(
    operator: BaseOperator,
    context: Context,
    tables: Mapping[str, SinkStatus],
    written: Callable[[str, SinkStatus], WrittenPartitions],
) -> None:
    """Names the partitions that a run has written in the events of those of its tables that are outlets: one event for each. `written`
    gives those of a sink."""
    for uid, sink in tables.items():
        try:
            asset = table_asset(sink.target, sink.name)
            if asset is None:
                _log.warning(
                    "table %s is an asset only by its whole path: give the pipeline that", sink.target
                )
                continue
            outlet = _outlet_of(operator, asset)
            if outlet is None:
                said = "table %s is no outlet of the task, so no event names its partitions: add outlets=[Asset(%r)]"
                _log.warning(said, sink.target, asset.uri)
                continue
            partitions = written(uid, sink)
            if partitions.unknown:
                _log.warning(
                    "the events of table %s lack the partitions of %d of the run's commits (slots %s): the table's log does not have them (any "
                    "more), so start what waits for them by hand, and let delta.logRetentionDuration be longer than a task and its retries take",
                    sink.target,
                    len(partitions.unknown),
                    ", ".join(map(str, partitions.unknown)),
                )
            if partitions.names:
                context["outlet_events"][outlet].add_partitions(list(partitions.names))
            elif not partitions.unknown:
                _log.warning("table %s has no partitions, so its event names none", sink.target)
        except Exception as error:
            _log.warning("the event of table %s names no partition: %s", sink.target, error)


def _outlet_of(operator: BaseOperator, asset: Asset) -> Asset | None:
    """The outlet that is this asset; users may have given it another name, or another URI to a name of a catalog."""
    outlets = (each for each in operator.outlets or () if isinstance(each, Asset))
    return next((each for each in outlets if each.uri == asset.uri or each.name == asset.name), None)


def keep_quiet(operator: BaseOperator) -> None:
    """Sends no event for this run. Airflow reads the outlets of the task that has run when it has ended well."""
    operator.outlets = []
