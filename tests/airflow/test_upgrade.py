"""The upgrade runbook with Spark: a version that is right stays, one that is wrong leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from demo.table import Orders, Verdict, compared, read
from stateflow.config.options import cache_folder
from stateflow.jobs.job import Job
from stateflow.spark.session.java import require_java
from tests.airflow.dag_runs import played
from tests.jobs.made import REPOSITORY
from tests.long_form import IN_TEST_AIRFLOW

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(1800),  # Airflow and six starts of Spark, on a machine that may be busy
    IN_TEST_AIRFLOW,
]

ROWS = 300
VERSION_1 = REPOSITORY / "examples" / "orders.py"
ADDED = "            self.total.value += row.amount\n"


@dataclass
class Shop:
    """The orders pipeline with its tables, its versions and its job."""

    folder: Path

    def __post_init__(self) -> None:
        self.orders = Orders(self.folder / "orders")
        self.root = self.folder / "root"
        self.job = Job(str(self.root), "orders")

    def version(self, number: int, lines: str) -> str:
        """A new version of the file, with other lines where it adds."""
        text = VERSION_1.read_text()
        assert ADDED in text
        file = self.folder / f"orders_{number}.py"
        file.write_text(text.replace(ADDED, lines))
        return f"{file}:orders"

    def run(self, pipeline: str) -> None:
        arguments = [
            "run", pipeline, "-p", f"input={self.folder / 'orders'}", "-p", f"output={self.folder / 'totals'}",
            "--master", "local[2]", "--checkpoint-dir", str(self.root),
        ]  # fmt: skip
        environment = {k: v for k, v in os.environ.items() if not k.startswith("STATEFLOW_")}
        subprocess.run([sys.executable, "-m", "stateflow.cli", *arguments], env=environment, check=True)

    def upgraded(self, pipeline: str, **form: Any) -> dict[str, Any]:
        """With the approval of a person who sees nothing wrong."""
        java = str(require_java(cache_folder()))
        conf = {"job": "orders", "pipeline": pipeline, "note": "a new version", **form}
        wanted = {"dag": "stateflow_upgrade", "conf": conf, "mark": "approve"}
        return played(self.folder, self.root, [wanted], JAVA_HOME=java)[0]

    def written(self) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in read(self.folder / "totals"))

    def verdict(self) -> Verdict:
        return compared(self.folder / "orders", self.folder / "totals")


def test_a_right_version_stays_and_a_wrong_one_is_taken_back_with_what_it_put_out(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.orders.add(2, ROWS)
    shop.run(f"{VERSION_1}:orders")

    shop.orders.add(1, ROWS)
    right = shop.version(2, ADDED.replace("row.amount", "row.amount * 1"))
    done = shop.upgraded(right)
    states = {name: task["state"] for name, task in done["tasks"].items()}
    assert done["state"] == "success", done
    assert f" runs {right} from now on" in done["tasks"]["verdict"]["result"]
    assert {states[name] for name in ("wrong", "roll_back", "verify_rolled_back")} == {"skipped"}
    shadow = done["tasks"]["shadow"]["result"]
    assert (shadow["same"], shadow["excess"], shadow["changes"]) == (True, "", [])
    assert shadow["batches"] >= 1
    assert done["tasks"]["trial"]["result"]["rows"] == ROWS
    assert shop.verdict().right
    assert not shop.job.status().tags

    before = shop.job.status()
    written = shop.written()
    known = shop.orders.add(2, ROWS)
    # Wrong totals are put out for the first of the two files; the second one is too much for it.
    wrong = shop.version(
        3,
        f"            if row.ts.timestamp() >= {1_767_225_600 + known - ROWS}:\n"
        "                raise ValueError('too much')\n" + ADDED.replace("row.amount", "row.amount * 2"),
    )
    refused = shop.upgraded(wrong)
    assert refused["tasks"]["verdict"]["said"].startswith("nothing was changed: shadow failed")
    assert "would be others, and max_changed=0.01 lets" in refused["tasks"]["shadow"]["said"]
    assert refused["tasks"]["stop"]["state"] == "upstream_failed"
    assert (shop.job.status().head, shop.written()) == (before.head, written), "it was tried on a fork"

    undone = shop.upgraded(wrong, max_changed=None)
    assert undone["state"] == "failed"
    assert undone["tasks"]["trial"]["state"] == "failed"
    said = undone["tasks"]["verdict"]["said"]
    assert said.startswith(
        f"trial failed, and the job was taken back to checkpoint {before.head} with {right}"
    )
    trial = undone["run_id"]
    assert any(
        trial in record.owner.dag_run for record in shop.job.log().chain if record.kind == "checkpoint"
    )
    after = shop.job.status()
    assert [s.position for s in after.sources] == [s.position for s in before.sources]
    assert shop.written() == written

    shop.run(right)
    assert shop.verdict().right
