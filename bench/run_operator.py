"""What Airflow's run operator adds to the same `stateflow run`, from `execute` to its result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measurement import Measurement, Plot, Results, Section, Workplace, at_most, seconds

ROOT = Path(__file__).resolve().parents[1]
PIPELINE = f"{ROOT / 'examples' / 'orders.py'}:orders"
SIDES = ("command", "operator")
NAMES = {"command": "`stateflow run`", "operator": "StateflowRunOperator, spark-submit"}


@dataclass(frozen=True, slots=True)
class Size:
    runs: int
    """Repeats, after one that does not count."""


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from demo.table import Orders

    orders = Orders(workplace.folder / "orders")
    parameters = {"input": str(workplace.folder / "orders"), "output": str(workplace.folder / "totals")}
    root = workplace.folder / "root"
    durations = []
    for number in range(size.runs + 1):
        orders.add(1, 2_000)
        began = time.perf_counter()
        if side == "command":
            _command(parameters, root)
            durations.append(time.perf_counter() - began)
        else:
            durations.append(_operator(parameters, root, workplace.folder / "airflow", number))
        workplace.say(f"run {number}: {durations[-1]:.2f} s")
    return {"seconds": durations[1:]}


def _command(parameters: dict[str, str], root: Path) -> None:
    words = [word for name, value in parameters.items() for word in ("-p", f"{name}={value}")]
    subprocess.run(
        [sys.executable, "-m", "stateflow.cli", "run", PIPELINE, *words, "--master", "local[2]", "--checkpoint-dir", str(root)],
        check=True,
        capture_output=True,
    )  # fmt: skip


def _operator(parameters: dict[str, str], root: Path, home: Path, number: int) -> float:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_STATEFLOW_DEFAULT": json.dumps(
            {"conn_type": "stateflow", "extra": {"checkpoint_dir": str(root)}}
        ),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
    }
    process = subprocess.run(
        [sys.executable, "-m", "bench.run_operator", json.dumps(parameters), str(number)],
        cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return float(process.stdout.splitlines()[-1])


def section(results: Results, size: Size) -> Section:
    middle = {
        side: results.median(side, lambda trial: sorted(trial["seconds"])[len(trial["seconds"]) // 2])
        for side in SIDES
    }
    added = middle["operator"] - middle["command"]
    text = (
        "One batch of 2,000 rows by the orders example on local[2], Spark's start included; each run is a process of its own. The "
        "operator's time is that from `execute` to its result, with spark-submit, the driver's keeper and the look at the job."
    )
    rows = [[NAMES[side], seconds(middle[side])] for side in SIDES]
    target = at_most("the run operator adds at most 2 s to the same `stateflow run`", added, 2.0, seconds)
    plot = Plot(
        "run-operator", "One short run", "bars", [NAMES[side].strip("`") for side in SIDES],
        {"seconds": [middle[side] for side in SIDES]}, "", "seconds",
    )  # fmt: skip
    return Section(text, ("how", "time"), rows, [target], [plot])


MEASUREMENT = Measurement(
    name="run_operator",
    title="A run by Airflow's operator",
    sides=SIDES,
    sizes={"full": Size(runs=3), "quick": Size(runs=1)},
    run=run,
    section=section,
    repeats=1,
    minutes={"full": 1.5, "quick": 0.8},
)


def main() -> None:
    from types import SimpleNamespace
    from typing import cast

    from stateflow.airflow import StateflowRunOperator

    parameters, number = json.loads(sys.argv[1]), sys.argv[2]
    operator = StateflowRunOperator(task_id="run", pipeline=PIPELINE, parameters=parameters)
    task = SimpleNamespace(
        dag_id="bench",
        run_id=number,
        task_id="run",
        map_index=-1,
        max_tries=0,
        xcom_push=lambda key, value: None,
    )
    context = {"ti": task, "dag_run": SimpleNamespace(), "dag": SimpleNamespace(folder=str(ROOT))}
    began = time.perf_counter()
    operator.execute(cast(Any, context))
    print(time.perf_counter() - began)


if __name__ == "__main__":
    main()
