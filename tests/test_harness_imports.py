"""A test of one class does not wait for what it does not use."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {
    "airflow", "delta", "fastapi", "obstore", "opentelemetry", "pandas", "prometheus_client", "py4j", "pyarrow.dataset",
    "pyarrow.parquet", "pydantic", "pyspark", "rich", "rocksdict", "starlette", "typer", "uvicorn",
}  # fmt: skip
ROOMS = {
    "airflow",
    "cli",
    "config",
    "driver",
    "jobs",
    "liveness",
    "operators.joins",
    "operators.ready",
    "restore",
    "serve",
    "spark",
}
"""Of the library, that no class with keys needs."""


def page(name: str, title: str) -> str:
    """The Python of a section, up to its end."""
    _, _, rest = (ROOT / name).read_text(encoding="utf-8").partition(f"\n## {title}\n")
    return "".join(re.findall(r"^```python\n(.*?)^```", rest.partition("\n## ")[0], re.M | re.S))


PARTITION = """
import stateflow as sf
from stateflow.testing import PartitionHarness

class Numbered(sf.PartitionProcess):
    seen = sf.OperatorListState(int)
    def process(self, rows, ctx):
        self.seen.extend([1])
        yield from rows

PartitionHarness(Numbered)
"""


@pytest.mark.parametrize(
    "script",
    [page("docs/start.md", "Ten lines"), page("README.md", "A typed pipeline"), PARTITION],
    ids=["the first page", "the README's typed rows", "without keys"],
)
def test_a_harness_imports_nothing_that_it_does_not_need(script: str, tmp_path: Path) -> None:
    assert "Harness(" in script
    look = "\nimport json, sys; print(json.dumps(sorted(sys.modules)))\n"
    (tmp_path / "script.py").write_text(script + look, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    imported = set(json.loads(done.stdout))
    assert "stateflow.testing.harness" in imported
    needless = HEAVY | {f"stateflow.{room}" for room in ROOMS}
    assert imported & needless == set()
