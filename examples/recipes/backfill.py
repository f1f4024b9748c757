from dataclasses import dataclass
from datetime import datetime

import stateflow as sf


@dataclass
class Reading:
    sensor: str
    celsius: float
    ts: datetime


@dataclass
class Day:
    sensor: str
    window_start: datetime
    readings: int
    mean: float


@sf.pipeline("backfill")
def backfill(flow: sf.Flow, *, input: str, output: str) -> None:
    history = sf.files(input, "json", per_batch=1)
    readings = flow.source(
        "readings", history, Reading, event_time="ts", watermark="1 hour"
    )
    per_day = readings.key_by("sensor").window(sf.tumbling("1 day"))
    per_day.aggregate(
        "per-day", Day, readings=sf.count(), mean=sf.mean("celsius")
    ).append("days", sf.delta(output))
