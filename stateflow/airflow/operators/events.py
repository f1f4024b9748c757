"""Events of the assets that follow a run. They come after the commit, so nothing here may fail a task."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias
from airflow.sdk.definitions.asset import AssetRef

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

_log = logging.getLogger(__name__)


def announce(operator: BaseOperator, context: Context, asset: Asset, facts: Mapping[str, Any]) -> None:
    """Gives the event of each outlet the facts of the run. An alias stands for the job's own asset."""
    for outlet in operator.outlets or ():
        try:
            if isinstance(outlet, AssetAlias):
                context["outlet_events"][outlet].add(asset, extra=dict(facts))
            elif isinstance(outlet, Asset | AssetRef):
                event = context["outlet_events"][outlet]
                event.extra = {**(event.extra or {}), **facts}
        except Exception as error:
            _log.warning("outlet %r gets no facts of the run: %s", outlet, error)


def keep_quiet(operator: BaseOperator) -> None:
    """Sends no event for this run. Airflow reads the outlets of the task that has run when it has ended well."""
    operator.outlets = []
