"""The run that a driver carries out, as a command line and an environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RunSpec:
    """A run of a pipeline on behalf of a scheduler's task."""

    pipeline: str
    """FILE:PIPELINE."""
    job: str
    dag_run: str
    task: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    """Any option of the configuration, apart from credentials."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark."""
    until: str = ""
    parallelism: int | None = None
    trigger: str = ""
    takeover: bool = False
    allow_non_restored_state: bool = False
    final: bool = False
    note: str = ""
    above: int = 0
    """The job's newest epoch when the driver was started."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for the driver: the root and its credentials, which never appear on a command line."""

    def arguments(self) -> list[str]:
        """What follows `stateflow` on the command line."""
        words = ["run", self.pipeline, "--job", self.job, "--dag-run", self.dag_run, "--task", self.task]
        for flag, pairs in (("-p", self.parameters), ("--option", self.options)):
            for name, value in pairs.items():
                words += [flag, f"{name}={value}"]
        for flag, value in (("--until", self.until), ("--trigger", self.trigger), ("--note", self.note)):
            if value:
                words += [flag, value]
        if self.parallelism is not None:
            words += ["--parallelism", str(self.parallelism)]
        switches = {
            "--takeover": self.takeover,
            "--allow-non-restored-state": self.allow_non_restored_state,
            "--final": self.final,
        }
        return [*words, *(flag for flag, on in switches.items() if on)]
