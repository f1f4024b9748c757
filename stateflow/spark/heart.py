"""The thread beside a run: shows that it lives, and hears stop requests."""

from __future__ import annotations

import logging
import threading
import time

from stateflow.checkpoint.control import Heartbeat, beat, stop_requested
from stateflow.checkpoint.writer import Writer

_log = logging.getLogger(__name__)


class Heart(threading.Thread):
    """Beats until `end`; sets `stop` when a stop request for this epoch is found."""

    def __init__(self, writer: Writer, interval: float, stop: threading.Event) -> None:
        super().__init__(name="stateflow-heartbeat", daemon=True)
        self._writer = writer
        self._interval = interval
        self._stop_run = stop
        self._ended = threading.Event()
        self._counter = 0
        self.reason = ""

    def run(self) -> None:
        while not self._ended.is_set():
            self.beat_once()
            self._ended.wait(self._interval)

    def beat_once(self, *, ended: bool = False) -> None:
        writer = self._writer
        self._counter += 1
        try:
            beat(
                writer.store,
                writer.layout,
                Heartbeat(
                    epoch=writer.epoch, counter=self._counter, owner=writer.owner,
                    at=time.time_ns() // 1000, ended=ended,
                ),
            )  # fmt: skip
            request = stop_requested(writer.store, writer.layout, writer.epoch)
        except Exception as error:
            # The run's own writes will say so if the store stays away; a missed beat alone ends nothing.
            _log.warning("no heartbeat: %s", error)
            return
        if request is not None and not self._stop_run.is_set():
            self.reason = request.reason or "a stop request"
            self._stop_run.set()

    def end(self) -> None:
        self._ended.set()
        self.join(timeout=10)
        self.beat_once(ended=True)
