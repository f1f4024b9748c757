"""One job, carried on by one Spark after the other: `python -m scripts.sparks_in_turn [4.0 4.1]`. The newest begins and ends.

What the tables and the state have at the end is compared with a plain computation over all rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.bootstrap import ROOT, cache
from scripts.other_spark import environment, variables

PIPELINE = ROOT / "tests" / "sparks" / "turns.py"
READ = """
import json, sys
from stateflow.spark.session.build import build_session
spark = build_session("read", master="local[2]")
rows = spark.read.format("delta").load(sys.argv[1]).toPandas().astype(str)
print("ROWS", json.dumps(rows.values.tolist()))
"""


def main(others: Sequence[str]) -> int:
    newest = (Path(sys.executable), dict(os.environ))
    turns = [("newest", newest)]
    for spark in others or ("4.0", "4.1"):
        home = cache() / f"spark-{spark}"
        turns += [(spark, (environment(spark, home), variables(home))), ("newest", newest)]
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            row for turn, (name, on) in enumerate(turns) for row in carried_on(Path(folder), turn, name, *on)
        ]
        return compared(Path(folder), rows, *newest)


def carried_on(
    folder: Path, turn: int, name: str, python: Path, env: Mapping[str, str]
) -> list[tuple[int, float, str]]:
    """Gives the job ten orders, and lets this Spark take them in a run of its own."""
    rows = [(user, float(turn + user), f"2026-01-01T00:{turn:02}:{5 * user:02}Z") for user in range(10)]
    (folder / "in").mkdir(exist_ok=True)
    lines = (json.dumps({"user": user, "amount": amount, "at": at}) for user, amount, at in rows)
    (folder / "in" / f"{turn}.json").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"-- run {turn + 1}: Spark {name}", flush=True)
    given = [
        "-p",
        f"input={folder / 'in'}",
        "-p",
        f"output={folder}",
        "--checkpoint-dir",
        str(folder / "checkpoints"),
    ]
    command = [python, "-m", "stateflow", "run", f"{PIPELINE}:turns", *given]
    subprocess.run(command, cwd=folder, env=env, check=True)
    return rows


def compared(
    folder: Path, rows: Sequence[tuple[int, float, str]], python: Path, env: Mapping[str, str]
) -> int:
    totals = dict.fromkeys((str(user) for user, _, _ in rows), 0.0)
    for user, amount, _ in rows:
        totals[str(user)] += amount
    found = {user: float(total) for user, total in read(folder / "totals", python, env)}
    minutes = read(folder / "minutes", python, env)
    # The last minute is still open, and there is one row per user and minute before.
    complete = sorted((str(user), amount) for user, amount, at in rows if at[14:16] != rows[-1][2][14:16])
    right = found == totals and sorted((user, float(total)) for user, _, total in minutes) == complete
    print(f"{len(rows)} orders by {rows[-1][2]}: {'right' if right else f'WRONG: {found}, {minutes}'}")
    return 0 if right else 1


def read(table: Path, python: Path, env: Mapping[str, str]) -> list[list[str]]:
    ran = subprocess.run([python, "-c", READ, table], env=env, check=True, capture_output=True, text=True)
    rows: list[list[str]] = json.loads(
        next(line for line in ran.stdout.splitlines() if line.startswith("ROWS "))[5:]
    )
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
