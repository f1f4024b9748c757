"""Runs of pipelines whose user code fails, in a process of their own: python failing_runs.py FOLDER."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import stateflow as sf
from stateflow.cli.main import app


class Balance(sf.KeyedProcess[str, Any, Any]):
    def process(self, key: str, rows: Iterator[Any], ctx: sf.Context) -> Any:
        for row in rows:
            if row.amount < 0:
                raise ValueError("a negative amount")
            yield key, row.amount


def columns(table: Any, state: Any, ctx: Any) -> Any:
    raise ValueError("a negative amount")


def accounts(flow: sf.Flow, input: str) -> Any:
    def read(spark: Any) -> Any:
        return spark.readStream.json(input, schema="account string, amount double")

    return flow.source("payments", read).key_by("account")


@sf.pipeline("append")
def append(flow: sf.Flow, *, input: str, output: str) -> None:
    rows = accounts(flow, input).process("balance", Balance, output="account string, amount double")
    rows.append("out", sf.delta(output))


@sf.pipeline("upsert")
def upsert(flow: sf.Flow, *, input: str, output: str) -> None:
    rows = accounts(flow, input).process("balance", Balance, output="account string, amount double")
    rows.upsert("out", sf.delta(output), keys=["account"])


@sf.pipeline("arrow")
def arrow(flow: sf.Flow, *, input: str, output: str) -> None:
    rows = accounts(flow, input).process_arrow(
        "balance", columns, state={"n": int}, output="account string, amount double"
    )
    rows.append("out", sf.delta(output))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name in ("append", "upsert", "arrow"):
        sys.stderr.write(f"---- {name}\n")
        arguments = [
            "run",
            f"{__file__}:{name}",
            "-p",
            f"input={folder / 'in'}",
            "-p",
            f"output={folder / name}",
        ]
        arguments += ["--checkpoint-dir", str(folder / "root"), "--master", "local[1]"]
        try:
            app(arguments)
        except SystemExit as ended:
            sys.stderr.write(f"ended with {ended.code}\n")
