"""One checkpoint root that the pages show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stateflow.config.options import Options
from stateflow.storage.roots import open_store
from stateflow_ui.reading_store import ReadingStore

_PATIENCE = 10.0


def no_root(conn_id: str) -> str:
    """The same for a connection that there is not and for one that somebody may not see."""
    return f"there is no connection {conn_id!r} of type stateflow, or none whose root you may see"


@dataclass(frozen=True, slots=True)
class Root:
    """A connection, and the root that it names."""

    conn_id: str
    shown: str
    """The root as a page may show it."""
    url: str = field(default="", repr=False)
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For the store's client and nothing else: never in an answer."""
    heartbeat_timeout: float = _PATIENCE
    options: Options = field(default_factory=Options, repr=False)
    """Of the connection: what a clean-up keeps, where this host caches state, and how it is read."""
    problem: str = ""
    """Why there is no root, in one sentence."""
    team: str = ""
    """Whose connection it was when it was read; empty where it belongs to nobody."""

    def store(self) -> ReadingStore:
        # The pages decide nothing by what they read, so it need not be on disk yet: with `fsync` a reader of many records
        # would wait for the disk at each of them.
        return ReadingStore(open_store(self.url, self.storage_options, fsync=False))
