from dataclasses import dataclass

import stateflow as sf


@dataclass
class Change:
    id: int
    version: int
    email: str
    op: str


@sf.pipeline("current")
def current(flow: sf.Flow, *, input: str, output: str) -> None:
    changes = flow.source("changes", sf.files(input, "json"), Change)
    newest = changes.key_by("id", order_by="version").latest("newest")
    # by id
    newest.upsert("customers", sf.delta(output), delete_when="op = 'delete'")
