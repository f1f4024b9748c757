"""Trying again what another system did not do: it may be starting anew, and is back after a few seconds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event
from typing import TypeVar

from stateflow.errors import UnavailableError

PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds between tries: a server that is started anew is back after a few."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


def trying_again(act: Callable[[], T], pause: Callable[[float], object] | None = None) -> T:
    """Does something, again while it raises UnavailableError; `act` has to notice what an earlier try has done."""
    for seconds in PAUSES:
        try:
            return act()
        except UnavailableError as error:
            _log.warning("%s; trying again in %s s", error, seconds)
        (pause or Event().wait)(seconds)
    return act()
