"""A trial of the environment without this machine's own packages, before anybody relies on it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from importlib.util import find_spec
from pathlib import Path

from stateflow.errors import UsageError

ENVIRONMENT, PIPELINE = "environment", "pipeline"
_PATIENCE = 300.0
_CODE = f"""\
import sys, tempfile
from pathlib import Path
import numpy, obstore, pandas, pyarrow, xxhash
from rocksdict import Options, Rdict
import stateflow, stateflow.spark.task.table_work, stateflow.state.backends.rocksdb, stateflow.storage.objects
with tempfile.TemporaryDirectory() as folder:
    database = Rdict(folder, Options(raw_mode=True))
    database[b"key"] = b"value"
    assert database[b"key"] == b"value"
    database.close()
from stateflow.pipelines.loading import load_pipeline
load_pipeline(sys.argv[1], Path("{PIPELINE}"))
here = Path.cwd().resolve()
strangers = sorted(
    name for name, module in sys.modules.items()
    if name.partition(".")[0] in sys.argv[2].split(",") and getattr(module, "__file__", None)
    and not Path(module.__file__).resolve().is_relative_to(here)
)
if strangers:
    sys.exit(f"{{strangers[0]}} was imported from {{sys.modules[strangers[0]].__file__}}, not from the environment")
"""


def try_out(environment: Path, pipeline: Path, spec: str, modules: list[str]) -> None:
    """Unpacks both archives and imports what an executor imports, in a process without this one's environment variables."""
    with tempfile.TemporaryDirectory(prefix="stateflow-trial-") as scratch:
        folder = Path(scratch)
        for archive, name in ((environment, ENVIRONMENT), (pipeline, PIPELINE)):
            with tarfile.open(archive) as tar:
                tar.extractall(folder / name, filter="data")
        variables = {
            "PATH": "/usr/bin:/bin",
            "HOME": scratch,
            "PYTHONPATH": ":".join([*spark_modules(), PIPELINE]),
            "PYTHONDONTWRITEBYTECODE": "1",
            # Used when the environment brings no interpreter. `-S` hides this Python's packages from it.
            "STATEFLOW_HOST_PYTHON": str(Path(sys.executable).resolve()),
        }
        command = [str(folder / ENVIRONMENT / "bin" / "python"), "-S", "-c", _CODE, spec, ",".join(modules)]
        try:
            process = subprocess.run(
                command,
                cwd=folder,
                env=variables,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PATIENCE,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"the environment {environment} did not answer within {_PATIENCE:.0f} s when it was tried here: "
                "does the pipeline's file wait for something while it is imported?"
            ) from None
    if process.returncode:
        lines = process.stderr.strip().splitlines() or [f"exit code {process.returncode}"]
        raise UsageError(
            f"the environment {environment} does not work on its own: {lines[-1].removeprefix('stateflow: ')}; "
            "install what is missing and package again, or name a distribution with --also"
        )


def spark_modules() -> list[str]:
    """The archives with Spark's Python modules, which every Spark installation gives to its executors."""
    spec = find_spec("pyspark")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else None
    zips = sorted((folder / "python" / "lib").glob("*.zip")) if folder is not None else []
    if not zips:
        raise UsageError(
            "Spark's modules for executors are not here: install pyspark (pyspark-client alone has none), then package again"
        )
    return [str(path) for path in zips]
