"""Removes each rule of `docs/protocol.md` from the code, one at a time, and runs the tests that the page cites for it.

    python -m scripts.remove_rules              all of them, a quarter of an hour
    python -m scripts.remove_rules "a shift"    some

Works in a copy. A removal that no cited test notices ends it with exit code 1: then the page promises what nothing holds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.protocol.removed_rules import RULES, Removal
from tests.protocol.rule_tests import ROOT, cited

COPIED = (
    "stateflow",
    "plugins",
    "pyspark_stateflow",
    "tests",
    "examples",
    "docs",
    "bench",
    "demo",
    "dags",
    "scripts",
)
FAILED = 1
"""Pytest's exit code when tests failed: any other one says that they did not run."""


def main(chosen: Sequence[str]) -> int:
    tests = cited()
    unnoticed = []
    with tempfile.TemporaryDirectory(prefix="stateflow-rules-") as folder:
        copy = _copied(Path(folder))
        for rule, removals in RULES.items():
            if chosen and rule not in chosen:
                continue
            for number, removal in enumerate(removals, 1):
                named = rule if len(removals) == 1 else f"{rule} ({number} of {len(removals)})"
                with _removed(copy, removal):
                    code, last = _run(copy, tests[rule])
                verdict = "noticed" if code == FAILED else f"NOT NOTICED (pytest ended with {code})"
                print(f"{verdict}: {named}: {last}", flush=True)
                if code != FAILED:
                    unnoticed.append(named)
    done = sum(len(removals) for rule, removals in RULES.items() if not chosen or rule in chosen)
    print(f"{done} removals, {done - len(unnoticed)} noticed")
    return 1 if unnoticed else 0


def _copied(folder: Path) -> Path:
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@contextmanager
def _removed(copy: Path, removal: Removal) -> Iterator[None]:
    before = {patch.file: (copy / patch.file).read_text(encoding="utf-8") for patch in removal}
    try:
        for patch in removal:
            text = (copy / patch.file).read_text(encoding="utf-8")
            (copy / patch.file).write_text(text.replace(patch.old, patch.new), encoding="utf-8")
        yield
    finally:
        for file, text in before.items():
            (copy / file).write_text(text, encoding="utf-8")


def _run(copy: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Pytest's exit code, and its last line."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout=1800", *tests]
    # Without compiled files: two patches of one second and one length would look alike to Python.
    env = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, check=False)
    return done.returncode, (done.stdout.strip().splitlines() or [done.stderr.strip()])[-1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
