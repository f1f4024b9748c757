"""Fixtures that an earlier version of the library wrote: a pipeline, the code that made the files, and the files of each backend."""

from __future__ import annotations

import sys
import tarfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark.sql import SparkSession

from stateflow.config.options import Options, load
from stateflow.spark.session.shipping import by_value

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"


def module(form: str, name: str) -> ModuleType:
    spec = spec_from_file_location(f"{form}_{name}", FIXTURES / form / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


class StoredFiles:
    """The files of one backend, copied to where a test may change them."""

    form: str
    """The folder of the fixtures."""

    def __init__(self, spark: SparkSession, folder: Path, backend: str) -> None:
        with tarfile.open(FIXTURES / self.form / f"{backend}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
        self.spark, self.folder, self.backend = spark, folder, backend
        self.pipeline, self.made = module(self.form, "pipeline"), module(self.form, "make")
        by_value([self.pipeline])

    def options(self, **more: Any) -> Options:
        given = {
            "checkpoint_dir": str(self.folder / "root"), "cache_dir": str(self.folder / "cache"),
            "scratch_dir": str(self.folder / "scratch"), "backend": self.backend, "parallelism": 2,
            "local_fsync": False, **more,
        }  # fmt: skip
        return load(code=given, env={}, folder=self.folder)
