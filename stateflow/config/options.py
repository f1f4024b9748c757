"""Every option, declared once: its default, what it means, and what Flink calls it.

`load` combines the layers: command line > environment > code > file > default. Each value knows which layer set it. What
names a place (`place=True`), or decides what is deleted (`deletes=True`), counts from a file only if the user has named or trusted
the file.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from stateflow.config.declaration import Kind, OptionDeclaration, Trigger, read, written
from stateflow.config.file import FILE_VARIABLE, ConfigurationFile, beside, configuration_file
from stateflow.config.retention_rule import NO_RULE, RetentionRule
from stateflow.config.trust import home, option_name
from stateflow.errors import UsageError
from stateflow.quantities import duration, size

PREFIX = "STATEFLOW_"
MOST_MEMORY = "1024 TB"
"""More memory than any machine has, and few enough bytes for RocksDB to count."""
_NOT_OPTIONS = frozenset({FILE_VARIABLE})
_OF_A_SERVICE = re.compile(r"(\w+_)?(SERVICE_(HOST|PORT)|PORT)(_\w+)?")
"""What Kubernetes puts behind the prefix in variables of its own, for services whose names begin like it."""
_ADDRESS_OF_A_SERVICE = re.compile(r"(tcp|udp|sctp)://\S+:\d+")
"""What it puts into such a variable that is called like an option, `STATEFLOW_METRICS_PORT`."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One option as a user reads it; a secret value is masked."""

    name: str
    value: str
    origin: str


def _option(
    kind: Kind,
    default: Any,
    doc: str,
    *flink: str,
    choices: tuple[str, ...] = (),
    least: Any = None,
    most: Any = None,
    secret: bool = False,
    place: bool = False,
    deletes: bool = False,
) -> Any:
    declaration = OptionDeclaration(kind, doc, flink, choices, least, most, secret, place, deletes)
    if kind == "mapping":
        return field(default_factory=dict, repr=not secret, metadata={"declaration": declaration})
    return field(default=default, metadata={"declaration": declaration})


def _number(
    default: int, doc: str, *flink: str, least: int = 0, most: int | None = None, deletes: bool = False
) -> Any:
    return _option("number", default, doc, *flink, least=least, most=most, deletes=deletes)


def _flag(default: bool, doc: str, *flink: str) -> Any:
    return _option("yes/no", default, doc, *flink)


def _place(doc: str, *flink: str) -> Any:
    return _option("text", "", doc, *flink, place=True)


def _size(default: str, doc: str, *flink: str, most: str | None = None, deletes: bool = False) -> Any:
    return _option(
        "size", size(default), doc, *flink, least=0, most=size(most) if most else None, deletes=deletes
    )


def _duration(default: str, doc: str, *flink: str, least: str = "0", deletes: bool = False) -> Any:
    return _option("duration", duration(default), doc, *flink, least=duration(least), deletes=deletes)


