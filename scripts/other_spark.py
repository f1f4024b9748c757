"""The tests that touch Spark, with another Spark than the newest: `make test SPARK=4.1`; `--core` for a part that every change runs.

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
CORE = tuple(
    f"tests/spark/test_{name}.py"
    for name in (
        "api_keys", "api_state", "api_streams", "canonical", "conditions_against_spark", "failed_batches", "internals", "java_names",
        "rewind", "same_stage", "sigterm", "sinks_delta_append", "sinks_delta_upsert", "sinks_function", "state_tables", "workers",
    )
)  # fmt: skip
"""What another Spark breaks first: every internal, both ways through a batch, sinks and the tables of states."""


def main(spark: str, arguments: Sequence[str]) -> int:
    home = cache() / f"spark-{spark}"
    python = environment(spark, home)
    own = variables(home)
    subprocess.run([python, "-m", "stateflow.spark.session.jars"], cwd=ROOT, env=own, check=True)
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
