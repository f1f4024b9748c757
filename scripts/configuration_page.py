"""Renders docs/configuration.md from the declarations in stateflow/config/options.py, and prints it."""

from __future__ import annotations

from collections.abc import Iterator

from stateflow.config.declaration import OptionDeclaration, written
from stateflow.config.file import FILE_NAME, FILE_VARIABLE
from stateflow.config.options import DECLARATIONS, PREFIX, Options

_TOP = f"""\
# Configuration

On this page you find every option, what it may be, and where you can set it. The words are in the [glossary](glossary.md).
The page is made by `python scripts/configuration_page.py > docs/configuration.md` from the declarations in `stateflow/config/options.py`.

## Where a value comes from

The first of these that sets an option wins:

1. the command line: `--option max_parallelism=256`; in Airflow the task's `options`, and then those of its connection
2. the environment: `{PREFIX}MAX_PARALLELISM=256`
3. a program's own: `stateflow.config.options.load(code={{"max_parallelism": 256}})`
4. the file: `max_parallelism = 256` in `{FILE_NAME}` in the working folder, or in the file that
   `{FILE_VARIABLE}` names
5. the default

`stateflow doctor` shows every option with its value and where that value was set. When an option does not
exist, or a value does not fit, the command stops with exit code 2 before it reads or writes anything.
It ignores variables of the environment that begin with `{PREFIX}` and resemble no option; one that differs from an option's only in
the case of its letters stops it, too (`stateflow_checkpoint_dir`), and so does an empty one that would hide what the file or a
program sets. `{PREFIX}HOST=` alone says something: no host.

A relative folder in a file (`checkpoint_dir = "checkpoints"`) lies beside the file, from wherever the command is typed. One that is
given in any other way is taken from the working folder.

A file in the working folder may have come with somebody else's folder. So those of its options that name a folder, an
endpoint or a credential (`checkpoint_dir`, `cache_dir`, `scratch_dir`, `storage_options`), or that decide what is deleted
(`retained_checkpoints`, `retained_age`, `retention`, `cache_size`), count only once you trust it. Until then a command that would take one of
them stops and says so. Read the file, then:

```
stateflow trust           # in its folder; --remove takes it back
```

That is noted in `~/.config/stateflow/trusted`, and holds for each of these options until its value changes; other options may change.
Where nobody can type it, in CI, a container or a worker of Airflow, name the file: `{FILE_VARIABLE}=/path/to/{FILE_NAME}`. A
file that is named needs no trust. `{FILE_VARIABLE}=/dev/null` leaves every file out.

Write sizes like `20 KiB` or `256 MB`. Units are binary, as in Spark and Flink: `1 MB` is 1048576
bytes. Write durations with their unit: `500 ms`, `10 minutes`, `7 days`. A mapping is a table in the
file, and a JSON object or `name=value,name=value` elsewhere.

Write a [retention](time-machine.md#enough-past) as parts with commas between: `all for 1 hour, hourly for 2 days, daily for 30 days`. A part is
one of `all`, `hourly`, `daily`, `weekly`, then `for`, then a duration; each has longer steps and reaches further back than the one before.
It adds to `retained_checkpoints`. Together with `retained_age` it is refused: `all for 1 day` says the same.

## Options
"""

_EXAMPLE = f"""
## Example

```toml
# {FILE_NAME}
checkpoint_dir = "s3://lake/checkpoints"
max_parallelism = 256
retained_checkpoints = 10
trigger = "30 seconds"
rocksdb_block_cache = "1 GB"

[storage_options]
endpoint = "https://objects.example.org"
```

A request to an object store is tried again up to nine times, with pauses of up to two seconds: who restarts it does not end a run, if it is back within five seconds.
After that the run ends as one whose store is out of reach, and the next one carries on. `max_retries = "20"` among the storage options waits longer, and
`retry_timeout = "120"` (seconds; 60 by default) lets a request be repeated for as long when each try takes long.

A request fails when 60 seconds pass without a byte of its answer: `read_timeout = "2 minutes"` allows more. A large file may take as long
as it needs, as long as bytes come. It goes up in parts of 8 MB, four at a time, and each part has three minutes. Over a slow line raise that with
`timeout = "10 minutes"`. It then holds for each request as a whole, and a download that takes longer goes on in another request.
"""