def _choice(choices: tuple[str, ...], doc: str, *flink: str) -> Any:
    """The first choice is the default."""
    return _option("choice", choices[0], doc, *flink, choices=choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Sizes are bytes, durations are timedeltas (zero is falsy and means 'none' where the doc says so)."""

    checkpoint_dir: str = _place(
        "Root under which every job has its folder: a path, or an s3://, gs://, az:// or hdfs:// URL.",
        "execution.checkpointing.dir",
        "state.checkpoints.dir",
    )
    parallelism: int = _number(
        0,
        "Subtasks of a keyed operator when a job starts; 0 means Spark's default parallelism.",
        "parallelism.default",
    )
    max_parallelism: int = _number(
        128,
        "Key groups of a new job. No rescale can give the job more subtasks than this; a restore from a canonical savepoint can.",
        "pipeline.max-parallelism",
        least=1,
        most=32768,
    )
    backend: Literal["rocksdb", "memory"] = _choice(
        ("rocksdb", "memory"),
        "Where an operator's state lives; memory (Flink's hashmap) writes all of the state at every checkpoint.",
        "state.backend.type",
    )
    shard_join_limit: int = _size(
        "64 MB",
        "After a rescale, a subtask joins two neighbouring shards when together they have at most so many bytes; "
        "one pair per batch, 0 for never.",
    )
    inline_threshold: int = _size(
        "20 KiB",
        "A shard's state travels inside the checkpoint's record when it is at most this large, with either backend; of larger "
        "state, RocksDB's small files do, but none above this size.",
        "state.storage.fs.memory-threshold",
        most="1 MiB",
    )
    delivery: Literal["exactly_once", "at_least_once"] = _choice(
        ("exactly_once", "at_least_once"),
        "What a sink may see after a failure: each batch once, or some batches again. It may change from run to run.",
        "execution.checkpointing.mode",
    )
    host: str = _option(
        "text",
        "",
        "Name of the warm host that runs go to; empty means that each run starts a driver of its own.",
    )
    host_wait: timedelta = _duration(
        "30 seconds",
        "How long a run waits for a place on its host before it starts a driver of its own.",
    )
    host_only: bool = _flag(
        False,
        "A run that its host does not take fails instead of starting a driver of its own.",
    )
    retained_checkpoints: int = _number(
        3,
        "How many complete checkpoints a job keeps; tags, savepoints in progress and readers keep more.",
        "execution.checkpointing.num-retained",
        "state.checkpoints.num-retained",
        least=1,
        deletes=True,
    )
    trigger: Trigger = _option(
        "trigger",
        "drain",
        "drain: end when the input is used up; until-stopped: one batch after the other; "
        "a duration: one batch per interval, until stopped.",
        "execution.checkpointing.interval",
    )
    target_batch_duration: timedelta = _duration(
        "0",
        "About how long a batch shall take: the run chooses how much of each source the next batch reads. 0: as much as there is. What a "
        "source itself says, such as per_batch, stays the most.",
    )
    max_source_drift: timedelta = _duration(
        "0",
        "How far a source may be ahead of the one that is furthest behind, in event time: beyond it, it waits. 0: none waits. It needs "
        "target_batch_duration, as a source waits from one batch to the next.",
        "scan.watermark.alignment.max-drift",
    )
    min_pause: timedelta = _duration(
        "0",
        "The least time between the end of one checkpoint and the begin of the next; rows that come meanwhile may wait for one batch "
        "more. The last batches of a job, which fire its timers, do not wait.",
        "execution.checkpointing.min-pause",
    )
    incremental: bool = _flag(
        True,
        "Whether a checkpoint names files of earlier ones. false: all its files are its own, for who copies roots by hand; each "
        "checkpoint then copies all state.",
        "execution.checkpointing.incremental",
    )
    batch_deadline: timedelta = _duration(
        "10 minutes",
        "A micro-batch that takes longer fails, from its first row to the last commit of its sinks; 0 for none. A record that is "
        "decided is delivered by the next run.",
        "execution.checkpointing.timeout",
    )
    max_concurrent_checkpoints: int = _number(
        1,
        "2: the next batch is evaluated while the sinks still commit the one before; with min_pause it waits for them.",
        "execution.checkpointing.max-concurrent-checkpoints",
        least=1,
        most=2,
    )
    tolerable_failed_batches: int = _number(
        0,
        "How many batches in a row may fail before the run fails.",
        "execution.checkpointing.tolerable-failed-checkpoints",
    )
    failure_backoff: timedelta = _duration(
        "1 second",
        "Pause before a run tries a failed batch again; it doubles each time, up to 1 minute.",
        "restart-strategy.exponential-delay.initial-backoff",
        "restart-strategy.fixed-delay.delay",
    )
    retained_age: timedelta = _duration(
        "0",
        "A job also keeps all checkpoints younger than this, however many there are; 0: only retained_checkpoints counts.",
        deletes=True,
    )
    retention: RetentionRule = _option(
        "retention",
        NO_RULE,
        "Older checkpoints that a job keeps as well, such as `all for 1 hour, hourly for 2 days, daily for 30 days`: of each hour, day or "
        "week, in UTC, the last one.",
        deletes=True,
    )
    rocksdb_preset: Literal["auto", "large", "small", "write-heavy"] = _choice(
        ("auto", "small", "large", "write-heavy"),
        "A set of RocksDB settings for the size and use of the state; auto: large for each shard from 1 GB on, else small.",
        "state.backend.rocksdb.predefined-options",
    )
    rocksdb_compaction: Literal["level", "universal"] = _choice(
        ("universal", "level"),
        "RocksDB's compaction style; universal uploads less, level keeps fewer outdated bytes.",
        "state.backend.rocksdb.compaction.style",
    )
    rocksdb_block_cache: int = _size(
        "256 MB",
        "Cache for blocks of state, shared by all shards that a worker process opens.",
        "state.backend.rocksdb.block.cache-size",
        "state.backend.rocksdb.memory.fixed-per-slot",
        most=MOST_MEMORY,
    )
    rocksdb_write_buffer: int = _size(
        "128 MB",
        "How many bytes of changes one shard holds in memory before they become a file.",
        "state.backend.rocksdb.writebuffer.size",
        most=MOST_MEMORY,
    )
    rocksdb_merges: Literal["auto", "beside", "inside"] = _choice(
        ("auto", "inside", "beside"),
        "Where the files of a shard from 16 MB on are merged. inside: in the batch that finds too many. beside: in the workers, beside "
        "the batches. auto: beside where the run does not end by itself (trigger), else inside.",
    )
    rocksdb_fetch: Literal["auto", "whole"] = _choice(
        ("auto", "whole"),
        "What a task fetches of large state files that its host does not have. whole: the files. auto: what the batch reads of them, "
        "where that is there sooner; where the run does not end by itself (trigger), the files follow behind the batch.",
    )
    rocksdb_compaction_budget: int = _size(
        "512 MB",
        "The most bytes that one shard compacts on purpose in one batch; 0 for none.",
        "state.backend.rocksdb.manual-compaction.max-output-file-size",
    )
    scratch_dir: str = _place(
        "Folder on each host for state while a task has it open; empty means the folder scratch in cache_dir.",
        "io.tmp.dirs",
        "state.backend.rocksdb.localdir",
    )
    cache_dir: str = _place(
        "Folder on each host for what can be fetched again (state files, Spark's jars, a Java runtime); "
        "empty means .cache in a checkout, else ~/.cache/stateflow.",
        "taskmanager.state.local.root-dirs",
    )
    cache_size: int = _size(
        "10 GB",
        "The most bytes of state files in the cache folder; files that were not used for longest go first.",
        "state.backend.forst.cache.size-based-limit",
        deletes=True,
    )
    locality_wait: timedelta = _duration(
        "3 seconds",
        "How long a subtask waits for the executor that has its state in the cache, before it runs on another one.",
    )
    upload_threads: int = _number(
        4,
        "How many files a task uploads or downloads at the same time.",
        "state.backend.rocksdb.checkpoint.transfer.thread.num",
        least=1,
    )
    chunk_rows: int = _number(
        20_000,
        "How many rows one Arrow batch between the JVM and Python has.",
        "python.fn-execution.arrow.batch.size",
        least=1,
        most=2**31 - 1,
    )
    source_idle_timeout: timedelta = _duration(
        "5 minutes",
        "A source without rows for this long no longer holds the watermark back; 0 for never.",
        "table.exec.source.idle-timeout",
    )
    dead_letter_limit: int = _number(
        10_000,
        "The most dead-letter rows that a subtask keeps in one batch; one more fails the batch.",
        least=1,
    )
    dead_letter_threshold: int = _number(
        1_000, "The most keys whose rows one batch may send to dead letters before it fails; 0 for no limit."
    )
    shared_outputs: bool = _flag(
        False, "Whether a new job may begin in an output that has rows of another job."
    )
    shared_filesystem: bool = _flag(
        False, "Whether a file:// root is the same folder on every host, so that a cluster may use it."
    )
    heartbeat_interval: timedelta = _duration(
        "2 seconds", "How often a run shows that it is alive.", "heartbeat.interval", least="1 ms"
    )
    heartbeat_timeout: timedelta = _duration(
        "10 seconds",
        "Another run may take a job over when it has watched the heartbeat stand still for this long, and for three of that run's intervals; at once, where it sees that the process is dead.",
        "heartbeat.timeout",
        least="1 ms",
    )
    local_fsync: bool = _flag(
        True, "For local roots only: a checkpoint survives a power loss, not only the end of the process."
    )
    storage_options: Mapping[str, str] = _option(
        "mapping",
        None,
        "Settings and credentials of the object store's client; never written to a record.",
        "s3.access-key",
        "s3.secret-key",
        "s3.endpoint",
        secret=True,
        place=True,
    )
    metrics: Literal["none", "prometheus", "opentelemetry"] = _choice(
        ("none", "prometheus", "opentelemetry"), "Where a run's metrics go.", "metrics.reporters"
    )
    metrics_port: int = _number(
        0,
        "Port on which a run serves Prometheus metrics; 0 means any free port, which the run prints.",
        "metrics.reporter.<name>.port",
        most=65535,
    )
    log_format: Literal["text", "json"] = _choice(("text", "json"), "How log lines on stderr look.")
    progress: bool = _flag(True, "Whether a run prints a line per micro-batch on stderr.")

    _origins: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def origin(self, name: str) -> str:
        """Where the value was set, in words: 'default', 'the command line (--parallelism)', ..."""
        if name not in DECLARATIONS:
            raise _unknown(name, "the call to origin()")
        return self._origins.get(name, "default")

    def settings(self) -> Iterator[Setting]:
        """Every option in the order of its declaration, as `stateflow doctor` shows it."""
        for name, declaration in DECLARATIONS.items():
            yield Setting(name, written(declaration, getattr(self, name)), self.origin(name))


DECLARATIONS: Mapping[str, OptionDeclaration] = {
    each.name: each.metadata["declaration"] for each in fields(Options) if "declaration" in each.metadata
}


GUARDED = frozenset(name for name, declaration in DECLARATIONS.items() if declaration.guarded)
"""Options that name a folder, an endpoint or a credential, or that decide what is deleted."""


def checkpoint_root(options: Options) -> str:
    """The checkpoint root. UsageError when no layer sets it."""
    if not options.checkpoint_dir:
        raise UsageError(
            "no checkpoint root: give --checkpoint-dir, set STATEFLOW_CHECKPOINT_DIR, or write checkpoint_dir into "
            "stateflow.toml"
        )
    return options.checkpoint_dir


def load(
    *,
    cli: Mapping[str, str | None] = {},
    typed: Mapping[str, str] = {},
    code: Mapping[str, Any] = {},
    env: Mapping[str, str] = os.environ,
    folder: str | Path | None = None,
    origin_of_code: str = "the pipeline's code",
    untrusted: Literal["refuse", "leave out"] = "refuse",
) -> Options:
    """Reads all layers. `folder`, the working folder if it is None, may hold a `stateflow.toml`. In `cli`, None means that the
    argument was left out. `typed` tells how the user wrote an argument that is not named like its option, such as `--option backend`.

    `untrusted`: what becomes of guarded options that such a file sets, and no other layer, if the user has not trusted them.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    file = configuration_file(env, _working_folder() if folder is None else Path(folder), GUARDED)
    layers = (
        _from_file(file, leave_out=untrusted == "leave out"),
        ((name, value, origin_of_code) for name, value in code.items()),
        _from_environment(env),
        (
            (name, value, f"the command line ({typed.get(name) or f'--{_dashed(name)}'})")
            for name, value in cli.items()
            if value is not None
        ),
    )
    hidden: dict[str, str] = {}
    for layer in layers:
        for written_name, value, origin in layer:
            name = option_name(written_name)
            if name not in DECLARATIONS:
                raise _unknown(written_name, origin)
            if value == "" and name != "host" and values.get(name):
                hidden[name] = origins[name]
            try:
                values[name] = read(DECLARATIONS[name], value)
            except ValueError as error:
                raise UsageError(f"option {name}, set by {origin}, is not usable: {error}") from None
            origins[name] = origin
    for name, below in hidden.items():
        # Nobody has set the variable, as in `STATEFLOW_CHECKPOINT_DIR=$ROOT`. That no host is meant does say something.
        if origins[name] == _of_variable(variable := f"{PREFIX}{name.upper()}"):
            raise UsageError(
                f"the variable {variable} is empty, and would hide what {below} sets for {name}: unset it, or give it a value"
            )
    if file is not None and untrusted == "refuse":
        # Only what would take effect: who names the root on the command line is not asked about the file's.
        own = (None, str(file.path))
        taken = [name for name in DECLARATIONS if name in file.untrusted and origins.get(name) in own]
        if taken:
            raise file.refusal(taken)
    options = Options(**values, _origins=origins)
    _check_together(options)
    return options


def _working_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError(
            "the working folder does not exist any more, as somebody has deleted it: change to another one with cd, and try again"
        ) from None


def cache_folder(env: Mapping[str, str] = os.environ) -> Path:
    """The default of `cache_dir`: inside a checkout if there is one, so that it shares nothing with others."""
    if folder := env.get("STATEFLOW_CACHE_DIR"):
        return Path(folder).expanduser().absolute()
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "scripts" / "bootstrap.py").is_file():
        return checkout / ".cache"
    return _users_cache(env)


