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


PATIENCE = timedelta(minutes=30)


class Watch(sf.KeyedProcess[str, Click, Idle]):
    click = sf.Timer("event", many=True)
    silence = sf.Timer("event")

    def process(self, user: str, clicks: Iterator[Click], ctx: sf.Context):
        for click in clicks:
            self.click.set(click.ts)

    @click.fires
    def clicked(self, user: str, at: datetime, ctx: sf.Context) -> None:
        self.silence.set(at + PATIENCE)

    @silence.fires
    def idle(self, user: str, at: datetime, ctx: sf.Context) -> Iterator[Idle]:
        yield Idle(user, at - PATIENCE)


@sf.pipeline("idle")
def idle(flow: sf.Flow, *, input: str, output: str) -> None:
    late = sf.output("late", Click)  # nobody reads it, so it brings nobody back
    time = {"event_time": "ts", "watermark": "1 minute", "late": late}
    clicks = flow.source("clicks", sf.files(input, "json"), Click, **time)
    silent = clicks.key_by("user").process("watch", Watch)
    silent.append("idle", sf.delta(output))
