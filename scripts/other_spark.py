"""The tests that touch Spark, with another Spark than the newest: `make test SPARK=4.1`; `--core` for a part that every change runs,
`--prepare` for none, only what they need.

Each Spark has an environment of its own in the cache folder, from a lock with hashes, and its own jars.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.bootstrap import BUILD, ROOT, cache, uv_environment
from scripts.other_airflow import install_project

TESTS = (
    "tests/compatibility", "tests/jobs", "tests/operators", "tests/pipelines", "tests/restore", "tests/spark", "tests/state",
    "tests/testing",
)  # fmt: skip
"""Folders of tests that touch Spark, or what is kept for it."""
CORE = (
    *(
        f"tests/spark/test_{name}.py"
        for name in (
            "api_keys", "api_state", "api_streams", "canonical", "conditions_against_spark", "failed_batches", "internals", "java_names",
            "rewind", "same_stage", "sigterm", "sinks_function", "state_tables", "workers",
        )
    ),
    *(
        f"tests/spark/test_sinks_delta_append.py::test_{name}"
        for name in (
            "rows_show_only_once_they_are_committed",
            "of_two_copies_of_a_log_only_one_gets_its_rows_in_and_the_other_hears_of_it",
            "two_commits_of_one_slot_that_race_add_its_rows_once",
            "a_commit_that_loses_the_race_after_reading_the_slot_looks_again",
            "the_history_names_the_record_and_counts_its_rows",
            "a_column_given_another_meaning_after_the_decision_stops_the_commit",
            "a_constraint_added_after_the_decision_is_kept",
            "tables_with_features_take_rows_once",
            "rows_deleted_by_deletion_vectors_stay_deleted",
            "generated_columns_are_filled",
            "identity_columns_are_refused_when_the_run_starts",
            "partitioned_tables_are_created_and_written",
            "narrower_types_are_widened_to_the_tables",
            "the_slot_is_found_without_the_checksum_file",
            "at_least_once_appends_without_transaction_versions",
            "the_stage_that_computes_the_rows_writes_them_even_where_tables_ask_for_a_shuffle",
            "a_table_that_a_run_creates_writes_its_own_checkpoints_seldom_unless_told_otherwise",
        )
    ),
    *(
        f"tests/spark/test_sinks_delta_upsert.py::test_{name}"
        for name in (
            "a_key_keeps_its_newest_row_and_a_second_commit_changes_nothing",
            "two_merges_of_one_slot_that_race_apply_it_once",
            "a_table_that_only_takes_appends_is_refused_when_the_run_starts",
            "rows_that_cannot_break_anything_cost_no_job_but_the_one_that_stages_them",
            "an_operator_whose_rows_are_upserted_runs_in_the_job_and_the_process_that_stages_them",
            "rows_that_break_a_constraint_fail_before_the_decision",
            "columns_that_the_output_lacks_keep_their_values",
            "a_row_for_which_the_condition_holds_deletes_its_key_once",
        )
    ),
)  # fmt: skip
"""What another Spark breaks first: every internal, both ways through a batch, sinks and the tables of states. Of the Delta sinks it is
what Spark and Delta do; what the job's log decides is the same with any, and `make test` has it."""


def main(spark: str, arguments: Sequence[str]) -> int:
    home = cache() / f"spark-{spark}"
    python = environment(spark, home)
    own = variables(home)
    subprocess.run([python, "-m", "stateflow.spark.session.jars"], cwd=ROOT, env=own, check=True)
    if "--prepare" in arguments:
        return 0
    print(f"-- the tests that touch Spark, with Spark {spark}", flush=True)
    given = [each for argument in arguments for each in (CORE if argument == "--core" else (argument,))]
    if not any(each.startswith("tests") for each in given):
        given += [folder for folder in TESTS if (ROOT / folder).is_dir()]
    options = ("-q", "-p", "no:cacheprovider", "-n", "3", "--dist", "loadfile", "-m", "not system")
    return subprocess.run(
        [python, "-m", "pytest", *options, *given], cwd=ROOT, env=own, check=False
    ).returncode


def variables(home: Path) -> dict[str, str]:
    """Of a process in that environment: with its own jars, and the code of the checkout."""
    kept = {name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "VIRTUAL_ENV")}
    paths = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
    return {**kept, "STATEFLOW_CACHE_DIR": str(home / "cache"), "PYTHONPATH": paths}


def environment(spark: str, home: Path) -> Path:
    """Its interpreter. Made once for each change of the lock."""
    lock = ROOT / "tests" / "sparks" / f"{spark}.txt"
    if not lock.is_file():
        known = ", ".join(sorted(each.stem for each in lock.parent.glob("*.txt")))
        sys.exit(
            f"make: there is no lock for Spark {spark}: take one of {known}, or leave SPARK out for the newest"
        )
    python, stamp = home / "bin" / "python", home / "lock.txt"
    text = lock.read_text(encoding="utf-8")
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == text:
        return python
    print(f"-- an environment with Spark {spark} ...", flush=True)
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", "--clear", "--python", sys.executable, home], check=True)
    pip = [*uv, "pip", "install", "--quiet", "--python", python]
    subprocess.run([*pip, "--require-hashes", "-r", ROOT / BUILD], env=uv_environment(), check=True)
    hashed = ("--require-hashes", "--no-build-isolation")
    subprocess.run([*pip, *hashed, "-r", lock], env=uv_environment(), check=True)
    install_project(list(pip))
    stamp.write_text(text, encoding="utf-8")
    return python


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
