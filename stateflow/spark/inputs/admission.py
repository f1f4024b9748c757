"""Batches of the right size: carries out what `batch_size` decides, on the streams of a running query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from stateflow.checkpoint.log import SlotContent
from stateflow.format.source_offsets import NOTHING
from stateflow.spark.inputs.batch_size import (
    BatchSize,
    Unit,
    first_size,
    note,
    reachable,
    size_of,
)
from stateflow.spark.inputs.open_inputs import OpenInputs
from stateflow.spark.internals.read_limits import ReadLimit, admitted, limit_next_batch
from stateflow.spark.internals.scratch_folder import bounds_of_batch
from stateflow.spark.sources.kafka import parse
from stateflow.spark.sources.leaves import LeafDescription

BATCH_SIZE = "batch_size"
"""Name of what a record notes of it."""
WAITED = "waited"
"""Name of what a record notes of sources that it took nothing of."""


@dataclass
class Admission:
    """What the batches of a run may take, if the run has a target."""

    spark: SparkSession
    inputs: OpenInputs
    target: float
    """Seconds; 0: the sources' own limits hold alone."""
    warn: Callable[[str, str], None]
    size: BatchSize = field(init=False)
    _noted: BatchSize = field(init=False)
    """Of the batch that runs."""
    _numbers: tuple[int | None, ...] = field(init=False)
    """For each stream of the plan the number of its share."""
    waits: dict[str, str] = field(default_factory=dict)
    """The sources that the next batch takes nothing of, each with the one that it waits for."""

    def __post_init__(self) -> None:
        streams: list[tuple[str, Unit]] = []
        numbers: list[int | None] = []
        for leaf in self.inputs.leaves if self.target else ():
            unit = _unit(leaf)
            numbers.append(len(streams) if unit else None)
            if unit:
                streams.append((leaf.uid, unit))
            else:
                self.warn(
                    f"unbounded: {leaf.uid}",
                    f"target_batch_duration has no hold on source {leaf.uid!r}: it bounds Delta tables, files and Kafka topics; "
                    f"a source of {leaf.format} keeps to its own options, such as per_batch",
                )
        self.size = self._noted = first_size(streams, None)
        self._numbers = tuple(numbers)

    @property
    def plans_first_batch(self) -> bool:
        """True if every stream can be held back from the run's first batch on."""
        return bool(self._numbers) and None not in self._numbers

    def begin(self, slots: Iterable[SlotContent]) -> None:
        """Goes on from the newest record that notes a size. `slots` ascend."""
        if not self.target:
            return
        streams = [(share.source, share.unit) for share in self.size.shares]
        for slot in reversed(list(slots)):
            statistics = slot.record.statistics if slot.record is not None else {}
            noted = size_of(statistics.get(BATCH_SIZE))
            if noted is None:
                continue
            seconds = seconds_of(slot.outcome.statistics) if slot.outcome is not None else 0.0
            rows = statistics.get("processed_rows")
            if isinstance(rows, int) and all(share.took is not None for share in noted.shares):
                noted = noted.after(rows, seconds, self.target)
            self.size = self._noted = first_size(streams, noted)
            return

    def limit(self, number: int) -> ReadLimit | None:
        """What the next batch may take of a stream."""
        share = self._numbers[number] if self._numbers else None
        if share is None:
            return None
        if self.holds(number):
            unit = self.size.shares[share].unit
            # Of a limit in bytes a source takes one file at least.
            return ReadLimit("rows" if unit == "rows" else "files", 0)
        return ReadLimit(self.size.shares[share].unit, self.size.shares[share].most)

    def holds(self, number: int) -> bool:
        """Whether the next batch takes nothing of a stream."""
        share = self._numbers[number] if self._numbers else None
        return share is not None and self.size.shares[share].source in self.waits

    def hold(self, waits: Mapping[str, str]) -> None:
        """Lets the next batch take nothing of these sources, each with the one that it waits for, as far as they can be held back."""
        bounded = {share.source for share in self.size.shares}
        for uid in sorted(waits.keys() - bounded):
            self.warn(
                f"unheld: {uid}",
                f"max_source_drift cannot hold back source {uid!r}, which is ahead of {waits[uid]!r}: what waits is a Delta table, files or "
                f"Kafka topics; let {uid!r} read one of these, or leave the option out",
            )
        self.waits = {uid: other for uid, other in waits.items() if uid in bounded}

    def release(self, query: str | None = None) -> bool:
        """Lets every source go on, also in the query of this id; returns whether one waited."""
        waited, self.waits = bool(self.waits), {}
        if waited and query is not None:
            self._limit(query)
        return waited

    def _limit(self, query: str | None = None) -> None:
        limit_next_batch(self.spark, [self.limit(number) for number in range(len(self._numbers))], query)

    def note(self, location: Path | None, batch_id: int) -> dict[str, Any]:
        """For the record of the batch that runs: what it might take, and what it took. None for `location`: it took nothing."""
        if not self.target or not self.size.shares:
            return {}
        self._noted = self.size if location is None else self.size.taken(self._took(location, batch_id))
        noted = {BATCH_SIZE: note(self._noted, self.target)}
        return {**noted, WAITED: dict(self.waits)} if self.waits else noted

    def ran(self, rows: int, seconds: float, waits: Mapping[str, str]) -> None:
        """Decides what the next batch may take, once this one has run. `waits`: of which sources it takes nothing."""
        if not self.target:
            return
        self.hold(waits)
        if not self.size.shares:
            return
        self.size = self._noted.after(rows, seconds, self.target)
        self._limit()
        if (least := reachable(self.target, self.size.measured)) > self.target:
            self.warn(
                "target_batch_duration",
                f"target_batch_duration={self.target:g} s is out of reach: a batch takes about {self.size.measured.fixed or 0.0:.1f} s beside "
                f"its rows, so batches are made for {least:.0f} s; set it to that or more",
            )

    def _took(self, location: Path, batch_id: int) -> list[int | None]:
        begins, ends = bounds_of_batch(location, batch_id)
        files = admitted(self.spark) if any(share.unit != "rows" for share in self.size.shares) else []
        took: list[int | None] = []
        for number, share in enumerate(self._numbers):
            if share is None:
                continue
            unit = self.size.shares[share].unit
            if unit == "rows":
                took.append(messages_between(begins[number], ends[number]))
            elif number < len(files):
                took.append(files[number].bytes if unit == "bytes" else files[number].files)
            else:
                took.append(None)
        return took


def seconds_of(phases: Mapping[str, Any]) -> float:
    """How long a batch took, as its outcome has it. With several in flight the next one began before its commit, and it waited for the
    commit of the one before."""
    last = "waited_ms" if "waited_ms" in phases else "commit_ms"
    noted = (phases.get(name) for name in ("evaluate_ms", "decide_ms", last))
    return sum(each for each in noted if isinstance(each, int)) / 1000


def messages_between(begin: str, end: str) -> int | None:
    """How many offsets of Kafka lie between two lines; None where the first one is not known."""
    if begin == NOTHING or end == NOTHING:
        return 0 if end == NOTHING else None
    before = parse(begin)
    # A partition that is new begins at its first message, which is nearly always number 0.
    return sum(max(0, offset - before.get(partition, 0)) for partition, offset in parse(end).items())


def _unit(leaf: LeafDescription) -> Unit | None:
    if leaf.kind == "delta":
        return "bytes"
    if leaf.kind == "file":
        # Spark's source of files heeds one limit. Beside a number of files there is none of bytes.
        return "files" if "maxfilespertrigger" in leaf.options else "bytes"
    return "rows" if leaf.kind == "kafka" and leaf.reads_micro_batches else None
