"""Options, wherever they are set, and the rule of which checkpoints stay."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from stateflow.config.options import Options, load
from stateflow.config.retention_rule import retention_rule
from stateflow.errors import UsageError
from stateflow.quantities import duration, size
from stateflow.state.backends.rocksdb_options import RocksOptions
from stateflow.state.expiry.ttl import ttl
from tests.refusals.refusal import Refusal

CODE = "set by the pipeline's code"
MISSPELT = ("option retained_checkpoint, set by", "did you mean retained_checkpoints?")


def loaded(env: Mapping[str, str] = {}, cli: Mapping[str, str | None] = {}, **code: Any) -> Options:
    return load(env=env, cli=cli, code=code, folder="/nowhere")


REFUSALS = [
    # values
    *(
        Refusal(UsageError, (f"option {name}, {CODE}", *problem), lambda name=name, value=value: loaded(**{name: value}))
        for name, value, *problem in (
            ("parallelism", "many", "'many' is not a whole number"),
            ("parallelism", "-1", "'-1' is less than 0"),
            ("parallelism", True, "True is not a whole number"),
            ("max_parallelism", 40_000, "40000 is more than 32768"),
            ("inline_threshold", "2 MB", "'2 MB' is more than 1 MB"),
            ("inline_threshold", "small", "'small' is not a size", "'20 KiB' or '256 MB'"),
            ("batch_deadline", "10", "'10' is not a duration", "'500 ms' or '10 minutes'"),
            ("target_batch_duration", "soon", "'soon' is not a duration"),
            ("backend", "hashmap", "'hashmap'", "not one of rocksdb, memory"),
            ("local_fsync", "perhaps", "'perhaps'", "neither true nor false"),
            ("trigger", "sometimes", "'sometimes'", "drain, until-stopped", "'30 seconds'"),
            ("trigger", "0", "'0'", "drain, until-stopped"),
            ("checkpoint_dir", 5, "5 is not a text"),
            ("retention", 3, "3 is not a text"),
            ("storage_options", [1], "a table"),
        )
    ),
    Refusal(UsageError, ("option retention, set by", "(STATEFLOW_RETENTION)", "did you mean daily"),
            lambda: loaded({"STATEFLOW_RETENTION": "dayly for 3 days"})),
    # names
    Refusal(UsageError, (*MISSPELT, "pipeline's code"), lambda: loaded(retained_checkpoint=3)),
    Refusal(UsageError, (*MISSPELT, "(STATEFLOW_RETAINED_CHECKPOINT)"), lambda: loaded({"STATEFLOW_RETAINED_CHECKPOINT": "3"})),
    Refusal(UsageError, ("the command line (--retained-checkpoint)", "did you mean retained_checkpoints?"),
            lambda: loaded(cli={"retained-checkpoint": "3"})),
    *(
        Refusal(UsageError, (f"option {theirs}", f"did you mean {ours}?"), lambda theirs=theirs: loaded(cli={theirs: "1"}))
        for theirs, ours in (  # Flink's names of ours
            ("execution.checkpointing.timeout", "batch_deadline"),
            ("checkpoint_timeout", "batch_deadline"),
            ("checkpointing.max-concurrent-checkpoints", "max_concurrent_checkpoints"),
            ("tolerable_failed_checkpoints", "tolerable_failed_batches"),
            ("watermark-alignment-max-drift", "max_source_drift"),
        )
    ),
    Refusal(UsageError, ("/no/missing.toml", "STATEFLOW_CONFIG", "does not exist"),
            lambda: loaded({"STATEFLOW_CONFIG": "/no/missing.toml"})),
    # options that contradict each other, with who set them
    Refusal(UsageError, ("parallelism (64, from the pipeline's code)", "max_parallelism (8, from"),
            lambda: loaded({"STATEFLOW_MAX_PARALLELISM": "8"}, parallelism=64)),
    Refusal(UsageError, ("heartbeat_timeout (1 second", "longer than heartbeat_interval (2 seconds"),
            lambda: loaded(heartbeat_timeout="1 s")),
    Refusal(UsageError, ("target_batch_duration (20 minutes", "shorter than batch_deadline (10 minutes"),
            lambda: loaded(target_batch_duration="20 minutes")),
    Refusal(UsageError, ("max_source_drift (1 day", "target_batch_duration (0"), lambda: loaded(max_source_drift="1 day")),
    Refusal(UsageError, ("option retention (daily for 9 days", "retained_age (1 hour"),
            lambda: loaded(retention="daily for 9 days", retained_age="1 hour")),
    # durations and sizes
    Refusal(ValueError, ("'1.0004 ms' is no whole number of microseconds", "round it"), lambda: duration("1.0004 ms")),
    Refusal(ValueError, ("'999999999999 weeks' is longer", "write a shorter one"), lambda: duration("999999999999 weeks")),
    Refusal(ValueError, ("'3652060 days' is longer", "the year 1 to 9999"), lambda: duration("3652060 days")),
    *(
        Refusal(UsageError, ("ttl: ", "is longer than time is counted here"), lambda length=length: ttl(length))
        for length in ("4000000 days", timedelta(days=3_652_061), "999999999 days")
    ),
    *(
        Refusal(ValueError, (f"{text!r} is not a duration", "like '500 ms' or '10 minutes'", *units), lambda text=text: duration(text))
        for text, *units in (
            ("",),
            ("10 lightyears", "units are ms, "),
            ("-1 s",),
            ("1 s 2",),
            ("ten minutes",),
            ("1 MB", "units are ms, "),
            ("1 month", "units are ms, ", "hours, days and weeks"),
        )
    ),
    *(
        Refusal(ValueError, (f"{text!r} is not a size", "like '20 KiB' or '256 MB'"), lambda text=text: size(text))
        for text in ("", "much", "-1 MB", "1 minute", "1e3")
    ),
    # options of RocksDB
    *(
        Refusal(UsageError, (f"RocksOptions {name} is {value!r}", named), lambda name=name, value=value: RocksOptions(**{name: value}))
        for name, value, named in (
            ("preset", "huge", "auto, small, large, write-heavy"),
            ("compaction", "fifo", "universal, level"),
            ("compression", "bz2", "lz4, zstd, snappy, none"),
            ("write_buffer", 5, "at least 1048576"),
            ("block_cache", 0, "at least 1048576"),
            ("inline_threshold", 2 << 20, "at most 1048576"),
            ("compaction_budget", -1, "at least 0"),
        )
    ),
    # rules of retention
    *(
        Refusal(ValueError, tuple(named), lambda text=text: retention_rule(text))
        for text, *named in (
            ("", "is empty", "'all for 1 hour, ", "or 'none'"),
            ("houry for 2 days", "'houry' in 'houry for 2 days'", "did you mean hourly?"),
            ("fortnight for 9 weeks", "'fortnight'", "use one of all, hourly, daily, weekly"),
            ("hourly for 2 dais", "'2 dais' is not a duration"),
            ("hourly", "'hourly' is no part", "like 'hourly for 2 days'"),
            ("all for 1 hour,", "'' is no part"),
            ("daily for 30 days, hourly for 40 days", "'hourly for 40 days'", "behind 'daily for 30 days'"),
            ("hourly for 2 days, hourly for 3 days", "'hourly for 3 days'", "each part takes longer steps"),
            ("hourly for 2 days, daily for 1 day", "'daily for 1 day'", "reaches further back"),
            ("hourly for 30 minutes", "'hourly for 30 minutes'", "make it 1 hour or more"),
            ("all for 0", "'all for 0'", "make it more than 0"),
            ("daily for 99999999999 weeks", "'99999999999 weeks'", "write a shorter one"),
        )
    ),
]  # fmt: skip
