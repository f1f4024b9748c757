"""Points of the protocol at which a driver ends or stops; the library knows nothing of them."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from typing import Any

POINTS = (
    "claimed", "fenced", "carrying", "carried", "ran", "acked", "prepared", "decided", "committing", "committed",
    "calling", "called", "delivered", "completed", "collecting", "collected",
)  # fmt: skip


def tell(event: str, **facts: Any) -> None:
    """One line for whoever watches."""
    os.write(1, json.dumps({"event": event, "at": time.time(), **facts}).encode() + b"\n")


_counts: Counter[str] = Counter()
_fatal = ("", 0, "")


def jump(hours: float) -> None:
    """Makes the clock jump, forth and back, from now on."""
    clock, clock_ns, chance = time.time, time.time_ns, random.Random()
    offset = [chance.uniform(-hours, hours) * 3600]
    time.time = lambda: clock() + offset[0]
    time.time_ns = lambda: clock_ns() + int(offset[0] * 1e9)

    def work() -> None:
        while True:
            time.sleep(chance.uniform(0.2, 2))
            offset[0] = chance.uniform(-hours, hours) * 3600
            tell("jump", hours=round(offset[0] / 3600, 1))

    threading.Thread(target=work, daemon=True).start()


def arm(at: str) -> None:
    """`point:n:kill` or `point:n:stop`: what happens to the process group when a point is passed the n-th time."""
    global _fatal
    if at:
        point, n, action = at.split(":")
        _fatal = (point, int(n), action)
    _watch_everything()


def passed(point: str) -> None:
    """A point of the protocol; the errand may say that the run ends or stops here."""
    _counts[point] += 1
    if point == "claimed":
        tell(point)
    name, n, action = _fatal
    if name == point and _counts[point] == n:
        tell(action, point=point)
        os.killpg(0, signal.SIGKILL if action == "kill" else signal.SIGSTOP)


def _watch(owner: Any, name: str, before: str = "", after: str = "") -> None:
    """Makes points of the begin and end of a function."""
    inner = getattr(owner, name)

    def watched(*args: Any, **kwargs: Any) -> Any:
        if before:
            passed(before)
        result = inner(*args, **kwargs)
        if after:
            passed(after)
        return result

    setattr(owner, name, watched)


def _watch_sinks(carry_out: Any) -> None:
    """Each sink of a record: of an earlier run's between `carrying` and `carried`, of the run's own otherwise."""
    recovering: list[bool] = []
    carry_out_pending, commit = carry_out.Sinks.carry_out_pending, carry_out.commit

    def recovered(*args: Any, **kwargs: Any) -> Any:
        recovering.append(True)
        try:
            return carry_out_pending(*args, **kwargs)
        finally:
            recovering.pop()

    def committed(*args: Any, **kwargs: Any) -> Any:
        passed("carrying" if recovering else "committing")
        result = commit(*args, **kwargs)
        passed("carried" if recovering else "committed")
        return result

    carry_out.Sinks.carry_out_pending, carry_out.commit = recovered, committed


def _watch_everything() -> None:
    from stateflow.checkpoint import claim, writer
    from stateflow.spark import carry_out
    from stateflow.spark.batches import batch

    _watch(claim, "claim_epoch", after="claimed")
    _watch(claim, "place_fence", after="fenced")
    _watch_sinks(carry_out)
    _watch(batch.Batch, "_take_acks", before="ran", after="acked")
    _watch(writer.Writer, "decide", before="prepared", after="decided")
    _watch(writer.Writer, "complete", before="delivered", after="completed")
    _watch(writer, "collect", before="collecting", after="collected")
