from dataclasses import dataclass
from datetime import datetime

import stateflow as sf


@dataclass
class Click:
    id: str
    page: str
    ts: datetime


@sf.pipeline("dedup")
def dedup(flow: sf.Flow, *, input: str, output: str) -> None:
    clicks = flow.source(
        "clicks", sf.files(input, "json"), Click, event_time="ts",
        watermark="10 seconds",
    )
    clicks.deduplicate("once", by="id", within="1 hour").append(
        "first-clicks", sf.delta(output)
    )
