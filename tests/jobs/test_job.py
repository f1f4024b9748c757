"""The layer that the command line, Airflow and scripts call."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

import stateflow as sf
from stateflow.checkpoint.control import stop_requested
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.processes import identity_of_this_process
from stateflow.checkpoint.statistics import POSITIONS, UNDONE_BY
from stateflow.compatibility.flows import compare
from stateflow.compatibility.states import resolve_states
from stateflow.errors import IncompatibleError, UnavailableError
from stateflow.format.records import Owner, Prepared
from stateflow.format.source_offsets import NOTHING
from stateflow.pipelines.parameters import known_parameters, required_parameters
from tests.jobs.builder import T0
from tests.jobs.made import PARAMETERS, MadeJob, made_job, orders_pipeline
from tests.memory_store import Call, named_store
from tests.refusals.refusal import lacking, refused


def orders() -> sf.Pipeline:
    return orders_pipeline()


def test_a_job_tells_its_checkpoints_and_their_history(tmp_path: Path) -> None:
    made_job(tmp_path)
    job = sf.Job(str(tmp_path), "orders")
    assert [record.slot for record in job.checkpoints()] == [2, 3, 4]
    assert [line.kind for line in job.history()] == ["fence", "checkpoint", "checkpoint", "checkpoint"]
    assert job.summary().lastCheckpointId == 4


def test_a_run_counts_as_running_as_long_as_its_heart_was_heard_lately(tmp_path: Path) -> None:
    made = made_job(tmp_path, ended=False)
    made.beat(2, at=T0)

    def status(seconds: float) -> str:
        job = sf.Job(str(tmp_path), "orders", heartbeat_timeout=10, clock=lambda: T0 + round(seconds * 1e6))
        return job.status().status

    assert [status(1), status(9.9), status(10.1)] == ["RUNNING", "RUNNING", "LOST"]
    made.beat(3, ended=True, at=T0)
    assert status(1) == "IDLE"


def test_a_run_whose_process_is_dead_is_lost_at_once_and_no_stop_waits_for_it(tmp_path: Path) -> None:
    here = identity_of_this_process()
    assert here is not None
    made = made_job(tmp_path, ended=False)
    made.beat(2, at=T0, process=here)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        # Another process has its number: this one has another start.
        made.beat(3, at=T0, process=msgspec.structs.replace(here, started="1"))

    job = sf.Job(str(tmp_path), "orders", monotonic=lambda: now[0], sleep=sleep, clock=lambda: T0)
    assert job.status().status == "RUNNING"
    assert job.stop(wait=60).outcome == "lost"
    assert now[0] < 1
    assert job.status().status == "LOST"


def test_a_run_that_beats_rarely_is_alive_to_every_verb_between_two_of_its_heartbeats(tmp_path: Path) -> None:
    made = made_job(tmp_path, ended=False)
    made.beat(2, at=T0, interval=15_000_000)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        made.beat(2 + int(now[0] / 15), at=T0 + round(now[0] * 1e6), interval=15_000_000)

    job = sf.Job(
        str(tmp_path),
        "orders",
        heartbeat_timeout=10,
        monotonic=lambda: now[0],
        sleep=sleep,
        clock=lambda: T0 + round(now[0] * 1e6),
    )
    for verb in (job.delete, lambda: job.rescale(2)):
        with refused(sf.BusyError, "'orders'", "is alive", "`stateflow stop orders`"):
            verb()
    now[0] += 14.0
    assert job.status().status == "RUNNING"
    with refused(sf.BusyError, "has not ended in 40 s"):
        job.stop(wait=40)


def test_waiting_for_a_stop_uses_the_watchers_own_clock(tmp_path: Path) -> None:
    made = made_job(tmp_path, ended=False)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] < 30:
            made.beat(round(now[0] * 100))
        elif now[0] < 31:
            made.beat(9999, ended=True)

    job = sf.Job(str(tmp_path), "orders", monotonic=lambda: now[0], sleep=sleep, clock=lambda: T0)
    done = job.stop(wait=60)
    assert (done.outcome, done.checkpoint) == ("stopped", 4)
    assert now[0] >= 30


def test_a_retry_of_a_stop_does_not_end_the_run_that_came_after(tmp_path: Path) -> None:
    made = made_job(tmp_path, ended=False)
    owner = Owner("dag/1/stop/1", dag_run="dag/1", task="stop")
    first = sf.Job(str(tmp_path), "orders", acts_as=owner).stop()
    made.beat(2, ended=True)
    made.begin("the next run")
    made.beat(1)
    again = sf.Job(str(tmp_path), "orders", acts_as=owner).stop(wait=60)
    assert (again.outcome, again.epoch) == ("stopped", first.epoch)
    assert stop_requested(made.store, made.layout, made.writer.epoch) is None
    # Another stop means the run of its day.
    assert sf.Job(str(tmp_path), "orders").stop().epoch == made.writer.epoch


def test_a_run_that_takes_too_long_to_stop_is_busy(tmp_path: Path) -> None:
    made = made_job(tmp_path, ended=False)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        made.beat(round(now[0] * 100))

    job = sf.Job(str(tmp_path), "orders", monotonic=lambda: now[0], sleep=sleep)
    with refused(sf.BusyError, "has not ended in 20 s"):
        job.stop(wait=20)


def test_a_run_that_another_has_replaced_has_stopped(tmp_path: Path) -> None:
    made = made_job(tmp_path, ended=False)
    job = sf.Job(str(tmp_path), "orders", monotonic=lambda: 0.0, sleep=lambda _: made.begin("another"))
    assert job.stop(wait=60).outcome == "stopped"


def test_a_job_whose_folder_goes_while_a_stop_waits_is_not_there(tmp_path: Path) -> None:
    made_job(tmp_path, ended=False)
    job = sf.Job(str(tmp_path), "orders", sleep=lambda _: shutil.rmtree(tmp_path / "orders", True))
    with refused(sf.NotFoundError, "'orders'"):
        job.stop(wait=60)


def test_a_run_that_began_meanwhile_carries_out_its_own_record_and_is_waited_for(tmp_path: Path) -> None:
    made = made_job(tmp_path)
    writer = made.begin("the next run")
    made.beat(1)
    permit = writer.decide(Draft("checkpoint"))
    now, done_at = [0.0], 5.0

    def sleep(seconds: float) -> None:
        now[0] += seconds
        made.beat(round(now[0] * 100))
        if now[0] == done_at:
            writer.complete(permit, {})

    job = sf.Job(str(tmp_path), "orders", monotonic=lambda: now[0], sleep=sleep)
    with refused(sf.BusyError, "'the next run'", "stateflow stop orders"):
        job.settle(wait=2)
    assert job.settle(wait=60) == permit.slot
    writer.still_owner()


def test_what_a_run_has_left_pending_is_carried_out_once_it_counts_as_lost(tmp_path: Path) -> None:
    made = made_job(tmp_path)
    made.begin("the next run")
    made.beat(1)
    left = made.decide(pending=True)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    job = sf.Job(str(tmp_path), "orders", monotonic=lambda: now[0], sleep=sleep)
    assert job.settle() == left.slot
    assert now[0] >= job.heartbeat_timeout


def test_the_newest_state_is_compared_even_when_it_is_still_pending(tmp_path: Path) -> None:
    slot = made_job(tmp_path).batch(carried_out=False)
    assert sf.Job(str(tmp_path), "orders").check(orders()).checkpoint == slot


def test_outputs_are_known_after_a_record_that_writes_none(tmp_path: Path) -> None:
    made_job(tmp_path)
    job = sf.Job(str(tmp_path), "orders")
    assert job.check(orders()).sinks == {"totals": "continues"}
    job.rescale(2)
    again = job.check(orders())
    assert again.checkpoint == 6
    assert again.sinks == {"totals": "continues"}
    absent = "source 'events': there is no Delta table at /data/orders: correct the path, or run what writes the table first"
    assert again.warnings == (absent,)
    moved = job.check(orders(), {"output": "/data/elsewhere"})
    assert moved.sinks == {"totals": "continues"}
    assert moved.warnings == (
        (
            "sink 'totals' has written to /data/totals and goes on in /data/elsewhere: a run refuses a table that is not that one, moved as a "
            "whole; give a new table a new uid"
        ),
        absent,
    )


def test_what_becomes_of_a_sink_under_another_uid_is_told(tmp_path: Path) -> None:
    made = made_job(tmp_path)
    job = made.opened()

    def named(*uids: str) -> sf.Pipeline:
        @sf.pipeline("orders")
        def renamed(flow: sf.Flow, *, input: str, output: str) -> None:
            events = flow.source("events", sf.delta(input), "user int")
            for number, uid in enumerate(uids):
                events.append(uid, sf.delta(f"{output}-{number}" if number else output))

        return renamed

    def told(*uids: str) -> list[str]:
        check = job.check(named(*uids), allow_non_restored_state=True)
        return [warning for warning in check.warnings if "begins in" in warning]

    def plan(checkpoint: int, *uids: str, rewind_sinks: bool = False) -> list[str]:
        given: dict[str, Any] = {
            "options": made.options(),
            "allow_non_restored_state": True,
            "rewind_sinks": rewind_sinks,
        }
        return [sink.note for sink in job.restore(f"checkpoint:{checkpoint}", named(*uids), **given).sinks]

    starts = "has nothing of this job yet, and gets only rows that follow the snapshot"
    assert told("totals", "more") == []
    assert plan(2, "totals", "more")[1] == starts
    assert told("sums", "more") == [
        (
            "sink 'sums' begins in /data/totals, where the job has written as sink 'totals': a run adds to those rows what comes from now on, and "
            "--rewind-sinks will leave them there; if it is the same sink into the same table, call it 'totals' again"
        )
    ]
    stays = "has what the job wrote there as sink totals, which stays"
    assert plan(2, "sums", "more") == [f"{stays}: what followed the snapshot will be delivered again", starts]
    assert plan(made.writer.next_slot - 1, "sums") == [stays]

    sums = Prepared(
        kind="delta_append", target="/data/totals", prev=None, rows=1, payload={"exactly_once": True}
    )
    made.decide(sources=made.head().sources, sinks={"sums": sums}, outcomes={"sums": "committed"})
    [back] = plan(2, "sums", rewind_sinks=True)
    assert back.startswith(
        "back to before this job's first output (what the job wrote there as sink totals stays: what followed the snapshot will be delivered again), "
    )


def test_what_begins_in_the_middle_of_one_source_and_at_the_beginning_of_another_is_told(
    tmp_path: Path,
) -> None:
    """As whoever gives a source and its operator new uids, and another source of that operator none."""

    def joined(*uids: str, begins: str = "") -> sf.Pipeline:
        first, second, operator, sink = uids

        @sf.pipeline("orders")
        def joined(flow: sf.Flow) -> None:
            options = {"startingVersion": begins} if begins else {}
            one = flow.source(first, sf.delta("/data/one"), "user int")
            other = flow.source(second, sf.delta("/data/other", options=options), "user int")
            keyed = one.union(other).key_by("user")
            keyed.aggregate(operator, "user int, n long", n=sf.count()).upsert(
                "counts", sf.delta("/data/counts")
            )
            one.union(other).append(sink, sf.delta("/data/rows"))

        return joined

    made = made_job(tmp_path)
    head = made.head()
    (state,) = head.sources.values()
    (counted,) = head.operators.values()
    made.decide(sources={"one": state, "other": state}, operators={"count": counted})

    def told(*uids: str, begins: str = "") -> list[str]:
        check = made.opened().check(joined(*uids, begins=begins), allow_non_restored_state=True)
        return [warning for warning in check.warnings if "from where that begins" in warning]

    operator, sink = told("one", "other2", "count2", "rows2")
    assert (
        lacking(operator, ("operator 'count2'", "source 'other2'", "of source 'one'", "a new uid, too")) == []
    )
    assert "sink 'rows2'" in sink
    assert told("one2", "other2", "count2", "rows2") == told("one", "other", "count2", "rows2") == []
    assert told("one", "other2", "count2", "rows2", begins="3") == []
    begun = msgspec.structs.replace(state, lines=(NOTHING,))
    made.decide(sources={"one": begun, "other": state}, operators={"count": counted})
    assert told("one", "other2", "count2", "rows2") == [], "nothing of one was read yet"


class Purchases(sf.KeyedProcess):
    bought = sf.ValueState(int, default=0)

    def process(self, user: int, rows: Any, ctx: sf.Context) -> Any:
        self.bought.value += len(list(rows))
        yield {"user": user, "n": self.bought.value}


class EachBatchAlone(sf.KeyedProcess):
    def process(self, user: int, rows: Any, ctx: sf.Context) -> Any:
        yield {"user": user, "n": len(list(rows))}


@pytest.mark.parametrize(
    ("operator", "source", "noted", "told"),
    [
        ("bought2", "one", {}, True),
        ("bought", "one", {}, False),
        # Here it has all.
        ("bought2", "one2", {}, False),
        # A run put the source at its beginning, and has not read it yet.
        ("bought2", "one", {POSITIONS: ["one"]}, False),
        ("bought2", "one", {POSITIONS: ["one"], UNDONE_BY: {"one": 3}}, True),
        ("each batch alone", "one", {}, False),
        # The operator whose feed it reads goes on, and gives a new reader all entries.
        ("of the feed", "one", {}, False),
    ],
)
def test_an_operator_that_begins_empty_behind_a_source_that_goes_on_is_told(
    tmp_path: Path, operator: str, source: str, noted: dict[str, Any], told: bool
) -> None:
    def counting(uid: str) -> sf.Pipeline:
        @sf.pipeline("orders")
        def counting(flow: sf.Flow) -> None:
            rows = flow.source(source, sf.delta("/data/one"), "user int").key_by("user")
            if uid == "each batch alone":
                rows.process("alone", EachBatchAlone, output="user int, n int").append(
                    "n", sf.delta("/data/n")
                )
                return
            of_feed = uid == "of the feed"
            counts = rows.process("bought" if of_feed else uid, Purchases, output="user int, n int")
            counts.upsert("counts", sf.delta("/data/counts"), keys=["user"])
            if of_feed:
                feed = flow.state_changes("bought").key_by("user")
                feed.process("reader", Purchases, output="user int, n int").append("n", sf.delta("/data/n"))

        return counting

    made = made_job(tmp_path)
    (state,) = made.head().sources.values()
    (made_before,) = made.head().operators.values()
    states, next_id = resolve_states(counting("bought").build({}).operators[0], None)
    counted = msgspec.structs.replace(made_before, states=states, next_state_id=next_id)
    made.decide(sources={"one": state}, operators={"bought": counted}, statistics=noted)
    check = made.opened().check(counting(operator), allow_non_restored_state=True)
    assert check.problems == []
    said = [warning for warning in check.warnings if "begins empty" in warning]
    assert len(said) == told
    dropped = [warning for warning in check.warnings if "is dropped" in warning]
    assert len(dropped) == (operator in ("bought2", "each batch alone"))
    if told:
        assert (
            lacking(
                said[0], ("'bought2'", "source 'one'", "a new uid", "all their other sources", "'bought' is")
            )
            == []
        )
        assert lacking(dropped[0], ("'bought'", "about 10 entries", f"checkpoint {made.head().slot}")) == []
    plan = made.opened().restore("latest", counting(operator), allow_non_restored_state=True)
    planned = [warning for warning in plan.warnings if "begins empty" in warning]
    assert [warning.startswith(each) for warning, each in zip(said, planned, strict=True)] == [True] * told


@dataclass
class OfUser:
    user: Annotated[int, sf.field(aliases=["customer"])]
    day: int


@pytest.mark.parametrize(
    ("kind", "payload", "said"),
    [
        ("delta_append", {}, "appended its rows to"),
        ("delta_upsert", {"keys": ["day"]}, "upserted by day into"),
        ("delta_upsert", {"keys": ["User"]}, ""),
        ("delta_upsert", {"keys": ["Customer"]}, ""),
        ("delta_upsert", {"keys": ["customer", "day"]}, "upserted by customer, day into"),
        ("delta_rewind", {"table": "t"}, ""),
        ("function", {}, ""),
    ],
)
def test_a_sink_that_tells_rows_apart_in_another_way_than_so_far_is_told(
    tmp_path: Path, kind: str, payload: dict[str, Any], said: str
) -> None:
    @sf.pipeline("orders")
    def upserting(flow: sf.Flow, *, output: str) -> None:
        rows = flow.source("events", sf.delta("/data/orders"), OfUser)
        rows.upsert("totals", sf.delta(output), keys=["user"])

    made = made_job(tmp_path)
    sink = Prepared(kind=kind, target="/data/totals", prev=None, rows=1, payload=payload)
    made.decide(sources=made.head().sources, sinks={"totals": sink}, outcomes={"totals": "committed"})

    def told(output: str) -> list[str]:
        check = made.opened().check(upserting, {"output": output}, allow_non_restored_state=True)
        return [warning for warning in check.warnings if "several rows of one key" in warning]

    if said:
        [warning] = told("/data/totals")
        assert (
            lacking(warning, (f"'totals' has {said}", "upserts by user", "a new table and a new uid")) == []
        )
    else:
        assert told("/data/totals") == []
    assert told("/data/elsewhere") == []


@pytest.mark.parametrize(
    ("kind", "wrote", "same", "other"),
    [
        (
            "postgres_append",
            "postgres://env:DB/public.k1",
            sf.postgres("public.k1", connection="postgresql://db.example/shop"),
            sf.postgres("public.m9", connection="env:DB", create=True),
        ),
        (
            "kafka_append",
            "kafka://one:9092/k1",
            sf.kafka("k1", bootstrap="two:9092"),
            sf.kafka("m9", bootstrap="one:9092"),
        ),
    ],
)
def test_another_table_or_topic_under_an_old_uid_is_refused_before_spark(
    tmp_path: Path, kind: str, wrote: str, same: Any, other: Any
) -> None:
    root = tmp_path / "root"
    made = MadeJob(root)
    made.batch(kind=kind, target=wrote)
    made.beat(ended=True)
    job = sf.Job(str(root), "orders")

    def into(target: Any) -> sf.Pipeline:
        @sf.pipeline("orders")
        def moved(flow: sf.Flow) -> None:
            events = flow.source("events", sf.delta(str(tmp_path)), "user long")
            events.append("totals", target)

        return moved

    said = f"sink 'totals' wrote {wrote}, and the pipeline now says {other}: put the name back, or give the sink a new uid"
    check = job.check(into(other), allow_non_restored_state=True)
    assert not check.compatible
    assert [problem for problem in check.problems if said in problem]
    assert check.sinks == {"totals": "incompatible"}
    assert job.check(into(same), allow_non_restored_state=True).sinks == {"totals": "continues"}
    with pytest.raises(IncompatibleError, match=f"^{re.escape(said)}"):
        job.run(into(other), options={"local_fsync": False}, allow_non_restored_state=True)


def test_a_topic_under_another_uid_is_no_table_and_may_be_another_topic(tmp_path: Path) -> None:
    made = MadeJob(tmp_path / "root")
    made.batch(kind="kafka_append", target="kafka://broker:9092/totals")
    made.beat(ended=True)

    @sf.pipeline("orders")
    def renamed(flow: sf.Flow) -> None:
        events = flow.source("events", sf.delta(str(tmp_path)), "user long")
        events.append("sums", sf.kafka("totals", bootstrap="broker:9092"))

    check = made.opened().check(renamed, allow_non_restored_state=True)
    [told] = [warning for warning in check.warnings if "begins in" in warning]
    for named in (
        "'sums' begins in Kafka topic totals",
        "unless that was made anew",
        "call it 'totals' again",
    ):
        assert named in told, told
    assert "--rewind-sinks" not in told, "a topic keeps its messages"


def test_another_folder_of_files_is_warned_of(tmp_path: Path) -> None:
    made_job(tmp_path)

    @sf.pipeline("orders")
    def of_files(flow: sf.Flow, *, input: str, output: str) -> None:
        flow.source("events", sf.files(input, "json"), "user int").append("totals", sf.delta(output))

    job = sf.Job(str(tmp_path), "orders")

    def warnings(**given: str) -> list[str]:
        check = job.check(of_files, given, allow_non_restored_state=True)
        return [warning for warning in check.warnings if "reads /data" in warning]

    assert warnings() == warnings(input="/data/orders") == []
    assert warnings(input="/data/other") == [
        (
            "source 'events' has read /data/orders and reads /data/other now, on top of what the job has: give another input another uid, and "
            "a folder that was moved its old path, as a link"
        )
    ]
    assert warnings(input="file:///data/x/../orders/") == []


def test_a_folder_under_another_name_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to("in")

    @sf.pipeline("orders")
    def of_files(flow: sf.Flow, *, input: str, output: str) -> None:
        flow.source("events", sf.files(input, "json"), "user int").append("totals", sf.delta(output))

    flow = of_files.build({"input": str(tmp_path / "link"), "output": "/out"})
    (told,) = compare(flow, "orders", None, read={"events": str(tmp_path / "in")}).warnings
    assert told == (
        f"source 'events' has read {tmp_path}/in and reads it as {tmp_path}/link now, under which Spark would read every file again, so "
        f"that a run refuses it: give it {tmp_path}/in, or, to read all once more, a new uid, and the operators behind it and all their other sources, too, and run once with --allow-non-restored-state"
    )


def test_only_parameters_that_the_pipeline_still_takes_are_known(tmp_path: Path) -> None:
    record = sf.Job(made_job(tmp_path).root, "orders").checkpoints()[-1]
    assert known_parameters(orders().function, record) == PARAMETERS

    @sf.pipeline("other")
    def other(flow: sf.Flow, *, input: str) -> None: ...

    assert known_parameters(other.function, record) == {"input": "/data/orders"}
    assert known_parameters(other.function, None) == {}


def test_abandoning_asks_the_probe_about_every_sink(tmp_path: Path) -> None:
    slot = made_job(tmp_path).batch(carried_out=False)
    job = sf.Job(str(tmp_path), "orders")
    done = job.abandon(slot, probe=lambda record: dict.fromkeys(record.sinks, True))
    assert (done.delivered, done.undelivered) == (("totals",), ())
    assert job.status().pending == []


def test_a_typing_error_in_a_slot_fences_nobody(tmp_path: Path) -> None:
    made = made_job(tmp_path)
    made.batch(carried_out=False)
    with refused(sf.UsageError, "the next one to carry out is 5"):
        sf.Job(str(tmp_path), "orders").abandon(4, probe=lambda record: {})
    made.writer.still_owner()


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    job = sf.Job(str(tmp_path / "root"), "orders")
    assert not job.exists
    for ask in (job.log, job.checkpoints, job.status, job.verify, job.garbage, job.collect, job.stop):
        with refused(sf.NotFoundError, "its jobs are: none"):
            ask()


def test_a_run_is_given_again_what_the_pipeline_cannot_do_without_but_never_what_has_a_default(
    tmp_path: Path,
) -> None:
    made_job(tmp_path)
    head = sf.Job(str(tmp_path), "orders").log().head

    @sf.pipeline("orders")
    def pipeline(flow: sf.Flow, *, input: str, output: str = "elsewhere") -> None: ...

    assert required_parameters(pipeline.function, head) == {"input": PARAMETERS["input"]}
    assert required_parameters(pipeline.function, None) == {}


def test_a_run_takes_root_and_credentials_of_its_job_and_the_rest_from_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("stateflow.spark.runner.run", asked.append)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stateflow.toml").write_text('checkpoint_dir = "/elsewhere"\nupload_threads = 7\n')
    job = sf.Job(str(tmp_path / "root"), "mine", storage_options={"region": "x"})
    job.run(orders_pipeline(), PARAMETERS, options={"trigger": "drain"})
    request = asked[0]
    assert (request.job, request.options.checkpoint_dir) == ("mine", str(tmp_path / "root"))
    assert dict(request.options.storage_options) == {"region": "x"}
    assert (request.options.upload_threads, request.options.trigger) == (7, "drain")


def test_a_run_takes_the_parameters_that_it_needs_from_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_job(tmp_path)
    asked: list[Any] = []
    monkeypatch.setattr("stateflow.spark.runner.run", asked.append)

    @sf.pipeline("orders")
    def pipeline(flow: sf.Flow, *, input: str, output: str = "elsewhere") -> None: ...

    sf.Job(str(tmp_path), "orders").run(pipeline)
    assert asked[0].parameters == {"input": PARAMETERS["input"]}
    with refused(sf.UsageError, "'input'"):
        sf.Job(str(tmp_path), "another").run(pipeline)


def test_a_clean_up_does_not_fail_for_the_marks_of_dag_runs(caplog: pytest.LogCaptureFixture) -> None:
    store = named_store("marks-of-dag-runs")
    made = made_job(store, batches=6, retained=2)

    def deny(call: Call) -> None:
        if "/scheduled/" in call.path:
            raise UnavailableError("permission denied")

    store.before = deny
    assert made.opened().collect(retained=2).removed
    assert "DAG runs of job orders" in caplog.text
    assert "permission denied" in caplog.text