SHOWN_BY = {
    "checkpoint_dir": "spark/test_object_store_root.py::test_state_on_an_object_store_carries_on_and_leaves_no_litter",
    "parallelism": "spark/test_restore.py::test_up_down_and_up_again_without_a_batch_between_copies_nothing_and_loses_nothing",
    "max_parallelism": "cli/test_check.py::test_another_parallelism_fits_up_to_the_number_of_key_groups",
    "backend": "spark/test_restore.py::test_a_fork_from_any_snapshot_goes_on_as_if_nothing_had_happened",
    "shard_join_limit": "config/test_option_effects.py::test_neighbouring_shards_are_joined_up_to_the_limit",
    "inline_threshold": "state/backends/test_backends.py::test_the_inline_threshold_means_the_same_in_each_backend",
    "delivery": "spark/test_failed_batches.py::test_at_least_once_a_crash_loses_no_row_and_no_state",
    "host": "hosts/test_runs.py::test_a_file_names_the_host_and_a_client_loads_neither_spark_nor_arrow",
    "host_wait": "hosts/test_runs.py::test_who_finds_no_place_waits_and_a_run_that_may_not_wait_is_refused_as_busy",
    "host_only": "hosts/test_runs.py::test_a_file_names_the_host_and_a_client_loads_neither_spark_nor_arrow",
    "retained_checkpoints": "checkpoint/test_collection.py::test_a_run_keeps_exactly_what_it_was_told_to",
    "trigger": "spark/test_object_store_root.py::test_a_second_run_is_refused_while_the_first_one_lives",
    "target_batch_duration": "spark/test_target_batch_duration.py::test_batches_grow_to_the_target_and_the_next_run_goes_on_there",
    "max_source_drift": "spark/test_source_drift.py::test_a_source_that_is_days_ahead_waits_and_nothing_is_lost",
    "min_pause": "spark/test_failed_batches.py::test_a_batch_that_fails_twice_is_tried_again_after_a_pause_that_doubles_and_counts_once",
    "incremental": "spark/test_failed_batches.py::test_a_checkpoint_that_is_not_incremental_has_files_of_its_own",
    "batch_deadline": "spark/test_failed_batches.py::test_a_batch_beyond_its_deadline_fails_and_its_next_try_may_succeed",
    "max_concurrent_checkpoints": "spark/test_in_flight.py::test_with_two_in_flight_the_next_batch_is_evaluated_during_a_delivery_and_all_arrive_in_order",
    "tolerable_failed_batches": "spark/test_failed_batches.py::test_one_failure_more_than_is_tolerated_fails_the_run",
    "failure_backoff": "spark/test_failed_batches.py::test_a_batch_that_fails_twice_is_tried_again_after_a_pause_that_doubles_and_counts_once",
    "retained_age": "config/test_option_effects.py::test_checkpoints_younger_than_the_retained_age_are_kept_too",
    "retention": "config/test_option_effects.py::test_the_last_checkpoint_of_each_hour_stays_by_the_retention_rule",
    "rocksdb_preset": "config/test_option_effects.py::test_what_is_set_of_rocksdb_is_what_its_database_has",
    "rocksdb_compaction": "config/test_option_effects.py::test_what_is_set_of_rocksdb_is_what_its_database_has",
    "rocksdb_block_cache": "config/test_option_effects.py::test_sizes_of_rocksdb_reach_the_backend",
    "rocksdb_write_buffer": "config/test_option_effects.py::test_sizes_of_rocksdb_reach_the_backend",
    "rocksdb_merges": "spark/test_merges.py::test_runs_that_go_on_merge_beside_their_batches",
    "rocksdb_fetch": "spark/test_remote_files.py::test_what_a_run_fetches_is_an_option",
    "rocksdb_compaction_budget": "config/test_option_effects.py::test_what_is_set_of_rocksdb_is_what_its_database_has",
    "scratch_dir": "config/test_option_effects.py::test_what_a_task_gets_of_the_options",
    "cache_dir": "config/test_option_effects.py::test_what_a_task_gets_of_the_options",
    "cache_size": "storage/test_cache.py::test_the_least_recently_used_go_first_and_the_limit_holds",
    "locality_wait": "config/test_option_effects.py::test_what_spark_s_session_gets_of_the_options",
    "upload_threads": "spark/test_shards.py::test_as_many_files_of_one_shard_travel_at_the_same_time_as_there_are_threads",
    "chunk_rows": "spark/test_api_columnar.py::test_the_rows_of_a_key_come_in_its_order",
    "source_idle_timeout": "config/test_option_effects.py::test_a_source_that_is_idle_for_the_timeout_no_longer_holds_the_watermark_back",
    "dead_letter_limit": "operators/test_keyed.py::test_more_diverted_rows_than_may_be_kept_fail_the_task",
    "dead_letter_threshold": "spark/test_api_failures.py::test_dead_letters_divert_failing_keys_until_there_are_too_many",
    "shared_outputs": "spark/test_other_writers.py::test_a_second_job_on_one_target_begins_only_where_it_may_and_then_is_told_once",
    "shared_filesystem": "spark/test_cluster.py::test_subtasks_stay_with_their_executor_and_move_when_it_is_killed",
    "heartbeat_interval": "spark/test_waiting.py::test_a_run_is_fresh_while_it_waits_for_input_and_not_while_a_batch_hangs",
    "heartbeat_timeout": "spark/test_object_store_root.py::test_a_second_run_is_refused_while_the_first_one_lives",
    "local_fsync": "config/test_option_effects.py::test_what_a_task_gets_of_the_options",
    "storage_options": "jobs/test_job.py::test_a_run_takes_root_and_credentials_of_its_job_and_the_rest_from_where_it_is",
    "metrics": "test_metrics.py::test_prometheus_serves_sums_and_last_values",
    "metrics_port": "test_metrics.py::test_a_taken_port_is_said",
    "log_format": "test_logs.py::test_json_lines_have_job_epoch_and_slot_when_they_are_known",
    "progress": "cli/test_progress.py::test_elsewhere_each_batch_has_a_line",
}
"""By option, a test in `tests/` that fails when the option does not do what it says."""

