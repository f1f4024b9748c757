"""`debug` and `history --rows` as a user types them, for the kinds of operators that have two inputs, broadcast state or columns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from stateflow.cli.main import app
from stateflow.jobs.job import Job
from tests.cli.conftest import Said
from tests.spark import by_hand
from tests.spark.pipelines import at

pytestmark = pytest.mark.system

PIPELINE = """
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

import stateflow as sf


@dataclass
class Order:
    user: int
    amount: float
    ts: datetime


@dataclass
class Refund:
    user: int
    amount: float
    ts: datetime


@dataclass
class Limit:
    name: str
    most: float


class Limited(sf.KeyedProcess):
    spent = sf.ValueState(float, default=0.0)
    limit = sf.BroadcastState(str, float)

    def process(self, key, rows, ctx):
        for row in rows:
            self.spent.value += row.amount * self.limit.get("times", 0.0)
        yield {"user": key, "over": self.spent.value > self.limit.get("all", 0.0)}

    def process_broadcast(self, name, rows, ctx):
        for row in rows:
            self.limit["all"] = row.most
            self.limit["times"] = self.limit.get("times", 0.0) + 1.0


class Net(sf.ConnectedProcess):
    total = sf.ValueState(float, default=0.0)

    def process_left(self, key, rows, ctx):
        for row in rows:
            self.total.value += row.amount

    def process_right(self, key, rows, ctx):
        for row in rows:
            self.total.value -= row.amount
        yield {"user": key, "total": self.total.value}


def running_total(table, state, ctx):
    batch = table.group_by("user").aggregate([("amount", "sum")])
    total = pc.add(pc.fill_null(state.get(batch["user"])["total"], 0.0), batch["amount_sum"])
    state.put(batch["user"], pa.table({"total": total}))
    return pa.table({"user": batch["user"], "total": total})


@sf.pipeline("shop")
def shop(flow, *, tables: str):
    orders = flow.source("orders", sf.delta(f"{tables}/orders"), Order, event_time="ts", watermark="1 minute")
    refunds = flow.source("refunds", sf.delta(f"{tables}/refunds"), Refund, event_time="ts", watermark="1 minute")
    limits = flow.source("limits", sf.delta(f"{tables}/limits"), Limit)
    by_user = orders.key_by("user", order_by="ts")
    outputs = [
        by_user.process("limited", Limited, output="user long, over boolean", broadcast={"limits": limits}),
        by_user.connect(refunds.key_by("user", order_by="ts")).process("net", Net, output="user long, total double"),
        by_user.process_arrow("columns", running_total, state={"total": float}, output="user long, total double"),
        orders.key_by("user").join(
            "paid",
            refunds.key_by("user"),
            "user long, left_amount double, right_amount double",
            within=("-5 minutes", "5 minutes"),
            how="left",
        ),
    ]
    for uid, output in zip(("limited", "net", "columns", "paid"), outputs):
        output.for_each_batch(f"{uid}-out", unheard)


def unheard(frame, delivery):
    pass
"""


@dataclass
class Shop:
    folder: Path
    slots: list[int]

    @property
    def root(self) -> str:
        return str(self.folder / "root")

    @property
    def place(self) -> list[str]:
        return ["--checkpoint-dir", self.root]

    def typed(self, *arguments: object) -> Said:
        result = CliRunner().invoke(app, [*map(str, arguments), *self.place])
        return Said(result.exit_code, result.stdout, result.stderr)

    def recorded(self, operator: str) -> tuple[str, str]:
        """A state of the operator that holds something for key 1 after the second batch, and what, as JSON."""
        states = Job(self.root, "shop").log().record(self.slots[1]).operators[operator].states
        for state in states:
            value = self.typed("query", "shop", operator, state, 1, "--at", self.slots[1], "-o", "json").json
            if value["found"]:
                return state, json.dumps(value["value"])
        raise AssertionError(f"{operator} holds nothing")


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Two batches of orders and refunds of users 1 and 2, and a limit that comes with each."""
    made = Shop(tmp_path_factory.mktemp("typed"), [])
    file, tables = made.folder / "shop.py", made.folder / "tables"
    file.write_text(PIPELINE)

    paid = by_hand.columns("user int, amount double, ts timestamp")
    for batch in range(2):
        orders = [(user, 10.0 * user + batch, at(2 * batch)) for user in (1, 2)]
        by_hand.append(tables / "orders", orders, paid)
        refunds = [(user, 1.0 + batch, at(2 * batch + 1)) for user in (1, 2)]
        by_hand.append(tables / "refunds", refunds, paid)
        limit = by_hand.columns("name string, most double")
        by_hand.append(tables / "limits", [("all", 15.0 + batch)], limit)
        ran = made.typed("run", f"{file}:shop", "-p", f"tables={tables}")
        assert ran.code == 0, ran.err
    made.slots += [record.slot for record in Job(made.root, "shop").log().checkpoints][-2:]
    assert len(made.slots) == 2
    return made


@pytest.mark.parametrize("operator", ["limited", "net", "columns", "paid"])
def test_the_same_code_gives_the_same_and_the_written_test_passes(shop: Shop, operator: str) -> None:
    state, right = shop.recorded(operator)
    test = shop.folder / f"test_{operator}.py"

    said = shop.typed(
        "debug", shop.folder / "shop.py:shop", operator, 1, "--at", shop.slots[1], "--no-stop", "-o", "json",
        "--test", test, "--state", state, "--expect-value", right,
    )  # fmt: skip

    assert said.code == 0, said.err
    assert said.json["same"], said.json
    assert said.json["recorded"] != said.json["before"], "the batch changed something"
    assert "which passes with this code" in said.json["test"]
    assert [len(rows) for rows in said.json["rows"]] == ([1, 1] if operator in ("net", "paid") else [1])


def test_before_the_first_batch_there_was_no_broadcast_state_either(shop: Shop) -> None:
    said = shop.typed(
        "debug", shop.folder / "shop.py:shop", "limited", 1, "--at", shop.slots[0], "--no-stop", "-o", "json"
    )

    assert said.code == 0, said.err
    assert said.json["same"], said.json
    assert said.json["recorded"] == {"spent": 10.0}


def test_a_history_shows_the_rows_of_delta_tables_of_both_sides(shop: Shop) -> None:
    said = shop.typed(
        "history", "shop", "net", "total", 1, "--rows", shop.folder / "shop.py:shop", "-o", "json"
    )

    assert said.code == 0, said.err
    versions = said.json["versions"]
    assert [version["value"] for version in versions] == [9.0, 18.0]
    assert [[row["amount"] for row in side] for side in versions[1]["rows"]] == [[11.0], [2.0]]
    assert versions[1]["rows_missing"] is None
    shown = shop.typed("history", "shop", "net", "total", 1, "--rows", shop.folder / "shop.py:shop").out
    assert "right:" in shown


def test_a_process_of_its_own_says_the_same(shop: Shop) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "stateflow.cli", "debug", "shop.py:shop", "limited", "1", "--at", "latest",
         "--test", "test_typed.py", "--expect", "value < 0", *shop.place],
        cwd=shop.folder, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
    )  # fmt: skip

    assert ran.returncode == 0, ran.stderr
    assert "rows in" in ran.stdout
    assert f"this code gives the same as what checkpoint {shop.slots[1]} holds for key 1" in ran.stderr
    assert (
        "wrote test_typed.py, which fails with this code: value < 0 does not hold: spent of key 1 is 32.0"
        in ran.stderr
    )
