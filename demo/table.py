"""Orders in a Delta table, made and read back without Spark: the pipeline is judged by somebody else's eyes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

USERS = 500
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_ROWS = pa.schema([("user", pa.int64()), ("amount", pa.float64()), ("ts", pa.timestamp("us", tz="UTC"))])
_FIELDS = [
    {"name": name, "type": kind, "nullable": True, "metadata": {}}
    for name, kind in (("user", "long"), ("amount", "double"), ("ts", "timestamp"))
]
_NAMES = "orders-{number:05d}.parquet"


@dataclass
class Orders:
    """A table of orders that grows file by file, the same with every seed; one that is there already goes on."""

    folder: Path
    seed: int = 7
    _version: int = field(init=False, default=0)
    _orders: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        commits = (int(path.stem) for path in (self.folder / "_delta_log").glob("*.json"))
        self._version = max(commits, default=-1) + 1
        added = (action["add"] for action in _actions(self.folder) if "add" in action)
        self._orders = sum(json.loads(each.get("stats") or "{}").get("numRecords", 0) for each in added)

    def add(self, files: int, rows: int) -> int:
        """Appends so many files, each a commit of its own; returns how many orders the table has then."""
        for _ in range(files):
            self._append(rows)
        return self._orders

    def _append(self, rows: int) -> None:
        log = self.folder / "_delta_log"
        log.mkdir(parents=True, exist_ok=True)
        name = _NAMES.format(number=self._version)
        chance = random.Random(f"{self.seed}/{self._version}")
        users = [chance.randrange(USERS) for _ in range(rows)]
        # Quarters add up exactly in any order, so the comparison at the end needs no tolerance.
        amounts = [chance.randrange(4, 400) / 4 for _ in range(rows)]
        times = [_BEGIN + timedelta(seconds=self._orders + n) for n in range(rows)]
        pq.write_table(pa.table([users, amounts, times], schema=_ROWS), self.folder / name)
        self._orders += rows
        actions: list[dict[str, Any]] = []
        if self._version == 0:
            actions.append({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}})
            actions.append(
                {
                    "metaData": {
                        "id": f"5ca1ab1e-0000-4000-8000-{self.seed:012d}",
                        "format": {"provider": "parquet", "options": {}},
                        "schemaString": json.dumps({"type": "struct", "fields": _FIELDS}),
                        "partitionColumns": [],
                        "configuration": {},
                        "createdTime": 0,
                    }
                }
            )
        actions.append(
            {
                "add": {
                    "path": name,
                    "partitionValues": {},
                    "size": (self.folder / name).stat().st_size,
                    "modificationTime": 0,
                    "dataChange": True,
                    "stats": json.dumps({"numRecords": rows}),
                }
            }
        )
        text = "".join(json.dumps(action) + "\n" for action in actions)
        (log / f"{self._version:020d}.json").write_text(text, encoding="utf-8")
        self._version += 1


def read(folder: Path) -> list[dict[str, Any]]:
    """Every row of a Delta table, by its log."""
    live = sorted(_files(folder))
    return [row for name in live for row in pq.read_table(folder / name).to_pylist()]


def _files(folder: Path) -> set[str]:
    files: set[str] = set()
    for action in _actions(folder):
        if "add" in action:
            files.add(action["add"]["path"])
        if "remove" in action:
            files.discard(action["remove"]["path"])
    return files


def _actions(folder: Path) -> Iterator[dict[str, Any]]:
    for commit in sorted((folder / "_delta_log").glob("*.json")):
        for text in commit.read_text(encoding="utf-8").splitlines():
            yield json.loads(text)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The pipeline's totals beside those of one pass over the input."""

    users: int
    orders: int
    amount: float
    totals: Mapping[int, float]
    """Of each user, by the input."""
    wrong: tuple[int, ...]
    """Users whose last total is not that of the input."""
    doubled: int
    """Output rows that are there more than once."""

    @property
    def right(self) -> bool:
        return not self.wrong and not self.doubled


def compared(orders: Path, totals: Path) -> Verdict:
    """One pass over all input, against the last total that the pipeline wrote for each user."""
    expected: dict[int, tuple[int, float]] = {}
    for row in read(orders):
        count, amount = expected.get(row["user"], (0, 0.0))
        expected[row["user"]] = (count + 1, amount + row["amount"])
    written = [(row["user"], row["orders"], row["total"]) for row in read(totals)]
    last: dict[int, tuple[int, float]] = {}
    for user, count, amount in sorted(written):
        last[user] = (count, amount)
    wrong = {user for user in expected.keys() | last.keys() if expected.get(user) != last.get(user)}
    return Verdict(
        users=len(expected),
        orders=sum(count for count, _ in expected.values()),
        amount=sum(amount for _, amount in expected.values()),
        totals={user: amount for user, (_, amount) in expected.items()},
        wrong=tuple(sorted(wrong)),
        # A total grows with every order, so a batch that was delivered twice repeats its rows.
        doubled=len(written) - len({(user, count) for user, count, _ in written}),
    )
