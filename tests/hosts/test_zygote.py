"""What each run would import again, the process has imported that runs are forked from."""

from __future__ import annotations

import subprocess
import sys

import pytest

IMPORTS = """
import sys, threading
from stateflow.hosts import zygote
zygote.import_all()
print(threading.active_count(), *(name in sys.modules for name in zygote.IMPORTED))
before = set(sys.modules)
from pyspark.sql.types import NumpyArrayConverter
NumpyArrayConverter().can_convert(1)
print(sorted(name for name in set(sys.modules) - before if name.startswith(("pyspark", "unittest", "google", "typer"))))
"""


@pytest.mark.slow
def test_a_run_imports_neither_the_command_nor_pyspark_again_and_no_thread_is_forked() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    count, *imported = done.stdout.splitlines()[0].split()
    assert count == "1"
    assert set(imported) == {"True"}, done.stdout
    assert done.stdout.splitlines()[1] == "[]"
