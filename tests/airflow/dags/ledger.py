"""A pipeline in the DAG's own file, as a user writes it, with the default launcher and with one that gives its driver a secret."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from airflow.sdk import DAG, task
from gated import Balance, Order, Total

import stateflow as sf
from stateflow.airflow.launchers import SparkSubmit

FOLDER = os.environ.get("STORY_FOLDER", "/nowhere")


@dataclass
class LedgerTotal(Total):
    secret: int
    """How long the secret is that the driver was given."""


class LedgerBalance(Balance, sf.KeyedProcess[int, Order, LedgerTotal]):
    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[LedgerTotal]:
        for total in super().process(key, rows, ctx):
            yield LedgerTotal(**vars(total), secret=len(os.environ.get("LEDGER_TOKEN", "")))


@task.stateflow
def ledger(flow: sf.Flow, *, input: str, output: str) -> None:
    events = flow.source("events", sf.delta(input), Order)
    totals = events.key_by("user", order_by="ts").process("balance", LedgerBalance)
    totals.append("totals", sf.delta(output))


with_secret = SparkSubmit(driver_memory="1g", env={"LEDGER_TOKEN": "{{ var.value.ledger_token }}"})

with DAG("ledger", schedule=None):
    ledger(input=f"{FOLDER}/ledger/orders", output=f"{FOLDER}/ledger/totals")

with DAG("ledger_with_secret", schedule=None):
    ledger.override(launcher=with_secret)(input=f"{FOLDER}/ledger/orders", output=f"{FOLDER}/ledger/totals")
