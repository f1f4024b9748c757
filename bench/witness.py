"""What a trial takes beside time: the memory of all its processes, and the bytes that it writes into its checkpoints."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.clock import children

EVERY = 0.5
"""Seconds between two looks: a file that lives for less may be missed."""


@dataclass
class Seen:
    peak: int = 0
    """Bytes of memory, pages that processes share counted once."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Of every file that was ever in the folder, as large as it was."""

    @property
    def written(self) -> int:
        return sum(self.sizes.values())


@contextmanager
def watched(folder: Path) -> Iterator[Seen]:
    """Looks at this process, those below it and the files of `folder` until the block ends."""
    seen, over = Seen(), threading.Event()

    def look() -> None:
        while not over.wait(EVERY):
            seen.peak = max(seen.peak, memory_of_tree(os.getpid()))
            _files(folder, seen.sizes)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
        _files(folder, seen.sizes)


def memory_of_tree(pid: int) -> int:
    """The proportional share of memory of a process and all below it; 0 where there is no /proc."""
    own = 0
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                own = int(line.split()[1]) * 1024
    return own + sum(map(memory_of_tree, children(pid)))


def _files(folder: Path, sizes: dict[str, int]) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with suppress(OSError):
                sizes[str(path)] = max(sizes.get(str(path), 0), path.stat().st_size)
