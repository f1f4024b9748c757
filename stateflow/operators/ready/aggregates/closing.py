"""The output rows of windows that close. If user code raises on a window, the window is dropped, with a dead letter where the
user asked for these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.ready.aggregates.accumulator import Accumulator, window_text
from stateflow.operators.ready.grouping.dead_letters import Produced, dead_letter, key_of, put_out
from stateflow.operators.ready.grouping.failed_groups import FailedGroups
from stateflow.operators.ready.grouping.keys import columns_of
from stateflow.pipelines.processes.columnar import ColumnarContext
from stateflow.pipelines.ready.operators import WINDOW_END, WINDOW_START


class Closing:
    def __init__(self, uid: str, accumulator: Accumulator) -> None:
        self._uid = uid
        self._accumulator = accumulator

    def rows(
        self, keys: pa.Table, starts: Any, ends: Any, partials: pa.Table, ctx: ColumnarContext
    ) -> Produced:
        """`starts` and `ends` are Arrow columns of instants."""
        windows = pa.table({**columns_of(keys), WINDOW_START: starts, WINDOW_END: ends})
        while True:
            try:
                results = self._accumulator.results(partials, windows)
                break
            except FailedGroups as failed:
                yield from self.lost(failed, windows, ctx)
                stays = pa.array(~failed.among(np.arange(len(windows))))
                windows, partials = windows.filter(stays), partials.filter(stays)
        yield pa.table({**columns_of(windows), **results})

    def lost(self, failed: FailedGroups, windows: pa.Table, ctx: ColumnarContext) -> Produced:
        """Windows that cannot come out. Their rows are gone, so the dead letter names the window."""
        keys = windows.drop_columns([WINDOW_START, WINDOW_END])
        yield from put_out(
            [
                dead_letter(
                    self._uid,
                    key_of(keys, at),
                    f"{failure.what} for {window_text(windows, at)}: ",
                    failure.error,
                    (),
                    ctx,
                )
                for at, failure in failed.items()
            ]
        )
