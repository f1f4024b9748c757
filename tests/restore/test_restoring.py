"""What a restore leaves in the log, and what it holds meanwhile; none of this needs Spark."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stateflow as sf
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.log import read_epochs
from stateflow.checkpoint.pins import list_pins, release
from stateflow.checkpoint.retention import Retention
from stateflow.config.options import Options
from stateflow.config.retention_rule import retention_rule
from stateflow.errors import CorruptError, FencedError, IncompatibleError, NotFoundError, UsageError
from stateflow.format.records import Owner, PartitionTime, Pin, Prepared, Record, encode
from stateflow.format.references import bases, references
from stateflow.jobs.job import Job
from stateflow.restore.plan import Restored
from stateflow.restore.planned import RestorePlan
from stateflow.savepoints.format import read_savepoint, read_savepoint_claim
from stateflow.storage.local import LocalStore
from tests.jobs.made import PARAMETERS, MadeJob, made_job, orders_pipeline
from tests.memory_store import Call, MemoryStore, named_store
from tests.refusals.refusal import refused


@dataclass
class Scene:
    """A job `orders` with checkpoints 2, 3 and 4 in a store whose every call can be seen."""

    folder: Path
    made: MadeJob

    @property
    def root(self) -> str:
        return self.made.root

    @property
    def store(self) -> MemoryStore:
        return named_store(str(self.folder).strip("/"))

    def job(self, name: str = "orders") -> Job:
        return self.made.opened(name)

    @property
    def options(self) -> Options:
        return self.made.options()

    def restore(self, origin: str, into: str = "orders", **request: Any) -> Restored:
        return self.plan(origin, into, **request).apply()

    def plan(self, origin: str, into: str = "orders", **request: Any) -> RestorePlan:
        return self.made.restore(origin, "" if into == "orders" else into, **request)

    def savepoint(self, name: str = "one") -> tuple[str, MemoryStore]:
        url = self.job().savepoint(options=self.options, to=f"{self.root}-{name}").url
        return url, named_store(url.removeprefix("memory://").strip("/"))

    def head(self, job: str = "orders") -> Record:
        head = self.job(job).log().head
        assert head is not None
        return head

    def held_at_the_decision(self, job: str = "orders") -> list[Pin]:
        """Fills as the restores to come are decided."""
        seen: list[Pin] = []

        def look(call: Call) -> None:
            if call.verb == "create" and call.path.endswith("_pending") and b"restore" in call.body:
                seen.extend(list_pins(self.store, self.job(job).layout))

        self.store.before = look
        return seen


def made_scene(folder: Path, *, batches: int = 3, small: bool = False) -> Scene:
    made = made_job(f"memory://{folder}", folder=folder, batches=batches, watermark=77, small=small)
    return Scene(folder, made)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return made_scene(tmp_path)


def test_an_older_checkpoint_comes_back_as_a_record_of_a_new_timeline(scene: Scene) -> None:
    old = scene.job().log().record(2)
    assert scene.restore("checkpoint:2").timeline == 2
    head = scene.head()
    assert (head.kind, head.based_on, head.timeline, head.origin) == ("restore", 2, 2, "checkpoint:2")
    assert (head.sources, head.watermark, head.shift) == (old.sources, 77, 0)
    assert head.operators["balance"].shards == old.operators["balance"].shards
    assert old.operators["balance"].hosts == ("here",)
    assert head.operators["balance"].hosts == ()
    assert scene.restore("checkpoint:4").timeline == 3
    assert scene.head().based_on == 4


def test_it_is_pinned_until_the_record_stands_and_let_go_then(scene: Scene) -> None:
    held = scene.held_at_the_decision()
    scene.restore("checkpoint:2")
    assert [(pin.slot, pin.kind) for pin in held] == [(2, "reader")]
    scene.restore("latest", "copy", from_job="orders")
    assert [(pin.slot, pin.kind) for pin in held[1:]] == [(scene.head().slot, "fork")]
    assert list_pins(scene.store, scene.job().layout) == []


def test_a_savepoint_that_is_restored_again_is_pinned_until_the_decision(scene: Scene) -> None:
    """By the record that names it: a collector of the job may be about to dispose of it."""
    url, _ = scene.savepoint()
    naming = scene.restore(url, claim_mode="claim").checkpoint
    held = scene.held_at_the_decision()
    scene.restore(url, claim_mode="claim")
    assert [(pin.slot, pin.kind) for pin in held] == [(naming, "reader")]


def when_it_claims(scene: Scene, act: Callable[[], object]) -> None:
    """Before the next claim of an epoch; what it does is not interrupted itself."""

    def look(call: Call) -> None:
        if call.verb == "create" and "/epochs/" in call.path:
            scene.store.before = None
            act()

    scene.store.before = look


def go_on_and_collect(scene: Scene) -> None:
    MadeJob(scene.root, run="later", retained=1).batches(2)
    scene.job().collect(1)


def test_what_was_let_go_and_collected_after_the_plan_is_not_restored(scene: Scene) -> None:
    def others() -> None:
        for pin in list_pins(scene.store, scene.job().layout):
            release(scene.store, scene.job().layout, pin.id)
        go_on_and_collect(scene)

    when_it_claims(scene, others)
    with refused(NotFoundError, "checkpoint 2 of job 'orders'"):
        scene.restore("checkpoint:2")
    assert scene.head().kind == "checkpoint"
    assert [finding for finding in scene.job().verify(deep=True) if finding.severity == "error"] == []
    assert list_pins(scene.store, scene.job().layout) == []


@pytest.mark.slow
def test_a_try_that_another_overtakes_at_any_moment_does_not_restore_a_second_time(tmp_path: Path) -> None:
    owner = Owner(run="the task")
    for moment in itertools.count():
        scene = made_scene(tmp_path / str(moment))
        scene.job().tag("kept", "checkpoint:2")
        began, others = len(scene.store.calls), list[int]()

        def look(
            call: Call, scene: Scene = scene, at: int = began + moment, others: list[int] = others
        ) -> None:
            if call.number == at:
                scene.store.before = None
                others.append(scene.restore("tag:kept", owner=owner).checkpoint)
                go_on_and_collect(scene)

        scene.store.before = look
        try:
            assert [scene.restore("tag:kept", owner=owner).checkpoint] == (others or [6])
        except FencedError:
            assert others
        assert [line.kind for line in scene.job().history()].count("restore") == 1
        if not others:
            break
        assert scene.head().kind == "checkpoint"
    assert moment > 50


def test_a_try_that_wakes_up_when_all_is_done_does_not_even_claim(scene: Scene) -> None:
    owner = Owner(run="the task")
    scene.job().tag("kept", "checkpoint:2")
    scene.restore("tag:kept", owner=owner)
    go_on_and_collect(scene)
    epochs = read_epochs(scene.store, scene.job().layout)
    with refused(FencedError, "another try of this restore", "'orders'"):
        scene.restore("tag:kept", owner=owner)
    assert read_epochs(scene.store, scene.job().layout) == epochs


def test_a_checkpoint_from_before_an_erasure_is_not_restored(scene: Scene) -> None:
    scene.job().tag("kept", "checkpoint:2")
    writer = scene.made.begin("eraser")
    writer.complete(writer.decide(Draft.continuing("erase", writer.parent)), {})
    for origin in ("checkpoint:2", "tag:kept"):
        with refused(UsageError, "checkpoint 2 of job 'orders'", "a key", "record 6"):
            scene.restore(origin)
    assert scene.restore("latest").timeline == 2


def test_a_key_that_is_erased_between_plan_and_claim_does_not_come_back(scene: Scene) -> None:
    def erase() -> None:
        writer = scene.made.begin("eraser")
        writer.complete(writer.decide(Draft.continuing("erase", writer.parent)), {})

    when_it_claims(scene, erase)
    with refused(UsageError, "still holds a key"):
        scene.restore("checkpoint:2")
    assert scene.head().kind == "erase"


def test_a_record_without_state_is_not_tagged(scene: Scene) -> None:
    fence = next(r.slot for r in scene.job().log().chain if r.kind == "fence")
    with refused(NotFoundError, f"record {fence} of job 'orders'", "no complete checkpoint"):
        scene.job().tag("v1", f"checkpoint:{fence}")
    pending = scene.made.batch(carried_out=False)
    with refused(NotFoundError, "not carried out yet"):
        scene.job().tag("v1", f"checkpoint:{pending}")
    assert list_pins(scene.store, scene.job().layout) == []


def test_a_fork_has_files_of_its_own_and_stays_above_what_its_lists_have(scene: Scene) -> None:
    done = scene.restore("latest", "copy", from_job="orders")
    copy, head = scene.head("copy"), scene.head()
    assert done.copied_bytes == sum(ref.size for ref in references(head))
    assert copy.based_on == 0
    assert copy.slot + copy.shift == head.slot
    assert {ref.path.partition("/")[0] for ref in references(copy)} == {"copy"}
    scene.restore("latest", "again", from_job="copy")
    again = scene.head("again")
    assert again.slot + again.shift == head.slot


def test_event_time_begins_anew_when_it_is_asked_to(scene: Scene) -> None:
    scene.restore("latest", reset_watermark=True)
    head = scene.head()
    assert head.watermark is None
    assert [(s.event_time, s.active) for s in head.sources.values()] == [(None, None)]
    assert scene.job().log().record(4).sources["events"].event_time is not None


def test_each_partition_goes_on_from_where_it_is_unless_event_time_begins_anew(scene: Scene) -> None:
    known = {"orders/0": PartitionTime(900, 7), "orders/1": PartitionTime(None, 5)}
    scene.made.partitions = known
    scene.made.batch()
    scene.made.beat(ended=True)

    def partitions(job: str) -> dict[str, PartitionTime]:
        return scene.head(job).sources["events"].partitions

    url, _ = scene.savepoint()
    for mode in ("no_claim", "claim"):
        scene.restore(url, mode.replace("_", "-"), claim_mode=mode)
        assert partitions(mode.replace("_", "-")) == known
    scene.restore("latest", "fork", from_job="orders")
    assert partitions("fork") == known
    scene.restore("latest", "anew", from_job="orders", reset_watermark=True)
    assert partitions("anew") == {}
    scene.restore("latest")
    assert partitions("orders") == known
    scene.restore("latest", reset_watermark=True)
    assert partitions("orders") == {}


def test_another_parallelism_comes_with_it(scene: Scene) -> None:
    scene.restore("latest", parallelism=4)
    assert len(scene.head().operators["balance"].assignment) == 4


def test_files_in_a_container_become_files(scene: Scene) -> None:
    url = scene.job().savepoint(options=scene.options, to=f"{scene.root}-packed", max_files=1).url
    scene.restore(url, "copy")
    assert {ref.offset for ref in references(scene.head("copy"))} == {None}
    assert [f.text for f in scene.job("copy").verify(deep=True)] == []


class TestClaiming:
    def test_a_claimed_savepoint_is_named_and_not_copied(self, scene: Scene) -> None:
        url, place = scene.savepoint()
        before = set(place.snapshot())
        assert scene.restore(url, "copy", claim_mode="claim").copied_bytes == 0
        claim = read_savepoint_claim(place)
        assert claim is not None
        assert claim.name == "copy"
        assert set(place.snapshot()) == {*before, "_claimed"}
        assert bases([scene.head("copy")]) == {url}
        assert scene.store.list("copy/shared/") == []

    def test_claimed_again_it_is_held_by_the_record_that_names_it(self, scene: Scene) -> None:
        url, _ = scene.savepoint()
        scene.restore(url, "copy", claim_mode="claim")
        naming = scene.head("copy").slot
        held = scene.held_at_the_decision("copy")
        scene.restore(url, "copy", claim_mode="claim")
        assert [pin.slot for pin in held] == [naming]
        assert list_pins(scene.store, scene.job("copy").layout) == []

    def test_one_whose_state_is_all_in_its_metadata_is_of_no_use_once_restored(self, tmp_path: Path) -> None:
        small = made_scene(tmp_path / "small", batches=1, small=True)
        url, place = small.savepoint()
        small.restore(url, "copy", claim_mode="claim")
        assert place.list("") == []
        url, place = small.savepoint("two")
        small.restore(url, "other")
        assert read_savepoint(place).kind == "native"

    def test_one_whose_state_was_copied_before_is_claimed_and_of_no_use(self, tmp_path: Path) -> None:
        """The same task was to leave it alone at its first try."""
        small, owner = made_scene(tmp_path, small=True), Owner(run="the task")
        url, place = small.savepoint()
        small.restore(url, "copy", owner=owner)
        assert read_savepoint_claim(place) is None
        small.restore(url, "copy", owner=owner, claim_mode="claim")
        assert place.list("") == []

    def test_one_that_an_older_record_names_stays(self, scene: Scene) -> None:
        url, place = scene.savepoint()
        scene.restore(url, "copy", claim_mode="claim")
        before = place.snapshot()
        scene.restore(url, "copy", claim_mode="claim")
        assert place.snapshot() == before


class TestCopying:
    def copying(self, place: MemoryStore, do: Any) -> None:
        """Does something when the first file is fetched."""

        def act(call: Call) -> None:
            if call.verb == "download":
                place.before = None
                do()

        place.before = act

    def test_one_that_is_replaced_meanwhile_is_not_taken_for_what_was_asked_for(self, scene: Scene) -> None:
        url, place = scene.savepoint()
        _, other = scene.savepoint("two")
        # The same files under the same names, of another savepoint: sizes tell nothing.
        self.copying(place, lambda: place.put("_metadata", other.read("_metadata")))
        with refused(NotFoundError, "replaced while it was copied", "restore again"):
            scene.restore(url, "copy")
        assert scene.job("copy").log().head is None

    def test_one_that_loses_a_file_meanwhile_is_named(self, scene: Scene) -> None:
        url, place = scene.savepoint()
        lost = [entry.path for entry in place.list("state/")]
        self.copying(place, lambda: place.delete(lost))
        with refused(CorruptError, f"{url} is not whole", "restore another snapshot"):
            scene.restore(url, "copy")
        assert scene.job("copy").log().head is None

    def test_one_that_is_disposed_of_meanwhile_is_gone(self, scene: Scene) -> None:
        url, place = scene.savepoint()
        self.copying(place, lambda: place.delete([entry.path for entry in place.list("")]))
        with refused(NotFoundError, "there is no savepoint"):
            scene.restore(url, "copy")

    def test_on_a_disk_it_is_linked(self, tmp_path: Path) -> None:
        made_job(tmp_path / "root", batches=1).restore("latest", "copy", from_job="orders").apply()
        store = LocalStore(tmp_path / "root")
        assert {(tmp_path / "root" / entry.path).stat().st_nlink for entry in store.list("copy/shared/")} == {
            2
        }


def outputs(scene: Scene, origin: str) -> list[str]:
    return [
        sink.note
        for sink in scene.job().restore(origin, orders_pipeline(), PARAMETERS, options=scene.options).sinks
    ]


def test_a_plan_says_that_output_comes_again_only_when_it_does(scene: Scene) -> None:
    url, _ = scene.savepoint()
    assert outputs(scene, url) == ["has nothing newer than the snapshot"]
    assert outputs(scene, "latest") == ["has nothing newer than the snapshot"]
    assert "will be delivered again" in outputs(scene, "checkpoint:2")[0]
    scene.made.batch()
    assert "will be delivered again" in outputs(scene, url)[0]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            "append",
            (
                "cannot be taken back and keeps its output up to slot 4: what followed the snapshot will be delivered again, and the rows of slots 3..4 "
                "will be there twice: give the sink a new target and a new uid, or take them out yourself before the job goes on"
            ),
        ),
        (
            "upsert",
            (
                "cannot be taken back and keeps its output up to slot 4: what followed the snapshot will be delivered again, and replaces the rows of "
                "its keys once more"
            ),
        ),
        (
            "feed",
            (
                "cannot be taken back and keeps its rows of the feed up to slot 4: leave them there, since the next batch tells what the restore "
                "changes; if it cannot, its run warns"
            ),
        ),
    ],
)
@pytest.mark.parametrize("server", ["postgres", "kafka"])
def test_a_plan_says_which_outputs_cannot_be_taken_back_and_what_becomes_of_their_rows(
    tmp_path: Path, server: str, kind: str, said: str
) -> None:
    class Seen(sf.KeyedProcess[int, Any, Any]):
        times = sf.ValueState(int, default=0)

        def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
            yield from ()

    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        events = flow.source("events", sf.delta(str(tmp_path)), "user long")
        target: Any = (
            sf.kafka("totals", bootstrap="one:9092") if server == "kafka" else sf.postgres("public.totals")
        )
        if kind == "append":
            events.append("totals", target)
        elif kind == "feed":
            events.key_by("user").process("seen", Seen, output="user long")
            flow.state_changes("seen").append("totals", target)
        else:
            events.upsert("totals", target, keys="user")

    place = "kafka://one:9092/totals" if server == "kafka" else "postgres://environment/public.totals"
    made = MadeJob(tmp_path / "root")
    made.batches(3, ended=True, kind=f"{server}_{'append' if kind == 'feed' else kind}", target=place)
    given: dict[str, Any] = {"options": made.options(), "allow_non_restored_state": True}
    job = made.opened()
    plan = job.restore("checkpoint:2", orders, {}, rewind_sinks=True, **given)
    assert [sink.note for sink in plan.sinks] == [said]
    assert said in str(plan)
    plan = job.restore("checkpoint:2", orders, {}, **given)
    assert [sink.note for sink in plan.sinks] == [said.removeprefix("cannot be taken back and ")]


@pytest.mark.parametrize(
    ("kind", "unknown"),
    [
        ("delta_append", "unless somebody else has written to it since"),
        ("iceberg_upsert", "if it still can go there"),
        ("files_append", "if it still can go there"),
    ],
)
def test_a_plan_says_of_which_way_back_only_the_restore_itself_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, unknown: str
) -> None:
    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        events = flow.source("events", sf.delta(str(tmp_path)), "user long")
        if kind == "iceberg_upsert":
            events.upsert("totals", sf.iceberg("shop.totals"), keys="user")
        else:
            place = str(tmp_path / "totals")
            events.append("totals", sf.files(place, "json") if kind == "files_append" else sf.delta(place))

    made = MadeJob(tmp_path / "root")
    made.batches(3, ended=True, kind=kind, target=str(tmp_path / "totals"))
    monkeypatch.setattr("stateflow.restore.planning.rewindable", lambda prepared: True)
    plan = made.opened().restore(
        "checkpoint:2", orders, {}, rewind_sinks=True, options=made.options(), allow_non_restored_state=True
    )
    said = f"back to slot 2, {unknown}, which only --yes finds out"
    assert [sink.note for sink in plan.sinks] == [said]
    assert said in str(plan)


def test_a_plan_for_a_name_that_was_deleted_is_refused(scene: Scene) -> None:
    url, _ = scene.savepoint()
    scene.job().delete()
    with pytest.raises(UsageError, match="was deleted and leaves a tombstone"):
        outputs(scene, url)


@pytest.mark.parametrize("small", [False, True])
def test_a_savepoint_that_took_the_place_of_the_planned_one_is_neither_claimed_nor_deleted(
    tmp_path: Path, *, small: bool
) -> None:
    scene = made_scene(tmp_path, small=small)
    url, there = scene.savepoint()
    planned = scene.job("copy").restore(
        url, orders_pipeline(), {**PARAMETERS, "output": "/data/copy"},
        options=scene.options, claim_mode="claim",
    )  # fmt: skip
    there.delete([entry.path for entry in there.list("")])
    scene.made.batch()
    scene.savepoint()
    newer = read_savepoint(there)
    with refused(NotFoundError, "replaced by another", "plan the restore again"):
        planned.apply()
    assert read_savepoint(there) == newer
    assert read_savepoint_claim(there) is None
    assert not scene.job("copy").exists or scene.job("copy").log().head is None


def test_a_plan_tells_how_many_key_groups_there_were_and_will_be(scene: Scene) -> None:
    plan = scene.plan("checkpoint:2")
    assert "key groups" not in str(plan)
    more = replace(plan, request=replace(plan.request, max_parallelism=1024))
    assert ", key groups 128 -> 1024\n" in str(more)


def test_a_restore_goes_by_the_clock_and_the_ids_of_its_job(scene: Scene) -> None:
    numbers = itertools.count()
    job = Job(scene.root, "orders", clock=lambda: 1_234_567_000, ids=lambda: f"id{next(numbers)}")
    job.restore("checkpoint:2", orders_pipeline(), PARAMETERS, options=scene.options).apply()
    head = scene.head()
    assert head.at == 1_234_567_000
    assert head.statistics["trigger_timestamp"] == 1_234_567
    assert head.writer.startswith("id")


# What stays of the past


def test_a_restore_lets_nothing_go_that_the_runs_of_the_job_keep(scene: Scene) -> None:
    """Whoever restores seldom gives the retention of the job's runs, and what is let go once never comes back."""
    before = [record.slot for record in scene.job().checkpoints()]
    options = replace(scene.options, retained_checkpoints=1)
    scene.job().restore("checkpoint:3", orders_pipeline(), PARAMETERS, options=options).apply()
    scene.job().collect(1)
    assert [record.slot for record in scene.job().checkpoints()] == before
    scene.made.retained = 1
    scene.made.begin("next")
    scene.made.batches(2, ended=True)
    scene.job().collect(1)
    assert not set(before) & {record.slot for record in scene.job().checkpoints()}


