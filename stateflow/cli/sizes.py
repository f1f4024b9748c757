"""Counts what the states of a job's newest checkpoint hold."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

from stateflow.cli.options import root_of

if TYPE_CHECKING:
    from stateflow.config.options import Options
    from stateflow.reading.query import StateSize


def counted(options: Options, job: str) -> tuple[int, list[StateSize]]:
    """The checkpoint's number and its states. It reads the whole state."""
    from stateflow.checkpoint.process import this_process
    from stateflow.reading.snapshots import checkpoint_reader, reader_context

    def ids() -> str:
        return uuid.uuid4().hex

    place = reader_context(options, root_of(options), lambda: time.time_ns() // 1000)
    with checkpoint_reader(place, job, owner=this_process(run=ids()), ids=ids) as reader:
        return reader.record.slot, reader.sizes()
