"""A process class that cannot do what it says is refused when Python reads it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pytest

import stateflow as sf
from tests.refusals.refusal import refused


def hook(self: Any, *given: Any) -> None: ...


def made(base: type = sf.KeyedProcess, **body: Any) -> type:
    return type("Made", (base,), body)


def unmade(*named: str, base: type = sf.KeyedProcess, **body: Any) -> None:
    with refused(sf.UsageError, *named) as caught:
        made(base, **body)
    assert "\n" not in str(caught.value)


TAKEN = ("open", "close", "restore", "snapshot", "process", "process_left", "process_right", "process_broadcast",
         "declarations", "declared_names", "__setattr__")  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("base", [sf.KeyedProcess, sf.ConnectedProcess])
def test_a_state_or_a_timer_may_not_take_a_hooks_name(name: str, base: type) -> None:
    unmade(f"state '{name}' of Made would replace", "rename it", base=base, **{name: sf.ValueState(int)})
    unmade(f"state '{name}' of Made would replace", base=base, **{name: sf.BroadcastState(str, int)})
    unmade(f"timer '{name}' of Made would replace", base=base, **{name: sf.Timer()})


def test_a_mixin_may_not_bring_such_a_state_either() -> None:
    class Mixin:
        process = sf.ValueState(int)

    with refused(sf.UsageError, "state 'process' of Mixed would replace"):
        type("Mixed", (sf.KeyedProcess, Mixin), {})


@pytest.mark.parametrize("name", TAKEN[:-1])
def test_a_timers_handler_may_not_be_a_hook(name: str) -> None:
    timer = sf.Timer()
    timer.handler = name
    unmade("timer 'idle' of Made", f"called '{name}'", "rename the method", idle=timer)


def test_a_method_may_not_replace_the_state_or_timer_of_its_class() -> None:
    with refused(sf.UsageError, "timer 'idle'", "Gone", "rename one"):

        class Gone(sf.KeyedProcess[int, Any, Any]):
            idle = sf.Timer()

            @idle.fires
            def idle(self, key: int, at: Any, ctx: sf.Context) -> None: ...

    with refused(sf.UsageError, "state 'total'", "Late", "rename one"):

        class Late(sf.KeyedProcess[int, Any, Any]):
            def total(self) -> int: ...

            total = sf.ValueState(int)  # type: ignore[assignment]  # noqa: F811


@pytest.mark.parametrize("name", ["proces", "proccess", "Process", "procss", "process_"])
def test_a_misspelt_process_is_refused(name: str) -> None:
    unmade(f"Made.{name} is never called", "did you mean process?", **{name: hook})


def test_a_misspelt_hook_is_refused_of_connected_processes_too() -> None:
    connected: Any = {"base": sf.ConnectedProcess, "process_left": hook, "process_rihgt": hook}
    unmade("process_rihgt is never called", "did you mean process_right?", **connected)
    unmade("did you mean process_broadcast?", process=hook, process_brodcast=hook)
    unmade("Made.snapshots is never called", "did you mean snapshot?", snapshots=hook)


@pytest.mark.parametrize("name", ["on_timer", "onTimer"])
def test_a_timers_method_that_no_timer_knows_is_refused(name: str) -> None:
    unmade(f"Made.{name} is never called", "declare a timer", "@<timer>.fires", process=hook, **{name: hook})


def test_handlers_helpers_and_abstract_classes_are_left_alone() -> None:
    class Handled(sf.KeyedProcess[int, Any, Any]):
        idle = sf.Timer()

        @idle.fires
        def on_timer(self, key: int, at: Any, ctx: sf.Context) -> None: ...

    class Abstract(sf.KeyedProcess[int, Any, Any], ABC):
        @abstractmethod
        def processed(self) -> int: ...

    class Concrete(Abstract):
        def process(self, key: int, rows: Any, ctx: sf.Context) -> None: ...

        def processed(self) -> int:
            return 1

    class Helped(sf.KeyedProcess[int, Any, Any]):
        def open(self, ctx: sf.Context) -> None:
            self.counts = [self.processes() for _ in range(2)]

        def processes(self) -> int:
            return 1

    assert Handled().declared_names() == {"idle"}
    assert Concrete().processed() == 1
    assert Helped().processes() == 1
    made(process=hook, processed=hook, snapshots=hook, closed=hook)
    made(preprocess=hook, process_row=hook)
