from dataclasses import dataclass

import stateflow as sf


@dataclass
class Change:
    id: int
    version: int
    email: str
    deleted: bool


@sf.pipeline("current")
def current(flow: sf.Flow, *, input: str, output: str) -> None:
    changes = flow.source("changes", sf.files(input, "json"), Change)
    newest = changes.key_by("id", order_by="version").aggregate(
        "newest", Change, version=sf.max("version"), email=sf.last("email"), deleted=sf.last("deleted")
    )
    newest.upsert("customers", sf.delta(output))