def cache_of(options: Options, env: Mapping[str, str] = os.environ) -> Path:
    return Path(options.cache_dir).expanduser().absolute() if options.cache_dir else cache_folder(env)


def scratch_parent(options: Options, env: Mapping[str, str] = os.environ) -> Path:
    """The folder in which processes of this host make their scratch folders."""
    return Path(options.scratch_dir or cache_of(options, env) / "scratch").expanduser().absolute()


def drivers_folder(env: Mapping[str, str] = os.environ) -> Path:
    """Where the drivers of this host keep their output. Never in a checkout: what is installed from one may be read-only, and
    an update of it must not hide a driver from its task."""
    if folder := env.get("STATEFLOW_CACHE_DIR"):
        return Path(folder).expanduser().absolute() / "drivers"
    return _users_cache(env) / "drivers"


def _users_cache(env: Mapping[str, str]) -> Path:
    folder = home(env)
    if folder is None:
        raise UsageError("there is no home folder to cache in: set HOME, or STATEFLOW_CACHE_DIR")
    return folder / ".cache" / "stateflow"


def _from_file(file: ConfigurationFile | None, *, leave_out: bool) -> Iterator[tuple[str, Any, str]]:
    if file is None:
        return
    for name, value in file.settings(leave_out=leave_out):
        declaration = DECLARATIONS.get(option_name(name))
        if declaration is not None and declaration.place and isinstance(value, str):
            value = beside(file.path, value)
        yield name, value, str(file.path)


