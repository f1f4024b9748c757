"""What a restore is asked for, and what it would do: plain data."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from stateflow.checkpoint.handle import JobHandle
from stateflow.compatibility.flows import Check
from stateflow.format.records import Owner
from stateflow.pipelines.flow import Pipeline
from stateflow.restore.parameters import ParameterRestore
from stateflow.savepoints.origin import Origin

if TYPE_CHECKING:
    from stateflow.config.options import Options

ClaimMode = Literal["no_claim", "claim"]
Progress = Callable[[str, int, int], object]
"""progress(what, done, total), in bytes."""


@dataclass(frozen=True)
class SourceRestore:
    uid: str
    verdict: Literal["resumes", "new", "dropped"]
    position: str
    now: str
    """Where the job is at the moment."""
    kind: str = ""
    """delta, file, kafka, other; of a new one, empty unless it is a table."""
    reads: str = ""
    """The table's path, if it is a table."""


@dataclass(frozen=True)
class SinkRestore:
    uid: str
    target: str
    action: Literal["rewinds", "keeps", "starts"]
    note: str
    kind: str
    """append, upsert, or what else it does with rows."""
    before: str = ""
    """Where the job has written so far, if not to `target`: what is taken back is taken back there."""
    back_to: int | None = None
    """Of one that rewinds: the slot whose output stays; None: none of this job's."""
    again: bool = False
    """Whether what followed the snapshot is delivered again."""


@dataclass(frozen=True)
class RestoreRequest:
    """What is wanted, and by whom."""

    job: JobHandle
    pipeline: Pipeline
    origin: Origin
    options: Options
    parameters: Mapping[str, Any] = field(default_factory=dict)
    claim_mode: ClaimMode = "no_claim"
    allow_non_restored_state: bool = False
    rewind_sinks: bool = False
    reset_watermark: bool = False
    parallelism: int = 0
    max_parallelism: int = 0
    takeover: bool = False
    approved: str | None = None
    """The digest of the plan that somebody has approved: any other is refused."""
    owner: Owner = field(default_factory=lambda: Owner(run=uuid.uuid4().hex))
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Restored:
    """What a restore has done."""

    job: str
    checkpoint: int
    timeline: int
    copied_bytes: int
    sinks: Mapping[str, str]
    """Per rewound sink what came of it."""


@dataclass(frozen=True)
class Plan:
    """What a restore would do; `RestorePlan` does it."""

    request: RestoreRequest
    new_job: bool
    job_uuid: str
    """Which job of that name; empty until it has a checkpoint."""
    timeline: int
    values: Mapping[str, Any] = field(repr=False)
    """What the pipeline is built with, and what the record keeps."""
    parameters: tuple[ParameterRestore, ...]
    check: Check
    sources: tuple[SourceRestore, ...]
    sinks: tuple[SinkRestore, ...]
    files: int
    bytes: int
    warnings: tuple[str, ...]

    @property
    def copies(self) -> bool:
        """Whether files are brought into the job's own folder."""
        origin, request = self.request.origin, self.request
        if origin.canonical:
            return True
        if origin.savepoint is not None:
            return request.claim_mode == "no_claim"
        return origin.owner is not None and not same_job(origin.owner, request.job)


def same_job(one: JobHandle, other: JobHandle) -> bool:
    return one.store.url == other.store.url and one.name == other.name
