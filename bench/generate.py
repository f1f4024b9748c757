"""Inputs of the benchmarks: Delta tables made from a seed, one Parquet file per micro-batch, kept for the next run.

The tables are written without Spark, so that every side reads the very same files and none has warmed up its JVM by
making them. Amounts are whole numbers: sums are then exact in any order, and results can be compared.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "bench"
ROW_GROUPS = 8
"""Row groups of a file: Spark reads them on all cores."""
ZIPF_EXPONENT = 1.1
FIRST_TIME = 1_700_000_000_000_000
"""Microseconds since 1970, of the first row with a timestamp."""

Keys = Literal["uniform", "distinct", "zipf", "hot"]


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """One micro-batch of input."""

    rows: int
    keys: int
    """Users are 0..keys-1."""
    kind: Keys = "uniform"
    """distinct: no user twice. hot: half of the rows belong to user 0."""
    slice: int = -1
    """With `distinct`: the n-th part of one permutation of all users; -1: a sample of its own."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A Delta table and what its batches hold."""

    path: Path
    batches: tuple[BatchSpec, ...]
    checks: tuple[tuple[int, int, float], ...]
    """Per batch: rows, distinct users, sum of amounts."""

    @property
    def rows(self) -> int:
        return sum(rows for rows, _, _ in self.checks)

    @property
    def amount(self) -> float:
        return sum(amount for _, _, amount in self.checks)


def dataset(
    batches: Sequence[BatchSpec], *, seed: int = 1, folder: Path = CACHE / "data", with_time: bool = False
) -> Dataset:
    """The table with these batches, one commit for each; made only if it is not there yet. `with_time` gives each row a
    timestamp, a millisecond after that of the row before."""
    text = json.dumps([seed, *(["with time"] if with_time else []), *(asdict(b) for b in batches)])
    path = folder / hashlib.sha256(text.encode()).hexdigest()[:16]
    described = path / "_bench.json"
    if not described.exists():
        part = folder / f"making-{uuid.uuid4().hex}"
        checks: list[tuple[int, int, float]] = []
        for n, batch in enumerate(batches):
            first_row = sum(rows for rows, _, _ in checks) if with_time else None
            checks += commit(part, n, [batch], first=n, seed=seed, first_row=first_row)
        (part / described.name).write_text(json.dumps(checks))
        shutil.rmtree(path, ignore_errors=True)
        part.rename(path)
    checks = json.loads(described.read_text())
    return Dataset(path, tuple(batches), tuple((int(r), int(k), float(a)) for r, k, a in checks))


def users(spec: BatchSpec, rng: np.random.Generator, seed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The user of each row."""
    if spec.kind == "uniform":
        return rng.integers(0, spec.keys, spec.rows)
    if spec.kind == "hot":
        sample = rng.integers(0, spec.keys, spec.rows)
        sample[rng.permutation(spec.rows)[: spec.rows // 2]] = 0
        return sample
    if spec.kind == "zipf":
        weights = np.cumsum(1.0 / np.arange(1, spec.keys + 1) ** ZIPF_EXPONENT)
        ranks = np.searchsorted(weights, rng.random(spec.rows) * weights[-1])
        return np.asarray(np.random.default_rng(seed).permutation(spec.keys)[ranks])
    if spec.slice >= 0:
        return np.random.default_rng(seed).permutation(spec.keys)[spec.slice * spec.rows :][: spec.rows]
    if spec.rows * 4 > spec.keys:
        return rng.permutation(spec.keys)[: spec.rows]
    sample = np.unique(rng.integers(0, spec.keys, spec.rows * 5 // 4))
    return rng.permutation(sample)[: spec.rows]


def commit(
    path: Path,
    version: int,
    batches: Sequence[BatchSpec],
    *,
    first: int,
    seed: int,
    first_row: int | None = None,
) -> list[tuple[int, int, float]]:
    """One version of a table, with a file for each batch; `first` numbers them. Returns what they hold. With `first_row`,
    how many rows there are before, the rows have a timestamp."""
    log = path / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    actions = _creation(path, with_time=first_row is not None) if version == 0 else []
    checks = []
    for index, spec in enumerate(batches, first):
        rng = np.random.default_rng([seed, index])
        user = users(spec, rng, seed).astype(np.int64)
        amount = rng.integers(0, 100, len(user)).astype(np.float64)
        file = path / f"batch-{index:05d}.parquet"
        groups = max(1, -(-len(user) // ROW_GROUPS))
        columns = {"user": pa.array(user), "amount": pa.array(amount)}
        if first_row is not None:
            columns["ts"] = times(first_row, len(user))
            first_row += len(user)
        pq.write_table(pa.table(columns), file, row_group_size=groups)
        actions.append(_added(file, len(user)))
        checks.append((len(user), len(np.unique(user)), float(amount.sum())))
    (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)) + "\n")
    return checks


def times(first: int, count: int) -> pa.Array:
    """The timestamps of rows, a millisecond apart."""
    micros = FIRST_TIME + (first + np.arange(count, dtype=np.int64)) * 1000
    return pa.array(micros).cast(pa.timestamp("us", "UTC"))


def _creation(path: Path, *, with_time: bool) -> list[dict[str, Any]]:
    fields = [
        {"name": "user", "type": "long", "nullable": True, "metadata": {}},
        {"name": "amount", "type": "double", "nullable": True, "metadata": {}},
    ]
    if with_time:
        fields.append({"name": "ts", "type": "timestamp", "nullable": True, "metadata": {}})
    return [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": str(uuid.uuid5(uuid.NAMESPACE_OID, path.name)),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": [],
                "configuration": {},
                "createdTime": 0,
            }
        },
    ]


def _added(file: Path, rows: int) -> dict[str, Any]:
    return {
        "add": {
            "path": file.name,
            "partitionValues": {},
            "size": file.stat().st_size,
            "modificationTime": 0,
            "dataChange": True,
            "stats": json.dumps({"numRecords": rows}),
        }
    }
