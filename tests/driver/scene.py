"""A job, a clock, and drivers made of what they would write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from stateflow.checkpoint.control import (
    Heartbeat,
    RunOutcome,
    beat,
)
from stateflow.driver.processes import ProcessStatus
from stateflow.driver.run_spec import RunSpec
from stateflow.driver.supervision import OnLive, Supervision
from stateflow.format.records import EpochClaim, Owner, encode
from stateflow.jobs.job import Job

ME = Owner("me", dag_run="dag/1", task="run")
OTHER = Owner("other", host="elsewhere", dag_run="dag/2", task="run")
WELL = RunOutcome(batches=1, rows=3, checkpoint=4, stopped="the input was drained")


@dataclass
class Scene:
    """A job, a clock, and what happens while somebody waits."""

    job: Job
    now: float = 0.0
    happens: Callable[[], object] = lambda: None
    said: list[str] = field(default_factory=list)
    counter: int = 0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.happens()

    def claims(self, epoch: int, owner: Owner) -> None:
        claim = EpochClaim(epoch=epoch, writer=f"w{epoch}", owner=owner, at=1)
        self.job.store.create(self.job.layout.epoch(epoch), encode(claim))
        self.beats(epoch, owner)

    def beats(
        self, epoch: int, owner: Owner, *, ended: bool = False, outcome: RunOutcome | None = None
    ) -> None:
        self.counter += 1
        sign = Heartbeat(epoch=epoch, counter=self.counter, owner=owner, ended=ended, outcome=outcome)
        beat(self.job.store, self.job.layout, sign)


@dataclass
class FakeDriver:
    status: ProcessStatus = field(default_factory=lambda: ProcessStatus(True))
    lines: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    stopped: list[float] = field(default_factory=list)
    name: str = "here"
    above: int = 0
    submitting: bool = False

    def look(self) -> ProcessStatus:
        return self.status

    def output(self) -> list[str]:
        found, self.lines = self.lines, []
        return found

    def last_words(self) -> list[str]:
        return self.words

    def stop(self, grace: float) -> None:
        self.stopped.append(grace)
        if grace == 0:
            self.status = ProcessStatus(False, -9)


@dataclass
class FakeLauncher:
    found: FakeDriver | None = None
    begins: Callable[[FakeDriver], object] = lambda driver: None
    launched: list[tuple[RunSpec, FakeDriver]] = field(default_factory=list)

    def find(self, spec: RunSpec) -> FakeDriver | None:
        return self.found

    def launch(self, spec: RunSpec) -> FakeDriver:
        driver = self.found = FakeDriver(above=spec.above)
        self.launched.append((spec, driver))
        self.begins(driver)
        return driver


def supervision(
    scene: Scene, launcher: FakeLauncher, on_live: OnLive = "refuse", busy_timeout: float | None = None
) -> Supervision:
    spec = RunSpec("p.py:p", "orders", ME.dag_run, ME.task)
    return Supervision(
        scene.job, spec, launcher, ME, on_live=on_live, busy_timeout=busy_timeout, say=scene.said.append,
        monotonic=lambda: scene.now, sleep=scene.sleep, clock=lambda: round(scene.now * 1e6),
    )  # fmt: skip


def ends(scene: Scene, driver: FakeDriver, epoch: int, outcome: RunOutcome) -> None:
    """The run says how it ended, and then its process ends."""
    scene.beats(epoch, ME, ended=True, outcome=outcome)
    driver.status = ProcessStatus(False, outcome.exit_code)


def well_in(scene: Scene, epoch: int) -> Callable[[FakeDriver], None]:
    """What a driver does that claims this epoch and ends well."""

    def begins(driver: FakeDriver) -> None:
        scene.happens = lambda: None
        scene.claims(epoch, ME)
        ends(scene, driver, epoch, WELL)

    return begins