def test_a_checkpoint_that_the_rule_keeps_behind_the_floor_is_restored(scene: Scene) -> None:
    made = scene.made
    made.tick = 5 * 60_000_000
    rule = Retention(1, rule=retention_rule("hourly for 3000 weeks"), now=made.clock())
    made.begin("by the rule", rule)
    for _ in range(6):
        made.batch()
        made.writer.collect(rule, orphans=True)
    made.beat(ended=True)
    behind = made.log().kept
    old = made.log().record(behind[0])
    scene.restore(f"checkpoint:{behind[0]}")
    assert scene.head().operators["balance"].shards == old.operators["balance"].shards
    scene.job().collect(1)
    assert scene.job().verify(deep=True) == []


class TestWayBackToASavepoint:
    """`--rewind-sinks` with a savepoint: only with one of the job itself that says what its outputs had."""

    @pytest.fixture(autouse=True)
    def rewindable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("stateflow.restore.planning.rewindable", lambda prepared: True)

    def test_the_plan_takes_the_outputs_to_the_slot_that_they_had(self, scene: Scene) -> None:
        url, _ = scene.savepoint()
        had = scene.job().log().last_commits["totals"]
        scene.made.batch()
        scene.made.beat(ended=True)
        [sink] = scene.plan(url, rewind_sinks=True).sinks
        assert (sink.action, sink.back_to) == ("rewinds", had)

    @pytest.mark.parametrize("change", [{"job": "0" * 32}, {"writer": "somebody else's"}, {"slot": 9}])
    def test_one_of_another_job_or_of_a_copy_of_this_one_is_refused(
        self, scene: Scene, change: dict[str, Any]
    ) -> None:
        url, place = scene.savepoint()
        made = read_savepoint(place)
        record = msgspec.structs.replace(made.record, **change)
        place.put("_metadata", encode(msgspec.structs.replace(made, record=record)))
        with refused(UsageError, "one of its own checkpoints or savepoints", "is not one"):
            scene.plan(url, rewind_sinks=True)

    def test_one_that_does_not_say_what_was_delivered_is_refused(self, scene: Scene) -> None:
        url, place = scene.savepoint()
        made = msgspec.structs.replace(read_savepoint(place), last_commits=None)
        place.put("_metadata", encode(made))
        with refused(UsageError, "an older stateflow", "leave it out"):
            scene.plan(url, rewind_sinks=True)
        scene.plan(url)

    def test_one_that_does_not_say_it_counts_all_up_to_it_as_delivered(self, scene: Scene) -> None:
        early, late = (self.unknowing(scene, checkpoint) for checkpoint in ("2", "4"))
        way_back = Prepared("delta_rewind", "/data/totals", back_to=2)
        sources, operators = scene.head().sources, scene.head().operators
        restore = {"sources": sources, "operators": operators, "sinks": {"totals": way_back}}
        scene.made.decide(kind="restore", based_on=2, outcomes={"totals": "committed"}, **restore)
        scene.made.beat(ended=True)
        with refused(IncompatibleError, "'totals'", "slots 3 to 4", "below 3") as caught:
            scene.plan(late)
        assert "--rewind-sinks" not in str(caught.value), "which would be refused"
        scene.plan(early)

    def unknowing(self, scene: Scene, checkpoint: str) -> str:
        """A savepoint as an older stateflow has imported it."""
        url = f"{scene.root}-of-{checkpoint}"
        scene.job().savepoint(options=scene.options, checkpoint=checkpoint, to=url)
        place = named_store(url.removeprefix("memory://").strip("/"))
        place.put("_metadata", encode(msgspec.structs.replace(read_savepoint(place), last_commits=None)))
        return url


