"""Jobs whose checkpoints hold given state, and the options that Spark's tables of them take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stateflow.format.records import OperatorListState, OperatorState, Record, SourceState
from tests.jobs.builder import JobBuilder
from tests.jobs.operators import Key
from tests.jobs.state import Held, held_operator


class Holding(JobBuilder):
    """A job that holds state in `folder/root`, or in another `root`."""

    def __init__(self, folder: Path, name: str = "orders", *, root: str = "", **claimed: Any) -> None:
        super().__init__(root or folder / "root", name, folder=folder, **claimed)

    @property
    def given(self) -> dict[str, str]:
        """The same as options of a data source."""
        names = ("checkpoint_dir", "cache_dir", "scratch_dir")
        plain = {name: str(getattr(self.options(), name)) for name in names}
        return {**plain, **{f"storage.{name}": value for name, value in self.storage_options.items()}}

    def operator(
        self,
        key: Key,
        states: Mapping[str, Held],
        *,
        elements: Mapping[str, OperatorListState] = {},
        **made: Any,
    ) -> OperatorState:
        folder = self.folder / "made"
        return held_operator(self.writer, key, states, folder, operator_states=dict(elements), **made)

    def checkpoint(self, sources: Mapping[str, SourceState] = {}, **operators: OperatorState) -> Record:
        """A complete checkpoint."""
        return self.decide(operators=operators, sources=dict(sources))

    def cached(self) -> list[Path]:
        """Files that readers have fetched."""
        folder = self.folder / "cache" / "state"
        return [p for p in folder.iterdir() if not p.name.startswith(".")] if folder.is_dir() else []


def plain(rows: Sequence[Any], *names: str) -> list[tuple[Any, ...]]:
    """Columns of rows, sorted."""
    return sorted(tuple(row[name] for name in names) for row in rows)
