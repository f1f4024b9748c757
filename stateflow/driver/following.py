"""A driver that has no heartbeat, such as a replay's: started or found again by its task, and followed to its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from stateflow.driver.run_spec import DriverSpec
from stateflow.driver.run_state import ended_process
from stateflow.errors import StateflowError, error_of

if TYPE_CHECKING:
    from stateflow.driver.supervision import Driver, Launcher


class Following:
    """One try of a scheduler's task."""

    def __init__(
        self,
        launcher: Launcher,
        spec: DriverSpec,
        *,
        say: Callable[[str], object] = lambda line: None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.launcher, self.spec, self.say, self._sleep = launcher, spec, say, sleep
        self.driver: Driver | None = None

    def run(self, interval: float = 0.5) -> None:
        """Returns when the driver has ended well. Raises the error that it ended with."""
        previous = self.launcher.find(self.spec)
        if previous is not None and previous.look().running:
            self.say(
                f"{self.spec.job}: the driver of an earlier try still runs ({previous.name}): going on with it"
            )
            self.driver = previous
        else:
            self.driver = self.launcher.launch(self.spec)
        if self.driver is None:
            raise StateflowError(f"{self.spec.job}: this launcher starts drivers that nobody here can follow")
        while True:
            status = self.driver.look()
            for line in self.driver.output():
                self.say(line)
            if not status.running:
                break
            self._sleep(interval)
        outcome = ended_process(status, self.driver.last_words())
        if outcome.exit_code:
            raise error_of(outcome.exit_code, outcome.error)

    def stop(self) -> None:
        """Kills the driver: nothing that it does is meant to last."""
        driver = self.driver or self.launcher.find(self.spec)
        if driver is not None:
            driver.stop(0)
