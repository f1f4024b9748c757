"""Pins of readers that died are told from those of readers that live."""

from __future__ import annotations

from stateflow.checkpoint.processes import note_of_process
from stateflow.format.records import Owner, Pin
from stateflow.liveness.stale_pins import stale


def pin(pid: int, *, host: str = "here", pids: str = "", kind: str = "reader", start: str = "") -> Pin:
    owner = Owner(run="r", host=host, pid=pid, pids=pids, note=note_of_process(start))
    return Pin(id=f"{host}{pids}-{pid}-{kind}-{start}", slot=1, kind=kind, owner=owner)  # type: ignore[arg-type]


def test_only_what_gone_processes_of_this_host_held_for_a_while_is_stale() -> None:
    living = {7: "100", 8: "200", 9: ""}
    pins = [
        pin(7, start="100"),
        pin(7),
        pin(8, start="100"),  # its number was given to another process
        pin(9, start="100"),  # nothing is known of when that one began
        pin(5, start="100"),
        pin(5),
        pin(5, host="elsewhere"),
        pin(5, kind="tag"),
        pin(5, kind="savepoint"),
        pin(0),
        pin(5, pids="mine"),
        pin(5, pids="another container's"),
    ]
    here = Owner(run="me", host="here", pids="mine")
    assert [p.id for p in stale(pins, here, living.get)] == [
        "here-8-reader-100",
        "here-5-reader-100",
        "here-5-reader-",
        "here-5-savepoint-",
        "heremine-5-reader-",
    ]
