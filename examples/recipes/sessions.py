from dataclasses import dataclass
from datetime import datetime

import stateflow as sf


@dataclass
class Click:
    user: str
    page: str
    ts: datetime


@dataclass
class Visit:
    user: str
    window_start: datetime
    window_end: datetime
    clicks: int
    entry: str
    exit: str


@sf.pipeline("sessions")
def sessions(flow: sf.Flow, *, input: str, output: str) -> None:
    clicks = flow.source(
        "clicks", sf.files(input, "json"), Click, event_time="ts",
        watermark="1 minute",
    )
    visits = clicks.key_by("user", order_by="ts").window(
        sf.session("30 minutes")
    )
    visits.aggregate(
        "visits", Visit, clicks=sf.count(), entry=sf.first("page"),
        exit=sf.last("page"),
    ).append("finished", sf.delta(output))
