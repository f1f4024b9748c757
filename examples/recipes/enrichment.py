import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import stateflow as sf


@dataclass
class Visit:
    ip: str
    page: str


@dataclass
class Located:
    ip: str
    page: str
    country: str


def look_up(service: str, ip: str) -> str:
    with urllib.request.urlopen(f"{service}/{ip}", timeout=5) as answer:
        return json.load(answer)["country"]


class Locate(sf.KeyedProcess[str, Visit, Located]):
    country = sf.ValueState(str, ttl="1 day")  # an answer is state: a repeated batch asks nobody

    def process(self, ip: str, visits: Iterator[Visit], ctx: sf.Context) -> Iterator[Located]:
        if not self.country.exists():
            self.country.value = look_up(ctx.parameters["service"], ip)
        for visit in visits:
            yield Located(ip, visit.page, self.country.value)


@sf.pipeline("enrichment")
def enrichment(flow: sf.Flow, *, input: str, output: str, service: str) -> None:
    visits = flow.source("visits", sf.files(input, "json"), Visit)
    located = visits.key_by("ip").process("locate", Locate, on_error="dead_letter")
    located.append("located", sf.delta(output))
    located.dead_letters.append("failed", sf.delta(f"{output}-failed"))
