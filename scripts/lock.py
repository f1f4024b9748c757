"""New lock files with the hash of every file: `make lock`. Versions that still fit stay."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from bootstrap import ROOT, uv_environment

# What is locked, from what, and what it has to agree with.
LOCKS = (
    ("requirements.txt", "requirements.in", ()),
    ("requirements-dev.txt", "requirements-dev.in", ()),
    ("requirements-uv.txt", "requirements-uv.in", ()),
    ("requirements-build.txt", "requirements-build.in", ()),
    ("requirements-release.txt", "requirements-release.in", ()),
    ("bench/peers/flink.txt", "bench/peers/flink.in", ()),
    ("bench/peers/python.txt", "bench/peers/python.in", ()),
    ("docker/spark/requirements.txt", "pyproject.toml", ("--constraint", "requirements.txt")),
)
SPARKS = ("4.0", "4.1")
"""The other Sparks, whose environments `scripts/other_spark.py` makes."""
_ALL_OF_THE_PROJECT = (
    "pyproject.toml",
    *(f"--extra={extra}" for extra in ("dev", "iceberg", "kafka", "otel", "postgres", "prometheus", "serve")),
)


def main() -> None:
    for spark in SPARKS:
        _seed(ROOT / f"tests/sparks/{spark}.txt")
    others = (
        (f"tests/sparks/{spark}.txt", f"tests/sparks/{spark}.in", _ALL_OF_THE_PROJECT) for spark in SPARKS
    )
    for lock, source, more in (*LOCKS, *others):
        compiled = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--python-version", "3.11"]
        subprocess.run(
            [*compiled, "--generate-hashes", source, *more, "--output-file", lock],
            cwd=ROOT, env=uv_environment(), check=True,
        )  # fmt: skip
        # uv would write its command line, which is that of this machine.
        file = ROOT / lock
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
        file.write_text("\n".join([f"# From {source}, by make lock.", *lines, ""]), encoding="utf-8")


def _seed(lock: Path) -> None:
    """Another Spark's lock has the project's versions wherever they fit: uv keeps what a lock has."""
    ours = "".join(
        (ROOT / name).read_text(encoding="utf-8") for name in ("requirements.txt", "requirements-dev.txt")
    )
    lock.write_text(re.sub(r"(?m)^pyspark==.*\n(?:    .*\n)*", "", ours), encoding="utf-8")


if __name__ == "__main__":
    main()