def _erased(scene: Scene) -> int:
    writer = scene.made.begin("eraser")
    record = writer.decide(Draft.continuing("erase", writer.parent))
    writer.complete(record, {})
    return record.slot


def _notes(plan: RestorePlan) -> list[str]:
    return [each for each in plan.warnings if "older than the erasure" in each]


def test_a_savepoint_from_before_an_erasure_is_noted_in_each_form(scene: Scene) -> None:
    url, _ = scene.savepoint()
    assert _notes(scene.plan(url)) == []
    slot = _erased(scene)
    plan = scene.plan(url)
    [note] = _notes(plan)
    assert note.startswith(f"the snapshot is older than the erasure of record {slot} of job orders: a key")
    assert note in str(plan)
    assert "older than the erasure" in plan.markdown()
    assert note in plan.document()["warnings"]
    newer, _ = scene.savepoint("newer")
    assert _notes(scene.plan(newer)) == []


def test_an_erasure_is_noted_when_its_record_is_collected(scene: Scene) -> None:
    url, _ = scene.savepoint()
    slot = _erased(scene)
    scene.made.retained = 1
    scene.made.begin("next")
    scene.made.batches(2, ended=True)
    scene.job().collect(1)
    assert slot not in [record.slot for record in scene.job().log().chain]
    assert len(_notes(scene.plan(url))) == 1


