"""A Python environment for each peer, from its lock, in the cache folder: their packages would not fit beside ours."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.generate import CACHE

LOCKS = Path(__file__).parent
ROOT = LOCKS.parents[1]
FLINK_JARS = ("org.apache.flink:flink-sql-parquet:2.3.0",)
"""What Flink lacks to read Parquet. Hadoop's classes, which it needs for that, come with Spark."""
JAR_HASHES = {
    "org.apache.flink_flink-sql-parquet-2.3.0.jar": "f30617f4a5a6d437750f155ff72178ab34439aec91df64d96621c260559ba5fd",
    "org.postgresql_postgresql-42.7.8.jar": "2a32a9dcbc42d67a50ad3a0de5efd102c8d2be46720045f2cbd6689f160ab7c7",
    "org.checkerframework_checker-qual-3.49.5.jar": "508c83c62c344f6f7ee28f47b88a8797d6116d043bfd1ca0576c828dd1df2880",
    "org.apache.flink_flink-sql-connector-kafka-5.0.0-2.2.jar": "5605c691d11a501382c383fecba37a7a552467da5ab7ba904ef5d6f3d62c5616",
}


def python_of(name: str, cache: Path = CACHE / "peers") -> Path:
    """The interpreter of a peer's environment, which is made when it is not there or is of another lock."""
    lock = LOCKS / f"{name}.txt"
    home = cache.resolve() / name
    stamp = home / f"lock-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}"
    if not stamp.is_file():
        shutil.rmtree(home, ignore_errors=True)
        uv = [sys.executable, "-m", "uv", "--quiet"]
        subprocess.run([*uv, "venv", "--python", sys.executable, str(home)], check=True)
        install = [*uv, "pip", "install", "--python", str(home / "bin/python"), "--require-hashes"]
        subprocess.run([*install, "--requirement", str(lock)], check=True)
        stamp.touch()
    return home / "bin/python"


def flink_jars(*more: str) -> list[str]:
    """Those to read Parquet, and those of `more` coordinates."""
    from stateflow.spark.session.jars import spark_home

    name = "flink" + "".join(f"-{each.split(':')[1]}" for each in more)
    hadoop = sorted((Path(spark_home()) / "jars").glob("hadoop-client-*.jar"))
    return [*jars_of(name, *FLINK_JARS, *more), *map(str, hadoop)]


def jars_of(name: str, *coordinates: str) -> list[str]:
    """Jars of Maven coordinates, in a folder of the cache called after `name`; each has to be the file that is named above."""
    from stateflow.config.options import cache_folder
    from stateflow.spark.session.jars import Bundle, recorded_jars, resolve_jars

    cache, bundle = cache_folder(), Bundle(f"-{name}", coordinates, ())
    jars = recorded_jars(cache, bundle) or resolve_jars(cache, bundle)
    for jar in jars:
        if hashlib.sha256(jar.read_bytes()).hexdigest() != JAR_HASHES.get(jar.name):
            shutil.rmtree(jar.parent)
            raise SystemExit(f"{jar.name} is not the file that {Path(__file__).name} names, and was not kept")
    return [str(jar) for jar in jars]


def asked(name: str, script: str, request: Mapping[str, Any], folder: Path) -> Any:
    """What a script of this folder answers in a peer's environment: its last line, in JSON. What else it says goes to the log."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [str(python_of(name)), str(LOCKS / script), json.dumps(request)]
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False, stdin=subprocess.DEVNULL
    )  # fmt: skip
    *said, last = done.stdout.strip().splitlines() or [""]
    sys.stderr.write("\n".join(said) + "\n")
    if done.returncode:
        sys.stderr.write(f"{last}\n")
        raise SystemExit(f"{script} of {name} ended with code {done.returncode}; its output is above")
    return json.loads(last)