def unread_variables() -> list[str]:
    """Variables that begin like those of options and set none."""
    names = (
        v.removeprefix(PREFIX) for v in sorted(os.environ) if v.startswith(PREFIX) and v not in _NOT_OPTIONS
    )
    return [
        f"{PREFIX}{name}"
        for name in names
        if name.lower() not in DECLARATIONS and not _OF_A_SERVICE.fullmatch(name)
    ]


def _from_environment(env: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    for variable in sorted(env):
        meant = variable.upper()
        if meant != variable and meant.startswith(PREFIX):
            if meant not in env and meant.removeprefix(PREFIX).lower() in DECLARATIONS:
                raise UsageError(
                    f"the variable {variable} sets no option, since letters count: call it {meant}"
                )
            continue
        if not variable.startswith(PREFIX) or variable in _NOT_OPTIONS:
            continue
        if _ADDRESS_OF_A_SERVICE.fullmatch(env[variable]) and variable.endswith("_PORT"):
            continue  # of a service called `stateflow-metrics`
        name = variable.removeprefix(PREFIX).lower()
        # Kubernetes sets STATEFLOW_SERVICE_HOST and the like for a service of that name. So an unknown variable is an
        # error only when it looks like a misspelt option.
        if name in DECLARATIONS or difflib.get_close_matches(name, DECLARATIONS, n=1, cutoff=0.8):
            yield name, env[variable], _of_variable(variable)


def _of_variable(variable: str) -> str:
    return f"the environment ({variable})"


def _check_together(options: Options) -> None:
    def refuse(one: str, other: str, problem: str) -> UsageError:
        return UsageError(
            f"option {one} ({written(DECLARATIONS[one], getattr(options, one))}, from {options.origin(one)}) "
            f"{problem} {other} ({written(DECLARATIONS[other], getattr(options, other))}, "
            f"from {options.origin(other)}): change one of the two"
        )

    if options.parallelism > options.max_parallelism:
        raise refuse("parallelism", "max_parallelism", "is more than")
    if options.retention and options.retained_age:
        raise refuse("retention", "retained_age", "says how long every checkpoint stays, as does")
    if options.batch_deadline and options.target_batch_duration >= options.batch_deadline:
        raise refuse("target_batch_duration", "batch_deadline", "has to be shorter than")
    if options.max_source_drift and not options.target_batch_duration:
        raise refuse("max_source_drift", "target_batch_duration", "needs batches that are held back by")
    if options.heartbeat_timeout <= options.heartbeat_interval:
        raise refuse("heartbeat_timeout", "heartbeat_interval", "has to be longer than")


def _unknown(name: str, origin: str) -> UsageError:
    nearest = _meant(re.sub(r"[-.]", "_", name).lower())
    hint = f"did you mean {nearest}?" if nearest else "docs/configuration.md lists the options"
    return UsageError(f"option {name}, set by {origin}, does not exist: {hint}")


def _meant(name: str) -> str | None:
    """The option that somebody means who writes `name`: it may be Flink's name of it, or the end of that."""
    names = {option: option for option in DECLARATIONS}
    for option, declaration in DECLARATIONS.items():
        for theirs in declaration.flink:
            parts = theirs.replace("-", "_").split(".")
            names |= {"_".join(parts): option, "_".join(parts[-2:]): option}
    nearest = next(iter(difflib.get_close_matches(name, names, n=1, cutoff=0.5)), None)
    return None if nearest is None else names[nearest]


def _dashed(name: str) -> str:
    return name.replace("_", "-")
