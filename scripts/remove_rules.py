"""Removes each rule of `tests/rules/parts.py` from the code, one at a time, and runs the tests that must notice.

    python -m scripts.remove_rules                       all parts
    python -m scripts.remove_rules operators sinks       some parts: protocol, operators, values, sinks, batches
    python -m scripts.remove_rules "a shift"             some rules

The rules of the protocol are those of `docs/protocol.md`, with the tests that the page cites. Works in a copy. A test that
fails with the rule as well notices nothing. A removal that no test notices ends it with exit code 1: then something is promised that
nothing holds.
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

from tests.protocol.rule_tests import ROOT
from tests.rules.parts import PARTS
from tests.rules.removal import Removal, Rule

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
    rules = chosen_rules(chosen)
    unnoticed, done = [], 0
    with tempfile.TemporaryDirectory(prefix="stateflow-rules-") as folder:
        copy = _copied(Path(folder))
        for rule in rules:
            for number, removal in enumerate(rule.removals, 1):
                several = f" ({number} of {len(rule.removals)})" if len(rule.removals) > 1 else ""
                with _removed(copy, removal):
                    code, failed, last = _run(copy, rule.tests)
                verdict = "noticed" if code == FAILED else f"NOT NOTICED (pytest ended with {code})"
                if code == FAILED and _run(copy, failed)[0] != 0:
                    verdict = f"NOT NOTICED ({failed[0]} fails with the rule, too)"
                print(f"{verdict}: {rule.sentence}{several}: {last}", flush=True)
                done += 1
                if verdict != "noticed":
                    unnoticed.append(rule.sentence)
    print(f"{done} removals, {done - len(unnoticed)} noticed")
    return 1 if unnoticed else 0


def chosen_rules(chosen: Sequence[str]) -> list[Rule]:
    """Those of the parts and with the sentences that were asked for; all of them without any."""
    by_sentence = {rule.sentence: rule for rules in PARTS.values() for rule in rules}
    if unknown := [name for name in chosen if name not in PARTS and name not in by_sentence]:
        sys.exit(f"there is no part and no rule {unknown[0]!r}: parts are {', '.join(PARTS)}")
    wanted = {rule.sentence for name in chosen for rule in PARTS.get(name, ())} | set(chosen)
    return [rule for sentence, rule in by_sentence.items() if not chosen or sentence in wanted]


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
            _write(copy / patch.file, text.replace(patch.old, patch.new))
        yield
    finally:
        for file, text in before.items():
            _write(copy / file, text)


def _write(file: Path, text: str) -> None:
    """With a time of its own: by second and length Python knows whether what it has compiled is of this text."""
    time = file.stat().st_mtime + 1
    file.write_text(text, encoding="utf-8")
    os.utime(file, (time, time))


def _run(copy: Path, tests: Sequence[str]) -> tuple[int, Sequence[str], str]:
    """Pytest's exit code, the test that failed, and pytest's last line."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rfE",
        "-x",
        "-p",
        "no:cacheprovider",
        "--timeout=1800",
        *tests,
    ]
    env = {**os.environ, "PYTHONPATH": str(copy)}
    # What is compiled stays for the tests of the next rule.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines() or [done.stderr.strip()]
    failed = [
        line.split(" ", 1)[1].split(" - ")[0]
        for line in lines
        if line.startswith(("FAILED tests/", "ERROR tests/"))
    ]
    return done.returncode, failed or tests, lines[-1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
