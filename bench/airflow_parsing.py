"""What parsing a DAG file adds to importing Airflow and its Spark provider: `python -m bench.airflow_parsing REPEATS FILE...`

Every parse is a process of its own, forked from one that has imported Airflow already, as Airflow's DAG processor does it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measurement import Measurement, Plot, Results, Section, Workplace, at_most, median, seconds

ROOT = Path(__file__).resolve().parents[1]
TEN = ROOT / "bench" / "ten_operators.py"
HEAVY = ("pyspark", "delta", "rocksdict", "pyarrow", "pandas", "numpy", "obstore")

VARIABLE = '{"conn_id": "stateflow_default"}'


@dataclass(frozen=True, slots=True)
class Size:
    parses: int
    """How often to parse each file, after one time that does not count."""


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW_")}
    process = subprocess.run(
        [sys.executable, "-m", "bench.airflow_parsing", str(size.parses), *map(str, dag_files())],
        cwd=ROOT,
        # A Variable in the environment: no database is asked for it.
        env={
            **environment,
            "AIRFLOW_HOME": str(workplace.folder),
            "AIRFLOW_VAR_STATEFLOW": VARIABLE,
            # As where Airflow runs, also when this process was told to write none.
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(workplace.folder / "bytecode"),
        },
        stdout=subprocess.PIPE,
        check=True,
    )
    figures: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return figures


def section(results: Results, size: Size) -> Section:
    def took(file: str) -> float:
        return results.median("dags", lambda trial: median(trial["added"][file]))

    files = list(results.first("dags")["added"])
    airflow = results.median("dags", lambda trial: trial["airflow"])
    added = {file: took(file) for file in files}
    slowest = max(added.values())
    rows = [["Airflow and its Spark provider, imported", seconds(airflow)]]
    rows += [[f"`{_folder(file)}/{file}`", f"+ {seconds(added[file])}"] for file in files]
    text = (
        f"A process that has imported what Airflow's DAG processor imports, and the Spark provider, forks one that parses a DAG file, {size.parses} times for "
        "each file; the first parse, which writes bytecode, is not counted. None loads Spark or a library that reads state."
    )
    targets = [
        at_most(
            "parsing any of the DAGs adds at most 0.3 s to importing Airflow and its Spark provider",
            slowest,
            0.3,
            seconds,
        ),
    ]
    if (ten := added.get(TEN.name)) is not None:  # results of an earlier version have none
        targets.append(at_most("parsing a DAG with ten operators adds at most 50 ms", ten, 0.05, seconds))
    plot = Plot(
        "airflow-parsing",
        "Parsing a DAG file, beyond importing Airflow",
        "bars",
        [file.removesuffix(".py").replace("_", " ") for file in files],
        {"seconds": list(added.values())},
        "",
        "seconds",
        marks={"target of ten operators": 0.05},
    )
    return Section(text, ("what", "time"), rows, targets, [plot])


def dag_files() -> list[Path]:
    return [*sorted((ROOT / "dags").glob("*.py")), TEN]


def _folder(file: str) -> str:
    return "bench" if file == TEN.name else "dags"


def parse(path: Path) -> float:
    """Seconds for one file, in a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            began = time.perf_counter()
            spec = importlib.util.spec_from_file_location(f"unusual_prefix_{path.stem}", path)
            assert spec is not None
            assert spec.loader is not None
            sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            took = time.perf_counter() - began
            heavy = sorted(set(HEAVY) & set(sys.modules))
            os.write(writing, json.dumps([took, heavy]).encode())
        finally:
            sys.stderr.flush()
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    if not answer:
        raise RuntimeError(f"{path} cannot be parsed")
    took, heavy = json.loads(answer)
    if heavy:
        raise AssertionError(f"parsing {path.name} imports {', '.join(heavy)}")
    return float(took)


def main(parses: int, files: Sequence[Path]) -> None:
    began = time.perf_counter()
    import airflow.dag_processing.processor
    import airflow.providers.apache.spark.operators.spark_submit
    import airflow.sdk

    # Airflow's names are loaded when they are used.
    _ = airflow.sdk.DAG, airflow.sdk.BaseOperator, airflow.sdk.BaseSensorOperator, airflow.sdk.task
    took = time.perf_counter() - began
    sys.path[:0] = sorted({str(path.parent) for path in files})
    added = {path.name: [parse(path) for _ in range(parses + 1)][1:] for path in files}
    print(json.dumps({"airflow": took, "added": added}))


MEASUREMENT = Measurement(
    "airflow_parsing",
    "Parsing DAGs",
    ("dags",),
    {"full": Size(7), "quick": Size(3)},
    run,
    section,
    minutes={"full": 0.4, "quick": 0.3},
)

if __name__ == "__main__":
    main(int(sys.argv[1]), list(map(Path, sys.argv[2:])))
