"""What is done behind a complete checkpoint while the next batch runs: others hear of it, and what it subsumes is deleted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from stateflow.checkpoint.control import Progress, report_progress
from stateflow.checkpoint.retention import Retention
from stateflow.checkpoint.scheduled import sweep
from stateflow.checkpoint.writer import Writer
from stateflow.config.options import Options
from stateflow.savepoints.dispose import dispose_claimed

_log = logging.getLogger(__name__)
ORPHANS_EVERY = 64


@dataclass
class Tidying:
    """The tidying of a run, in a thread of its own. No batch waits for a slow one: the next one covers what came meanwhile."""

    writer: Writer
    options: Options
    clock: Callable[[], int]
    _times: int = 0
    _newest: Progress | None = None
    """What was begun last and has not been looked at."""
    _orphans: bool = False
    _is_busy: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "stateflow-tidy"))

    def begin(self, slot: int, statistics: Mapping[str, Any]) -> None:
        """Begins behind a checkpoint, at once or when what is under way has ended."""
        self._times += 1
        progress = Progress(epoch=self.writer.epoch, slot=slot, statistics=dict(statistics), at=self.clock())
        with self._lock:
            self._newest = progress
            self._orphans |= self._times % ORPHANS_EVERY == 1
            if not self._is_busy:
                self._is_busy = True
                self._pool.submit(self._catch_up)

    def _catch_up(self) -> None:
        while True:
            with self._lock:
                progress, orphans = self._newest, self._orphans
                self._newest, self._orphans = None, False
                if progress is None:
                    self._is_busy = False
                    return
            self._tidy(progress, orphans=orphans)

    def _tidy(self, progress: Progress, *, orphans: bool) -> None:
        writer = self.writer
        try:
            report_progress(writer.store, writer.layout, progress)
            dispose = dispose_claimed(
                self.options.storage_options,
                job=writer.job,
                owner=writer.owner,
                clock=self.clock,
                root=writer.store.url,
            )
            retention = Retention.of(self.options, self.clock())
            report = writer.collect(retention, orphans=orphans, dispose=dispose)
            for sentence in report.warnings:
                _log.warning("%s", sentence)
            if orphans:
                sweep(writer.store, writer.layout)
        except Exception as error:
            # Old checkpoints do no harm; the next collection tries again.
            _log.warning("checkpoints were not tidied up: %s", error)

    def end(self) -> None:
        """Waits for what was begun."""
        self._pool.shutdown(wait=True)
