"""The thread beside a run: it writes heartbeats, reads stop requests, and notices when a newer run took the job over."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from stateflow.checkpoint import scheduled
from stateflow.checkpoint.claim import require_newest
from stateflow.checkpoint.control import KILLED, Heartbeat, RunOutcome, beat, stop_requested
from stateflow.checkpoint.processes import identity_of_this_process
from stateflow.errors import FencedError, StateflowError
from stateflow.format.layout import JobLayout
from stateflow.format.records import Owner
from stateflow.masking import without_secrets
from stateflow.storage.store import Store

_log = logging.getLogger(__name__)
LAST_BEATS = 4
"""How often to try the last heartbeat: a follower that sees only heartbeats learns from it how the run ended."""

SOON = 10.0
"""Seconds after which the last heartbeat is written although an earlier one is still on its way."""
LATE = 60.0
"""Seconds that a run waits at its end for a heartbeat that a store has not written yet."""


class Heart(threading.Thread):
    """Writes heartbeats from `begin`, when the run has claimed an epoch, to the end of the block. Sets `stop` on a stop request,
    and `drain` on one that asks for a drain, as long as nothing else ends the run."""

    def __init__(
        self,
        store: Store,
        layout: JobLayout,
        owner: Owner,
        interval: float,
        stop: threading.Event,
        explain: Callable[[BaseException], BaseException] = lambda error: error,
        warm_host: str = "",
    ) -> None:
        super().__init__(name="stateflow-heartbeat", daemon=True)
        self._store, self._layout, self._owner = store, layout, owner
        self._interval = interval
        self._explain = explain
        self._warm_host = warm_host
        self._stop_run = stop
        self._ended = threading.Event()
        self._process = identity_of_this_process()
        self._epoch = 0
        self._counter = 0
        self.reason = ""
        self.drain = False
        """Whether all timers are to fire first, as a stop request asks for."""
        self.fenced: FencedError | None = None
        """Set when a newer epoch was seen. A run without input decides no record, so nothing else would tell it."""
        self.outcome: RunOutcome | None = None
        """Written with the last heartbeat. When the block raises, the error is written instead."""
        self._looked_at: int | None = None

    def begin(self, epoch: int) -> None:
        self._epoch = epoch
        self.start()

    def found_nothing(self) -> None:
        """Called by a run that waits for input: it has read everything there is."""
        self._looked_at = time.time_ns() // 1000

    def run(self) -> None:
        read_recall = False
        while True:
            # After a heartbeat: whoever recalls a driver writes the recall and then looks for a heartbeat, so one of the
            # two sees the other.
            if self.beat_once() and not read_recall:
                read_recall = self._read_recall()
            if self._ended.wait(self._interval):
                return

    def beat_once(self, *, ended: bool = False) -> bool:
        """Whether the heartbeat could be written."""
        self._counter += 1
        now = time.time_ns() // 1000
        heartbeat = Heartbeat(
            epoch=self._epoch, counter=self._counter, owner=self._owner, process=self._process, at=now, ended=ended,
            outcome=self.outcome if ended else None, looked_at=self._looked_at,
            warm_host=self._warm_host, interval=round(self._interval * 1e6),
        )  # fmt: skip
        try:
            beat(self._store, self._layout, heartbeat)
            request = stop_requested(self._store, self._layout, self._epoch)
            require_newest(self._store, self._layout, self._epoch)
        except FencedError as error:
            if not ended:
                self.fenced = error
                self._end_run("a newer run")
            return True
        except Exception as error:
            # A missed heartbeat ends nothing. If the store stays away, the run's own writes fail.
            _log.warning("no heartbeat: %s", error)
            return False
        if request is not None:
            self._end_run(request.reason or "a stop request", drain=request.drain)
        return True

    def _read_recall(self) -> bool:
        """Whether the mark of the DAG run could be read."""
        if not self._owner.dag_run:
            return True
        try:
            mark = scheduled.find(self._store, self._layout, self._owner.dag_run, self._owner.task)
        except Exception as error:
            _log.warning("whether this run was recalled is not known yet: %s", error)
            return False
        if mark is not None and mark.recalled:
            self._end_run(KILLED)
        return True

    def _end_run(self, reason: str, *, drain: bool = False) -> None:
        """Stops the run. Only the first reason counts, but whatever else ends the run calls off a drain. A signal, which may have stopped
        the run already, is no reason."""
        if self.reason and (drain or not self.drain):
            return
        self.reason = reason
        if drain:
            _log.warning("draining after this batch, as somebody asks for: %s", reason)
        else:
            self._stop_run.set()
        # Last: a run whose drain is called off would begin another batch between the two.
        self.drain = drain

    def __enter__(self) -> Heart:
        return self

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> None:
        if self._epoch:
            if failure is not None:
                self.outcome = _failed(self._explain(failure))
            self._ended.set()
            self.join(timeout=SOON)
            hangs = self.is_alive()
            for attempt in range(LAST_BEATS):
                if self.beat_once(ended=True):
                    break
                time.sleep(self._interval * attempt / LAST_BEATS)
            if hangs:
                # A store that hung may write the thread's heartbeat only now, or has written it since, over the last one.
                self.join(timeout=LATE)
                self.beat_once(ended=True)


def _failed(error: BaseException) -> RunOutcome:
    code = error.exit_code if isinstance(error, StateflowError) else 1
    return RunOutcome(exit_code=code, error=without_secrets(str(error)) or type(error).__name__)