_TESTS = """
## What shows it

For each option a test, in `tests/`, that shows what it does.

| option | test |
|---|---|
"""

_FLINK = """
## Coming from Flink

| Flink's option | here |
|---|---|
"""


def page() -> str:
    return (
        _TOP
        + "".join(_options())
        + _EXAMPLE
        + _TESTS
        + "".join(_test_rows())
        + _FLINK
        + "".join(sorted(_flink_rows()))
    )


def _options() -> Iterator[str]:
    defaults = Options()
    yield "\n| option | default | what it may be | meaning |\n|---|---|---|---|\n"
    for name, declaration in DECLARATIONS.items():
        default = written(declaration, getattr(defaults, name))
        default_text = f"`{default}`" if default else "empty"
        yield f"| `{name}` | {default_text} | {_allowed(declaration)} | {declaration.doc} |\n"


def _allowed(declaration: OptionDeclaration) -> str:
    if declaration.choices:
        return ", ".join(f"`{choice}`" for choice in declaration.choices)
    if declaration.kind == "trigger":
        return "`drain`, `until-stopped` or a duration"
    if declaration.kind == "yes/no":
        return "`true`, `false`"
    least = written(declaration, declaration.least) if declaration.least else None
    most = written(declaration, declaration.most) if declaration.most is not None else None
    limits = [f"at least {least}" if least else "", f"at most {most}" if most else ""]
    return ", ".join([declaration.kind, *filter(None, limits)])


def _test_rows() -> Iterator[str]:
    for name in DECLARATIONS:
        yield f"| `{name}` | `{SHOWN_BY[name]}` |\n"


def _flink_rows() -> Iterator[str]:
    for name, declaration in DECLARATIONS.items():
        for flink in declaration.flink:
            yield f"| `{flink}` | `{name}` |\n"


if __name__ == "__main__":
    print(page(), end="")
