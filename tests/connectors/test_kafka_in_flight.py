"""With two records in flight a batch is evaluated while the messages of the one before are on their way: kills of the run leave each once."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stateflow.jobs.job import Job
from tests.connectors.kafka_server import Topics
from tests.long_form import BEFORE_A_RELEASE
from tests.spark.kafka_broker import broker

pytestmark = [pytest.mark.system, pytest.mark.timeout(600), BEFORE_A_RELEASE]
BATCHES, ROWS, KEYS, KILLS = 30, 400, 37, 4
PIPELINE = """
import time
import stateflow as sf

def slow(frame, delivery):
    time.sleep(0.7)

@sf.pipeline("counting")
def counting(flow, *, input: str, address: str):
    rows = flow.source("rows", sf.files(input, "json", per_batch=1), "id long, user string")
    counts = rows.key_by("user").aggregate("counts", "user string, n long", n=sf.count())
    counts.upsert("counts", sf.kafka("counts", bootstrap=address), keys=["user"])
    # A delivery that lasts longer than the next batch. The topics get their messages behind it.
    rows.for_each_batch("slow", slow)
    rows.append("rows", sf.kafka("rows", bootstrap=address))
"""


def test_kills_leave_every_message_once(tmp_path: Path) -> None:
    files = tmp_path / "input"
    files.mkdir()
    (tmp_path / "counting.py").write_text(PIPELINE)
    seen: Counter[str] = Counter()
    counts: Counter[tuple[str, int]] = Counter()
    for number in range(BATCHES):
        rows: list[dict[str, Any]] = [
            {"id": n, "user": f"u{n % KEYS}"} for n in range(number * ROWS, (number + 1) * ROWS)
        ]
        file = files / f"{number:03d}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        # Spark takes the oldest file first.
        os.utime(file, (1_700_000_000 + number,) * 2)
        seen.update(row["user"] for row in rows)
        counts.update(seen.items())
    seed = random.randrange(10**6)
    moments, kills = random.Random(seed), 0
    root = tmp_path / "root"
    with broker(tmp_path / "broker") as address:
        topics = Topics(address)
        for name in ("counts", "rows"):
            topics.make(name)
        command = [sys.executable, "-m", "stateflow", "run", "counting.py", "-p", f"input={files}"]
        command += ["-p", f"address={address}", "--option", f"checkpoint_dir={root}"]
        command += ["--option", "max_concurrent_checkpoints=2"]
        while kills < KILLS:
            before = slot_of(root)
            with subprocess.Popen(command, cwd=tmp_path) as run:
                while run.poll() is None and slot_of(root) < before + 2:
                    time.sleep(0.05)
                time.sleep(2 * moments.random())
                kills += run.poll() is None
                run.kill()
            assert slot_of(root) < BATCHES, "all was read before the kills"
        assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0
        ids = Counter(json.loads(str(each.value))["id"] for each in topics.read("rows"))
        values = [json.loads(str(each.value)) for each in topics.read("counts")]
        got = Counter((value["user"], value["n"]) for value in values)
    assert ids == Counter(range(BATCHES * ROWS)), f"seed {seed}"
    assert got == counts, f"seed {seed}"


def slot_of(root: Path) -> int:
    head = Job(str(root), "counting").log().head if (root / "counting").exists() else None
    return 0 if head is None else head.slot
