"""What a driver carries out, as a command line and an environment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from stateflow.jobs.run_secrets import RunSecrets
from stateflow.masking import is_secret

_CREDENTIALS = ("storage_options", "storage-options")


@dataclass(frozen=True)
class DriverSpec(ABC):
    """Work that a driver does on behalf of a scheduler's task."""

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
    allow_non_restored_state: bool = field(default=False, kw_only=True)
    above: int = field(default=0, kw_only=True)
    """The job's newest epoch when the driver was started."""
    environment: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """Variables for the driver: the root and its credentials, which never appear on a command line."""

    @property
    def root(self) -> str:
        """Where the job is: another Airflow may have a DAG of the same name for a job of the same name elsewhere."""
        return self.environment.get("STATEFLOW_CHECKPOINT_DIR", "")

    @abstractmethod
    def arguments(self) -> list[str]:
        """What follows `stateflow` on the command line. The rest is in `variables`."""

    def variables(self, conf: Mapping[str, str] = {}) -> dict[str, str]:
        """The environment, with what no command line may show: parameters and settings of Spark that are called like secrets,
        and credentials among the options."""
        parameters = {name: value for name, value in self.parameters.items() if is_secret(name)}
        credentials = [value for name, value in self.options.items() if name in _CREDENTIALS]
        options = {"STATEFLOW_STORAGE_OPTIONS": credentials[-1]} if credentials else {}
        return {**self.environment, **options, **RunSecrets(parameters, dict(conf)).variable()}

    def _shown(self) -> list[str]:
        """What every command takes: parameters and options that a command line may show, and the permission to let go of state."""
        parameters = {name: value for name, value in self.parameters.items() if not is_secret(name)}
        options = {name: value for name, value in self.options.items() if name not in _CREDENTIALS}
        words = [
            word
            for flag, pairs in (("-p", parameters), ("--option", options))
            for name, value in pairs.items()
            for word in (flag, f"{name}={value}")
        ]
        return [*words, "--allow-non-restored-state"] if self.allow_non_restored_state else words


@dataclass(frozen=True)
class RunSpec(DriverSpec):
    """A run of a pipeline."""

    until: str = ""
    parallelism: int | None = None
    trigger: str = ""
    takeover: bool = False
    final: bool = False
    note: str = ""
    revision: str = ""
    """The version of the pipeline's code, as far as the scheduler knows it."""
    user: str = ""
    """Who asked the scheduler for the run; empty for nobody."""

    def arguments(self) -> list[str]:
        words = ["run", self.pipeline, "--job", self.job, "--dag-run", self.dag_run, "--task", self.task]
        words += self._shown()
        for flag, value in (
            ("--until", self.until),
            ("--trigger", self.trigger),
            ("--note", self.note),
            ("--revision", self.revision),
            ("--user", self.user),
        ):
            if value:
                words += [flag, value]
        if self.parallelism is not None:
            words += ["--parallelism", str(self.parallelism)]
        switches = {"--takeover": self.takeover, "--final": self.final}
        return [*words, *(flag for flag, on in switches.items() if on)]


@dataclass(frozen=True)
class ReplaySpec(DriverSpec):
    """A replay of the newest batches by other code, whose report is kept beside the job."""

    batches: int = field(kw_only=True)
    keep: str = field(kw_only=True)
    """The name of the report."""
    max_changed: float | None = None
    note: str = ""

    def arguments(self) -> list[str]:
        words = ["replay", self.pipeline, "--job", self.job, "--last", str(self.batches), "--keep", self.keep]
        words += ["--compare", "--dag-run", self.dag_run, "--task", self.task, *self._shown()]
        if self.max_changed is not None:
            words += ["--max-changed", str(self.max_changed)]
        if self.note:
            words += ["--note", self.note]
        return words
