"""Drivers without a heartbeat, followed from their start or from the middle to their end."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from stateflow.driver.following import Following
from stateflow.driver.processes import ProcessStatus
from stateflow.driver.run_spec import ReplaySpec
from stateflow.errors import IncompatibleError, StateflowError

SPEC = ReplaySpec("p.py:p", "orders", "dag/1", "shadow", batches=3, keep="it")
RUNS, DONE = ProcessStatus(True), ProcessStatus(False, 0)


@dataclass
class Driver:
    looks: list[ProcessStatus]
    words: tuple[str, ...] = ()
    lines: list[list[str]] = field(default_factory=lambda: [["one"], ["two"]])
    stopped: list[float] = field(default_factory=list)
    name: str = "/drivers/1"
    above: int = 0
    submitting: bool = False

    def look(self) -> ProcessStatus:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def output(self) -> list[str]:
        return self.lines.pop(0) if self.lines else []

    def last_words(self) -> list[str]:
        return list(self.words)

    def stop(self, grace: float) -> None:
        self.stopped.append(grace)


@dataclass
class Launcher:
    new: Driver
    old: Driver | None = None
    launched: int = 0

    def find(self, spec: object) -> Driver | None:
        return self.old

    def launch(self, spec: object) -> Driver:
        self.launched += 1
        return self.new


def test_a_driver_is_followed_to_its_end_and_all_its_lines_are_said() -> None:
    said: list[str] = []
    launcher = Launcher(Driver([RUNS, DONE]), old=Driver([DONE]))
    Following(launcher, SPEC, say=said.append, sleep=lambda seconds: None).run()
    assert (launcher.launched, said) == (1, ["one", "two"])


def test_one_of_an_earlier_try_that_still_runs_is_gone_on_with() -> None:
    said: list[str] = []
    launcher = Launcher(Driver([DONE]), old=Driver([RUNS, RUNS, DONE]))
    Following(launcher, SPEC, say=said.append, sleep=lambda seconds: None).run()
    assert launcher.launched == 0
    assert said[0] == "orders: the driver of an earlier try still runs (/drivers/1): going on with it"


@pytest.mark.parametrize(
    ("status", "words", "kind", "sentence"),
    [
        (ProcessStatus(False, 4), ("noise", "stateflow: it does not fit"), IncompatibleError, "^it does not fit$"),
        (ProcessStatus(False, -9), (), StateflowError, r"^the driver was killed \(signal 9\): if nobody did that"),
        (ProcessStatus(False, None), (), StateflowError, "^the driver is lost: nobody saw how it ended$"),
    ],
)  # fmt: skip
def test_a_driver_that_fails_raises_what_it_said(
    status: ProcessStatus, words: tuple[str, ...], kind: type[StateflowError], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        Following(Launcher(Driver([status], words)), SPEC).run()


def test_a_stop_kills_also_a_driver_that_only_its_launcher_knows() -> None:
    launcher = Launcher(Driver([RUNS]), old=Driver([RUNS]))
    Following(launcher, SPEC).stop()
    assert launcher.old is not None
    assert launcher.old.stopped == [0]
