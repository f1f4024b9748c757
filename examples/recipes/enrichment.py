import json
import urllib.request
from dataclasses import dataclass
from functools import partial

import stateflow as sf


@dataclass
class Visit:
    ip: str
    page: str


@dataclass
class Located:
    ip: str
    page: str
    country: str | None


def look_up(service: str, ips: list[str]) -> list[dict[str, str] | None]:
    """One call for many addresses; None where the service knows none."""
    with urllib.request.urlopen(
        f"{service}?ips={','.join(ips)}", timeout=5
    ) as answer:
        countries = json.load(answer)
    return [
        {"country": countries[ip]} if ip in countries else None for ip in ips
    ]


@sf.pipeline("enrichment")
def enrichment(flow: sf.Flow, *, input: str, output: str, service: str) -> None:
    visits = flow.source("visits", sf.files(input, "json"), Visit).key_by("ip")
    located = visits.enrich(
        "located", partial(look_up, service), Located, batch=500, ttl="1 day",
        on_error="dead_letter",
    )
    located.append("located", sf.delta(output))
    located.dead_letters.append("failed", sf.delta(f"{output}-failed"))
