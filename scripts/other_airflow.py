"""The operators' tests with other versions of Airflow than the locked one: `python -m scripts.other_airflow [VERSION...]`.

Each version has an environment of its own in the cache folder. What else is in it is the newest that goes with that version.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.bootstrap import PROJECTS, ROOT, cache, uv_environment

OTHERS = ("3.3.0",)
"""The oldest version that the provider takes."""
FOR_TESTS = (
    "apache-airflow-providers-cncf-kubernetes",
    "apache-airflow-providers-openlineage",
    "duckdb",
    "hypothesis",
    "moto[server]",
    "pytest",
    "pytest-random-order",
    "pytest-timeout",
)
TESTS = (
    "arguments", "busy", "cleanup", "connection", "decorated", "empty_runs", "environment", "idempotency", "internals", "kubernetes", "lineage",
    "links", "operators", "parsing", "rescale", "restore", "run_operator", "savepoint", "sensors", "spark_submit", "staleness",
    "stop", "triggers", "verify",
)  # fmt: skip
"""Of tests/airflow."""


def main(versions: Sequence[str]) -> int:
    codes = [tested(version, environment(version)) for version in versions or OTHERS]
    return max(codes)


def environment(version: str, more: Sequence[str] = (), name: str = "") -> Path:
    """Its interpreter. Made once for each version and each change of what the project needs, and of what `more` names."""
    folder = cache() / "-".join(filter(None, ("airflow", version, name)))
    python, wanted = folder / "bin" / "python", folder / "wanted.in"
    text = requirements((ROOT / "requirements.in").read_text(encoding="utf-8"), version, more)
    if wanted.is_file() and wanted.read_text(encoding="utf-8") == text:
        return python
    print(f"-- Airflow {version} ...", flush=True)
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True)
    asked = folder / "asked.in"
    asked.write_text(text, encoding="utf-8")
    install = [*uv, "pip", "install", "--quiet", "--python", python, "-r", asked]
    if subprocess.run(install, env=uv_environment(), check=False).returncode:
        sys.exit(f"Airflow {version} could not be installed: check that the package index has it")
    install_project([*uv, "pip", "install", "--quiet", "--python", python])
    asked.rename(wanted)
    return python


def install_project(install: list[str | Path]) -> None:
    """Editable: Airflow finds the provider by what is installed, and the code is that of the checkout."""
    editable = [argument for project in PROJECTS for argument in ("--editable", project)]
    compat = ["--config-settings", "editable_mode=compat"]  # paths, as scripts/bootstrap.py has them
    subprocess.run([*install, "--no-deps", *compat, *editable], env=uv_environment(), check=True)
    for project in PROJECTS:
        for leftover in project.glob("*.egg-info"):
            shutil.rmtree(leftover)


def requirements(locked: str, version: str, more: Sequence[str] = ()) -> str:
    """What the project runs on, with this version of Airflow, and what its tests need."""
    text, count = re.subn(r"^apache-airflow==.*$", f"apache-airflow=={version}", locked, flags=re.MULTILINE)
    if count != 1:
        raise ValueError("requirements.in pins no version of apache-airflow")
    return "\n".join([text, *FOR_TESTS, *more, ""])


def tested(version: str, python: Path) -> int:
    print(f"-- the operators' tests with Airflow {version}", flush=True)
    files = [f"tests/airflow/test_{name}.py" for name in TESTS]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, "tests/ui/test_internals.py"]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
