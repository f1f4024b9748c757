"""Sorted runs of rows that do not fit into memory, in a file of the scratch folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from stateflow.storage.scratch import remove_scratch

FILE = "rows.arrow"


class RunsFile:
    """Written run by run, then read in blocks, each by its number. Without a run there is no file."""

    def __init__(self, scratch: Callable[[], Path]) -> None:
        self._scratch = scratch
        self._folder: Path | None = None
        self._writer: Any = None
        self.runs: list[range] = []
        """The numbers of the file's blocks that each run has."""

    def write(self, blocks: Iterable[Any]) -> None:
        """One more run; none if there are no blocks."""
        first = end = self.runs[-1].stop if self.runs else 0
        for block in blocks:
            if self._writer is None:
                self._folder = self._scratch()
                self._writer = pa.ipc.new_file(str(self._folder / FILE), block.schema)
            self._writer.write_batch(block)
            end += 1
        if end > first:
            self.runs.append(range(first, end))

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """The file, when all runs are written."""
        assert self._folder is not None
        self._writer.close()
        self._writer = None
        with pa.memory_map(str(self._folder / FILE)) as mapped:
            yield pa.ipc.open_file(mapped)

    def close(self) -> None:
        self.runs = []
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._folder is not None:
            remove_scratch(self._folder)
            self._folder = None
