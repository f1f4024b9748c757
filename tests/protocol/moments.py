"""Something done at a moment of a schedule, and a run that goes by meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from tests.memory_store import Call, MemoryStore
from tests.protocol.scenario import World


def at(
    store: MemoryStore, verb: str, path: str, do: Callable[[], object], *, after: bool = False, nth: int = 1
) -> None:
    """Does something when the store sees a call for the nth time, once; what it does runs without hooks."""
    seen = 0

    def hook(call: Call) -> None:
        nonlocal seen
        if call.verb == verb and path in call.path:
            seen += 1
            if seen == nth:
                store.before = store.after = None
                do()

    if after:
        store.after = hook
    else:
        store.before = hook


def run(world: World, batches: int, *, retained: int = 1) -> None:
    writer = world.claim("next", retained=retained)
    for _ in range(batches):
        world.batch(writer)
        writer.collect(retained, orphans=True)
