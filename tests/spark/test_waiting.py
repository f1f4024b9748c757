"""A continuous run says with its heartbeat that it waits for input, and only then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stateflow as sf
from stateflow.checkpoint.claim import claim
from stateflow.checkpoint.control import Heartbeat, read_heartbeat
from stateflow.config.options import load
from stateflow.errors import FencedError
from stateflow.format.records import Owner
from stateflow.spark.runner import RunRequest, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Row:
    user: int


def test_a_run_is_fresh_while_it_waits_for_input_and_not_while_a_batch_hangs(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, gate, root = tmp_path / "in", tmp_path / "gate", tmp_path / "root"
    spark.range(3).selectExpr("id as user").coalesce(1).write.format("delta").save(str(source))

    class Held(sf.KeyedProcess[int, Row, Row]):
        """Goes on when the file is there."""

        def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
            while not gate.exists():
                time.sleep(0.05)
            yield from rows

    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        events = flow.source("events", sf.delta(str(source)), Row)
        events.key_by("user").process("held", Held).collect("out", sf.memory("waiting"))

    code = {"checkpoint_dir": str(root), "trigger": "until-stopped", "heartbeat_interval": "50 ms"}
    stop = threading.Event()
    request = RunRequest(orders, load(code=code, folder=tmp_path), stop=stop)
    thread = threading.Thread(target=lambda: run(request))
    thread.start()
    job = sf.Job(str(root), "orders")

    def heard(enough: Callable[[Heartbeat], bool]) -> Heartbeat:
        while thread.is_alive():
            beat = read_heartbeat(job.store, job.layout, 1)
            if beat is not None and enough(beat):
                return beat
            time.sleep(0.05)
        raise AssertionError("the run has ended")

    try:
        begun = heard(lambda beat: len(job.log().chain) >= 2)  # the fence, and where the source begins
        assert heard(lambda beat: beat.counter > begun.counter + 40).looked_at is None
        gate.touch()
        waiting = heard(lambda beat: beat.looked_at is not None)
        assert job.status().looked_at is not None
        assert heard(lambda beat: (beat.looked_at or 0) > (waiting.looked_at or 0))
        assert job.log().head is not None
        checkpoint = job.status().last_checkpoint_at
        assert checkpoint is not None
        assert (waiting.looked_at or 0) >= checkpoint - 1_000_000
    finally:
        gate.touch()
        stop.set()
        thread.join(120)


def test_a_run_that_waits_for_input_ends_as_fenced_when_another_takes_the_job_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, root = tmp_path / "in", tmp_path / "root"
    spark.range(3).selectExpr("id as user").coalesce(1).write.format("delta").save(str(source))

    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        flow.source("events", sf.delta(str(source)), Row).append("out", sf.delta(str(tmp_path / "out")))

    code = {"checkpoint_dir": str(root), "trigger": "until-stopped", "heartbeat_interval": "50 ms"}
    ended: list[BaseException] = []

    def endless() -> None:
        try:
            run(RunRequest(orders, load(code=code, folder=tmp_path), stop=threading.Event()))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=endless)
    thread.start()
    job = sf.Job(str(root), "orders")
    until = time.monotonic() + 120
    while (beat := read_heartbeat(job.store, job.layout, 1)) is None or beat.looked_at is None:
        assert thread.is_alive()
        assert time.monotonic() < until
        time.sleep(0.05)
    claim(
        job.store, job.layout, owner=Owner(run="newer"), ids=job.new_id, clock=job.clock,
        carry_out=lambda record, still_owner: {},
    )  # fmt: skip
    thread.join(60)
    assert not thread.is_alive()
    assert [type(error) for error in ended] == [FencedError]