def test_a_new_job_is_told_of_the_erasures_of_the_job_whose_savepoint_it_takes(scene: Scene) -> None:
    url, _ = scene.savepoint()
    _erased(scene)
    assert len(_notes(scene.plan(url, "fork"))) == 1
    assert _notes(scene.plan("latest", "fork", from_job="orders")) == []


def test_a_savepoint_comes_back_as_a_new_job_though_its_own_job_is_damaged(scene: Scene) -> None:
    url, _ = scene.savepoint()
    scene.store.put("orders/job", b"damaged")
    [note] = [each for each in scene.plan(url, "fork").warnings if "erased" in each]
    assert note.startswith("whether a key was erased behind the snapshot is not known: the log of job orders")
    assert scene.restore(url, "fork").checkpoint


def test_a_snapshot_of_a_fork_is_compared_by_time(scene: Scene) -> None:
    scene.restore("latest", "fork", from_job="orders")
    older = scene.job("fork").savepoint(options=scene.options, to=f"{scene.root}-older").url
    scene.made.clock = scene.job().clock  # type: ignore[method-assign]
    _erased(scene)
    [note] = _notes(scene.plan(older))
    assert "of job orders" in note
    scene.restore("latest", "fork")
    newer = scene.job("fork").savepoint(options=scene.options, to=f"{scene.root}-newer").url
    assert _notes(scene.plan(newer)) == []
