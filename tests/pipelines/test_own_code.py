"""A run's own modules are those that were there when its file was loaded, whatever is written over them while it lives."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from stateflow.jobs.job import Job
from stateflow.jobs.running import run_loaded
from stateflow.pipelines.loading import LoadedPipeline, load_pipeline
from stateflow.spark.session.sent_modules import SentModules
from tests.jobs.builder import options_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = """
import stateflow as sf
import own_rates
G = 1

class Balance(sf.KeyedProcess):
    total = sf.ValueState(int, default=0)

    def process(self, user, rows, ctx):
        from own_lazy.sums import added
        for row in rows:
            self.total.value += G * own_rates.rate() * added(row.amount)
        yield user, self.total.value

@sf.pipeline("own")
def own(flow, *, input: str, output: str) -> None:
    rows = flow.source("rows", sf.files(input, "json", per_batch=1), "user int, amount int")
    rows.key_by("user").process("balance", Balance, output="user int, total long").append("out", sf.delta(output))

def now():
    from own_lazy.sums import added
    return G, own_rates.rate(), added(5)
"""


class OwnProject:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "own_lazy").mkdir()
        (folder / "own_lazy" / "__init__.py").touch()
        (folder / "own_lazy" / "share.txt").write_text("1")
        self.write(1)

    def write(self, factor: int) -> None:
        """Files of one size and one time, whatever is in them."""
        texts = {
            "pipeline.py": PIPELINE.replace("G = 1", f"G = {factor}"),
            "own_rates.py": f"def rate():\n    return {factor}\n",
            "own_lazy/sums.py": "from pathlib import Path\nSHARE = int(Path(__file__).with_name('share.txt').read_text())\n\n"
            f"def added(x):\n    return x * SHARE * {factor}\n",
        }
        for name, text in texts.items():
            (self.folder / name).write_text(text)
            os.utime(self.folder / name, (1_700_000_000, 1_700_000_000))

    def load(self) -> LoadedPipeline:
        return load_pipeline("pipeline.py", self.folder)


@pytest.fixture
def project(tmp_path: Path) -> Any:
    yield OwnProject(tmp_path)
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def test_what_is_imported_later_is_what_was_there_when_the_file_was_loaded(project: OwnProject) -> None:
    loaded: Any = project.load()
    project.write(7)
    assert loaded.module.now() == (1, 1, 5)
    assert Path(sys.modules["own_lazy.sums"].__file__ or "").parent == project.folder / "own_lazy"


def test_the_next_load_takes_all_files_anew_though_their_sizes_and_times_are_the_same(
    project: OwnProject,
) -> None:
    for factor in (1, 7, 1):
        project.write(factor)
        loaded: Any = project.load()
        assert loaded.module.now() == (factor, factor, 5 * factor)


def test_no_bytecode_of_an_earlier_text_is_run(project: OwnProject) -> None:
    code = "from stateflow.pipelines.loading import load_pipeline as l; from pathlib import Path; print(l('pipeline.py', Path('.')).module.now())"
    said = []
    for factor in (1, 7):
        project.write(factor)
        told = subprocess.run(
            [sys.executable, "-c", code], cwd=project.folder, capture_output=True, text=True, check=True
        )
        said.append(told.stdout.strip())
    assert said == ["(1, 1, 5)", "(7, 7, 35)"]


def test_what_is_the_same_is_not_imported_again(project: OwnProject) -> None:
    project.load()
    before = sys.modules["own_rates"]
    project.load()
    assert sys.modules["own_rates"] is before


def test_a_worker_that_begins_later_has_them_too(project: OwnProject) -> None:
    loaded = project.load()
    own = SentModules.of(loaded.folder, loaded.files)
    project.write(7)
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]
    own.enter()
    assert importlib.import_module("own_rates").rate() == 1
    assert importlib.import_module("own_lazy.sums").added(5) == 5


@pytest.mark.slow
def test_a_run_whose_workers_begin_anew_goes_on_with_the_code_that_it_began_with(
    project: OwnProject, spark: SparkSession
) -> None:
    (project.folder / "in").mkdir()
    for number in range(3):
        (project.folder / "in" / f"{number}.json").write_text('{"user": 1, "amount": 1}\n')
    root = project.folder / "root"

    def deploy(_: Any) -> None:
        """The next task gets a worker that has imported nothing, as after a quiet minute."""
        project.write(7)
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if "pyspark.daemon" in process.cmdline():
                    process.kill()

    report = run_loaded(
        project.load(), Job(str(root), "own"), {"input": str(project.folder / "in"), "output": str(project.folder / "out")},
        options=options_of(root, progress=False, tolerable_failed_batches=5), listener=deploy,
    )  # fmt: skip
    assert report.batches == 3
    rows = spark.read.format("delta").load(str(project.folder / "out")).collect()
    assert sorted(row.total for row in rows) == [1, 2, 3]
