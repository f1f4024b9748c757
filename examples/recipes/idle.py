from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import stateflow as sf


@dataclass
class Click:
    user: str
    ts: datetime


@dataclass
class Idle:
    user: str
    since: datetime


class Watch(sf.KeyedProcess[str, Click, Idle]):
    silence = sf.Timer("event")

    def process(self, user: str, clicks: Iterator[Click], ctx: sf.Context) -> None:
        ends = max(click.ts for click in clicks) + timedelta(minutes=30)
        if self.silence.at is None or ends > self.silence.at:
            self.silence.set(ends)

    @silence.fires
    def idle(self, user: str, at: datetime, ctx: sf.Context) -> Iterator[Idle]:
        yield Idle(user, at - timedelta(minutes=30))


@sf.pipeline("idle")
def idle(flow: sf.Flow, *, input: str, output: str) -> None:
    late = sf.output("late", Click)  # nobody reads it: a late click brings nobody back
    clicks = flow.source(
        "clicks", sf.files(input, "json"), Click, event_time="ts", watermark="1 minute", late=late
    )
    clicks.key_by("user").process("watch", Watch).append("idle", sf.delta(output))
