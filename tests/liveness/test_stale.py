"""Pins of readers that died are told from those of readers that live."""

from __future__ import annotations

from stateflow.checkpoint.process import this_process
from stateflow.checkpoint.processes import identity_of_this_process, note_of_process
from stateflow.format.records import Owner, Pin
from stateflow.liveness.stale_pins import stale


def pin(pid: int, *, host: str = "here", pid_scope: str = "", kind: str = "reader", start: str = "") -> Pin:
    owner = Owner(run="r", host=host, pid=pid, pid_scope=pid_scope, note=note_of_process(start))
    return Pin(id=f"{host}{pid_scope}-{pid}-{kind}-{start}", slot=1, kind=kind, owner=owner)  # type: ignore[arg-type]


def test_only_what_gone_processes_of_this_host_held_for_a_while_is_stale() -> None:
    mine = "boot pid:[1] time:[2]"
    living = {7: "100", 8: "200", 9: ""}
    pins = [
        pin(7, pid_scope=mine, start="100"),
        pin(7, pid_scope=mine),
        pin(8, pid_scope=mine, start="100"),  # its number was given to another process
        pin(9, pid_scope=mine, start="100"),  # nothing is known of when that one began
        pin(5, pid_scope=mine, start="100"),
        pin(5, pid_scope=mine),
        pin(5, pid_scope=mine, host="elsewhere"),
        pin(5, pid_scope=mine, kind="tag"),
        pin(5, pid_scope=mine, kind="savepoint"),
        pin(0, pid_scope=mine),
        pin(5),  # a system that does not say what numbers its processes
        pin(5, pid_scope="boot pid:[3] time:[2]"),  # another container
        pin(
            5, pid_scope="other pid:[1] time:[2]"
        ),  # a clone of this machine, or this one before it was restarted
        pin(
            7, pid_scope="other pid:[1] time:[2]", start="900"
        ),  # and since then its number was given to another process
        pin(7, pid_scope="boot pid:[3] time:[2]", start="900"),
    ]
    here = Owner(run="me", host="here", pid_scope=mine)
    assert [p.id for p in stale(pins, here, living.get)] == [
        f"here{mine}-8-reader-100",
        f"here{mine}-5-reader-100",
        f"here{mine}-5-reader-",
        f"here{mine}-5-savepoint-",
    ]
    nothing_said = Owner(run="me", host="here")
    assert [p.id for p in stale(pins, nothing_said, living.get)] == ["here-5-reader-"]


def test_an_owner_notes_the_boot_beside_the_namespaces() -> None:
    here = identity_of_this_process()
    assert here is not None
    assert this_process().pid_scope == f"{here.boot} {here.namespaces}"
