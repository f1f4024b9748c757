"""What a retention keeps, and the bytes that only that holds."""

from __future__ import annotations

from stateflow.checkpoint.kept_past import kept_past
from stateflow.checkpoint.retention import Retention
from stateflow.config.retention_rule import retention_rule
from stateflow.format.records import FileRef
from tests.jobs.log import complete, file, log, pin_of, record

MINUTE = 60_000_000
SIZES = {"a": 1, "b": 10, "c": 100, "d": 1000, "e": 10_000}


def files(names: str) -> tuple[FileRef, ...]:
    return tuple(file(f"orders/shared/{name}", SIZES[name]) for name in names)


def test_a_file_that_several_name_is_held_by_none_of_them_alone() -> None:
    """Slots 1 and 2 share an hour, 3 and 4 have one each, 5 is the newest."""
    named = {1: "ab", 2: "abc", 3: "bc", 4: "cd", 5: "de"}
    at = {1: 10, 2: 20, 3: 70, 4: 130, 5: 190}
    found = log(*(complete(record(n, files=files(named[n]), at=at[n] * MINUTE)) for n in named))
    rule = Retention(1, rule=retention_rule("hourly for 2 days"), now=200 * MINUTE)
    past = kept_past(found, [], rule, dict.fromkeys(named, 100_000))
    groups = {group.name: (group.slots, group.bytes) for group in past.groups}
    assert groups["newest"] == ((5,), 100_000 + SIZES["e"])
    assert groups["hourly for 2 days"] == ((2, 3, 4), 300_000 + SIZES["a"] + SIZES["b"] + SIZES["c"])
    assert past.rule_bytes == groups["hourly for 2 days"][1]
    assert (past.going, past.going_bytes) == ((1,), 100_000)
    assert past.live_bytes == 100_000 + SIZES["d"] + SIZES["e"]
    assert past.by_rule == 3
    assert past.staying == {2, 3, 4, 5}


def test_a_tag_counts_beside_the_rule() -> None:
    found = log(*(complete(record(n, files=files(name), at=n * MINUTE)) for n, name in ((1, "a"), (2, "b"))))
    past = kept_past(found, [pin_of(1)], Retention(1), {})
    assert [(group.name, group.slots, group.bytes) for group in past.groups if group.slots] == [
        ("newest", (2,), SIZES["b"]),
        ("others", (1,), SIZES["a"]),
    ]
    assert past.going == ()
