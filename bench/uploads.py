"""How much a checkpoint uploads when little has changed. Bytes are the same every time, so one repeat is enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.generate import BatchSpec, dataset
from bench.measurement import Measurement, Plot, Results, Section, Workplace, at_most, median
from bench.measurement import size as bytes_

SIDES = ("process",)
PER_SHARD = 64 * 1024


@dataclass(frozen=True, slots=True)
class Size:
    keys: int
    share: float
    measured: int


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from bench import operators, sides

    touched = round(size.keys * size.share)
    batches = [
        BatchSpec(size.keys, size.keys, "distinct"),
        *[BatchSpec(touched, size.keys, "distinct")] * size.measured,
    ]
    data = dataset(batches)
    outcome = sides.stateflow_run(
        sides.session(), operators.per_key, {"input": str(data.path)}, workplace.folder
    )
    out: list[dict[str, float]] = []
    for report in outcome.reports[1:]:
        shards = [s for subtask in report.record.operators["totals"].shards for s in subtask]
        metrics = report.statistics["metrics"]
        out.append(
            {
                # Small files travel inside the record, which is uploaded too.
                "uploaded": metrics["uploaded_bytes"] + metrics["inlined_bytes"],
                "compacted": metrics["compacted_bytes"],
                "state": sum(shard.bytes for shard in shards),
                "shards": len(shards),
                "objects": metrics["uploaded_files"],
            }
        )
    loaded = outcome.reports[0].record.operators["totals"].shards
    return {"batches": out, "loaded": sum(s.bytes for subtask in loaded for s in subtask), "touched": touched}


def section(results: Results, size: Size) -> Section:
    figures = results.first("process")
    batches = figures["batches"]
    changed = [size.share * figures["loaded"]] * len(batches)
    plain = [max(0, b["uploaded"] - b["compacted"]) for b in batches]
    over = max(p / (0.02 * b["state"] + PER_SHARD * b["shards"]) for p, b in zip(plain, batches, strict=True))
    total = sum(b["uploaded"] for b in batches)
    rows = [
        ["state", bytes_(figures["loaded"]), ""],
        ["changed by a batch", bytes_(changed[0]), f"{size.share:.1%} of the state"],
        ["uploaded, median batch", bytes_(median([b["uploaded"] for b in batches])), ""],
        [
            "uploaded apart from compaction, largest",
            bytes_(max(plain)),
            f"{max(plain) / figures['loaded']:.2%} of the state",
        ],
        ["uploaded, largest batch", bytes_(max(b["uploaded"] for b in batches)), ""],
        ["uploaded by all batches", bytes_(total), f"{total / sum(changed):.1f} times the changed bytes"],
        ["new objects per batch, mean", f"{sum(b['objects'] for b in batches) / len(batches):.1f}", ""],
    ]
    targets = [
        at_most(
            "each batch uploads at most 2 % of the state plus 64 KiB per shard, compaction apart",
            over,
            1.0,
            lambda v: f"{v:.0%} of that",
        ),
        at_most(
            f"{len(batches)} batches upload at most ten times the changed bytes, compaction included",
            total / sum(changed),
            10,
        ),
    ]
    text = (
        f"A state of {size.keys:,} keys; each of {len(batches)} batches touches {figures['touched']:,} of them. What is "
        "small enough to travel inside the record is counted as uploaded. Changed bytes are the touched keys' share of the state."
    )
    plot = Plot(
        "uploads",
        "Bytes uploaded per batch",
        "lines",
        list(range(1, len(batches) + 1)),
        {
            "all": [b["uploaded"] / 1024 for b in batches],
            "apart from compaction": [p / 1024 for p in plain],
        },
        "batch",
        "KiB",
        marks={"changed": changed[0] / 1024, "whole state": figures["loaded"] / 1024},
        logarithmic=True,
    )
    return Section(text, ("what", "bytes", ""), rows, targets, [plot])


MEASUREMENT = Measurement(
    "uploads",
    "Uploads follow the change",
    SIDES,
    {"full": Size(2_000_000, 0.01, 100), "quick": Size(300_000, 0.01, 25)},
    run,
    section,
    repeats=1,
    minutes={"full": 2.0, "quick": 0.7},
)
