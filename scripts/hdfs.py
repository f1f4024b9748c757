"""The jars that tests run a small HDFS and a small YARN from: Hadoop's minicluster, and Bouncy Castle, without which YARN's
ResourceManager does not start, in the cache folder. Hadoop's client is among Spark's own jars, in the same version."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

from stateflow.config.options import cache_folder
from stateflow.errors import StateflowError, UnavailableError
from stateflow.spark.session.jars import Bundle, recorded_jars, resolve_jars

LOCK = Path(__file__).parent / "hadoop.lock"


def locked(lock: Path = LOCK) -> tuple[Bundle, dict[str, str]]:
    """What to fetch, and the SHA-256 of each jar."""
    _, coordinates, *lines = lock.read_text(encoding="utf-8").splitlines()
    brought = ("hadoop-client-api", "hadoop-client-runtime", "hadoop-annotations")
    excluded = (*(f"org.apache.hadoop:{name}" for name in brought), "org.xerial.snappy:snappy-java")
    bundle = Bundle("-hdfs", tuple(coordinates.removeprefix("# ").split()), excluded)
    return bundle, {name: digest for digest, name in (line.split() for line in lines)}


def fetched(cache: Path, lock: Path = LOCK) -> tuple[Path, ...]:
    """The jars; those with another hash are refused and not kept."""
    bundle, hashes = locked(lock)
    jars = recorded_jars(cache, bundle) or resolve_jars(cache, bundle)
    for jar in jars:
        if hashlib.sha256(jar.read_bytes()).hexdigest() != hashes.get(jar.name):
            shutil.rmtree(jar.parent)
            raise UnavailableError(
                f"{jar.name}, which {' '.join(bundle.packages)} brought, is not the file that {lock.name} names, and was not kept: "
                "ask who runs the repository that it came from, or take another repository"
            )
    return jars


def main() -> None:
    cache = cache_folder()
    bundle, _ = locked()
    if not recorded_jars(cache, bundle):
        print(f"-- {' '.join(bundle.packages)} ...", flush=True)
    try:
        fetched(cache)
    except StateflowError as error:
        sys.exit(f"hdfs: {error}")


if __name__ == "__main__":
    main()
