"""How to use a package: three Spark settings, as a user types them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence

from stateflow.packaging.trial import ENVIRONMENT, PIPELINE

MASTER = "spark://HOST:7077"


def settings(environment: str, pipeline: str) -> dict[str, str]:
    """The Spark settings of a run on a cluster. The archives are paths or URLs."""
    return {
        "spark.archives": f"{environment}#{ENVIRONMENT},{pipeline}#{PIPELINE}",
        "spark.pyspark.python": f"./{ENVIRONMENT}/bin/python",
        "spark.executorEnv.PYTHONPATH": PIPELINE,
    }


def run_command(spec: str, conf: Mapping[str, str]) -> list[str]:
    return ["stateflow", "run", spec, "--master", MASTER, *_flags(conf)]


def submit_command(
    spec: str,
    conf: Mapping[str, str],
    *,
    python: str,
    program: str,
    packages: Sequence[str],
    delta: Mapping[str, str],
) -> list[str]:
    """The command for client mode. Under spark-submit Delta's jars and settings must be set before Python starts."""
    all_settings = {**conf, "spark.pyspark.driver.python": python, **delta}
    return [
        "spark-submit", "--master", MASTER, "--packages", ",".join(packages), *_flags(all_settings), program, "run", spec,
    ]  # fmt: skip


def operator_call(spec: str, name: str, conf: Mapping[str, str]) -> str:
    """The Python code of a task in a DAG."""
    lines = "".join(f"        {_literal(key)}: {_literal(value)},\n" for key, value in conf.items())
    return (
        f"StateflowRunOperator(\n    task_id={_literal(name)},\n    pipeline={_literal(spec)},\n"
        f'    spark_conn_id="spark_default",\n    conf={{\n{lines}    }},\n)'
    )


def typed(command: Sequence[str]) -> str:
    """A command over several lines, one option per line."""
    lines: list[str] = []
    words = list(command)
    while words:
        word = words.pop(0)
        if word.startswith("--") and words:
            lines.append(f"{word} {shlex.quote(words.pop(0))}")
        elif lines and not lines[-1].startswith("--"):
            lines[-1] += f" {shlex.quote(word)}"
        else:
            lines.append(shlex.quote(word))
    return " \\\n    ".join(lines)


def _literal(text: str) -> str:
    """The text as Python code. A string of JSON is one of Python, and always in double quotes."""
    return json.dumps(text, ensure_ascii=False)


def _flags(conf: Mapping[str, str]) -> list[str]:
    return [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
