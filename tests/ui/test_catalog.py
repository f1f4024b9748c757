"""What is known without waiting: from memory, read at a bounded pace, equal to what the library itself would say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

import pytest
import xxhash
from msgspec import structs

from stateflow.checkpoint.control import read_heartbeat, read_progress
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.log import read_log
from stateflow.checkpoint.pins import list_pins
from stateflow.checkpoint.statistics import HistoryLine, history, summary
from stateflow.config.options import Options
from stateflow.config.retention_rule import retention_rule
from stateflow.errors import NotFoundError, UnavailableError, UsageError
from stateflow.format.layout import JobLayout
from stateflow.format.records import CATALOG_NAME
from stateflow.observe.status import status_of
from stateflow.observe.timelines import audit, spans
from stateflow_ui import catalog as catalog_module
from stateflow_ui import details, documents
from stateflow_ui.cached_value import CachedValue
from stateflow_ui.job_reader import NEAR_RECORDS, JobFacts, JobReader, together
from stateflow_ui.reader_threads import ReaderThreads
from stateflow_ui.root import Root
from stateflow_ui.stale_after import StaleAfter
from tests.jobs.records import Made
from tests.memory_store import Call, MemoryStore, named_store
from tests.protocol.scenario import World
from tests.refusals.refusal import refused
from tests.ui.catalogs import (
    MICROS,
    NOW,
    Clock,
    Gate,
    catalog_of,
    fill,
    heads,
    look,
    open_job,
    root_at,
    settle,
    store,
)

__all__ = ["store"]

# Equal to what the library says


def by_the_library(world: World) -> tuple[object, list[HistoryLine], object]:
    """The status, the lines and the graph, all of it read anew."""
    log = read_log(world.store, world.layout)
    lines = history(world.store, world.layout, log=log)
    pins = list_pins(world.store, world.layout)
    status = status_of(
        log,
        world.store.url,
        heartbeat=read_heartbeat(world.store, world.layout, log.newest_epoch),
        progress=read_progress(world.store, world.layout, log.newest_epoch),
        pins=pins,
        lines=lines,
        now=NOW,
        patience=10 * MICROS,
    )
    standing = {record.slot for record in log.chain}
    return asdict(status), lines, list(spans(lines, status.tags, status.head, standing))


def assert_equal(facts: JobFacts, world: World) -> None:
    status, lines, drawn = by_the_library(world)
    assert asdict(facts.status) == status
    assert [facts.lines.document(line) for line in facts.lines.all] == [
        {**{name: getattr(line, name) for name in line.__struct_fields__}} for line in lines
    ]
    assert facts.spans == drawn
    acts = details.graph(facts, [], NOW)["audit"]
    assert [(act["id"], act["sinks"], act["metrics"]) for act in acts] == [
        (line.id, line.sinks, line.metrics) for line in audit(lines)
    ]
    shown = documents.job(facts, NOW, StaleAfter(""), "")
    assert shown["summary"] == shown["status"]["checkpoints"] == structs.asdict(summary(lines))


SIZED = {
    "batch_size": {"target_ms": 30_000, "streams": [{"source": "numbers", "unit": "rows", "most": 1}]},
    "failed_tries": 3,
}


def with_catalog_names(draft: Draft, noted: dict[str, object]) -> Draft:
    sinks = {
        uid: structs.replace(sink, payload={**sink.payload, CATALOG_NAME: f"lake.{uid}"})
        for uid, sink in draft.sinks.items()
    }
    return structs.replace(draft, sinks=sinks, statistics=noted)


def story(world: World) -> Iterator[str]:
    """Claims, batches, a pending record, a restore, a tag, collections, a fenced run: with a look after each."""
    writer = world.claim("first")
    yield "a fence"
    for _ in range(3):
        world.batch(writer)
        yield "a batch"
    world.tag(3, "v1")
    yield "a tag"
    permit = writer.decide(world.prepare(writer))
    yield "decided and not carried out"
    writer.complete(permit, world.commit(permit.record), {"processed_rows": 1})
    yield "carried out: the record was seen before its outcome"
    for _ in range(4):
        world.batch(writer)
    world.collect(2)
    yield "a collection"
    writer = world.claim("second", retained=2)
    yield "another run"
    writer.complete(writer.decide(world.rewind(world.log().record(3))), {})
    yield "a restore"
    world.batch(writer)
    yield "a batch"
    for noted in (SIZED, *[{"input_free": True}] * 6):
        permit = writer.decide(with_catalog_names(world.prepare(writer), noted))
        writer.complete(permit, world.commit(permit.record))
        yield "a batch with a target after failed tries, and batches for timers alone"
    writer.complete(writer.decide(world.rewind(world.log().checkpoints[-2])), {})
    yield "a restore, which has no outputs"
    writer.decide(world.prepare(writer))
    world.abandon(writer.next_slot - 1, "its table is gone")
    yield "an output that was given up"
    writer = world.claim("third", retained=2)
    world.batch(writer)
    world.untag("v1")
    writer.collect(2, orphans=True)
    yield "collected again"


def test_a_job_is_told_as_the_library_tells_it_at_every_step() -> None:
    world = World(MemoryStore("story"))
    reader = JobReader(
        "main", world.store, "orders", patience=10, clock=lambda: NOW, fetchers=ReaderThreads(2, "test")
    )
    for step in story(world):
        fresh = JobReader(
            "main", world.store, "orders", patience=10, clock=lambda: NOW, fetchers=ReaderThreads(2, "test")
        )
        assert_equal(reader.read(whole=True), world), step
        assert_equal(fresh.read(whole=True), world), step


def test_what_has_not_changed_is_not_read_again() -> None:
    store = MemoryStore("unchanged")
    world = World(store)
    writer = world.claim()
    for _ in range(20):
        world.batch(writer)
    reader = JobReader(
        "main", store, "orders", patience=10, clock=lambda: NOW, fetchers=ReaderThreads(2, "test")
    )
    reader.read(whole=True)

    def records_read(act: Callable[[], object]) -> list[str]:
        before = len(store.calls)
        act()
        return [call.path for call in store.calls[before:] if call.verb == "read" and "/chk-" in call.path]

    assert records_read(lambda: reader.read(whole=True)) == []
    world.batch(writer)
    slot = world.layout.slot(writer.next_slot - 1)
    assert records_read(lambda: reader.read(whole=True)) == [f"{slot}_pending", f"{slot}_metadata"]


def test_a_job_made_anew_under_an_old_name_is_another(store: MemoryStore) -> None:
    fill(store, Made("orders", standing=9, collected=20))
    reader = JobReader(
        "main", store, "orders", patience=10, clock=lambda: NOW, fetchers=ReaderThreads(2, "test")
    )
    assert reader.read(whole=True).status.uuid == "orders-uuid"
    for entry in store.list("orders/"):
        # The same names and sizes, other content.
        body = (
            store.read(entry.path)
            .replace(b"orders-uuid", b"ORDERS-UUID")
            .replace(b"/data/orders", b"/data/ORDERS")
        )
        store.put(entry.path, with_checksum(body))
    anew = reader.read(whole=True)
    assert (anew.status.uuid, anew.status.head) == ("ORDERS-UUID", 29)
    assert anew.status.parameters["input"] == "/data/ORDERS"


def with_checksum(body: bytes) -> bytes:
    head, _, text = body.partition(b"\n")
    words = head.split(b" ")
    if words[0] != b"stateflow":
        return body
    checksum = xxhash.xxh3_64_hexdigest(text[: int(words[3])]).encode()
    return b" ".join([words[0], words[1], checksum, words[3]]) + b"\n" + text


def test_a_damaged_record_is_named_and_the_rest_is_told(store: MemoryStore) -> None:
    fill(store, Made("orders", standing=5))
    path = JobLayout("orders").pending(2)
    store.put(path, b"no record")
    facts = open_job(catalog_of([root_at(store)], Clock()))
    assert facts.unreadable == (path,)
    assert facts.status.head == 5


def test_a_clean_up_is_foreseen_by_the_connection_s_retention(store: MemoryStore) -> None:
    fill(store, Made("orders", 12, interval=3600))
    rule = retention_rule("hourly for 3000 weeks")
    root, by_rule = root_at(store), replace(root_at(store), options=Options(retention=rule))

    plain, ruled = (
        details.storage(asyncio.run(catalog_of([each], Clock()).storage("main", "orders", 1)))
        for each in (root, by_rule)
    )

    assert (plain["retention"], ruled["retention"]) == ("", "hourly for 3000 weeks")
    assert not any(reason.startswith("rule: ") for reason in plain["roots"])
    assert any(reason.startswith("rule: ") for reason in ruled["roots"])


def test_from_afar_only_the_newest_records_are_read(store: MemoryStore) -> None:
    fill(store, Made("orders", standing=NEAR_RECORDS + 50, collected=1000))
    reader = JobReader(
        "main", store, "orders", patience=10, clock=lambda: NOW, fetchers=ReaderThreads(2, "test")
    )
    before = len(store.calls)
    near = reader.read(whole=False)
    assert len(store.calls) - before < 2 * NEAR_RECORDS + 20
    assert not near.whole
    assert near.log.gaps == (), "what nobody asked for is not missing"
    with refused(UsageError, "only the newest records", "job 'orders'"):
        near.log.require_sound()
    assert near.status.head == NEAR_RECORDS + 1050
    assert len(near.log.chain) == NEAR_RECORDS
    whole = reader.read(whole=True)
    assert (whole.whole, len(whole.lines.all)) == (True, NEAR_RECORDS + 1050)
    assert asdict(near.status) | {"checkpoints": 0} == asdict(whole.status) | {"checkpoints": 0}


def test_reading_many_records_from_afar_at_once_keeps_their_order_and_tells_the_first_failure() -> None:
    readers = ReaderThreads(4, "test")
    assert together(lambda number: number * 2, range(100), readers) == list(range(0, 200, 2))

    def fails(number: int) -> int:
        if number == 7:
            raise UnavailableError("gone")
        return number

    with refused(UnavailableError, "gone"):
        together(fails, range(100), readers)


# From memory


def test_what_is_known_is_answered_without_touching_a_store(store: MemoryStore) -> None:
    fill(store, Made("orders"), Made("clicks"))
    catalog = catalog_of([root_at(store)], Clock())
    _, jobs = look(catalog)
    assert heads(jobs) == {"clicks": 5, "orders": 5}
    open_job(catalog)
    before = len(store.calls)
    look(catalog)
    open_job(catalog)
    assert len(store.calls) == before


def test_the_old_is_shown_while_the_new_is_read(store: MemoryStore) -> None:
    fill(store, Made("orders"))
    clock = Clock()
    catalog = catalog_of([root_at(store)], clock)
    look(catalog)
    fill(store, Made("orders", standing=6))
    clock.seconds += 12
    with Gate(store) as gate:
        _, jobs = look(catalog)
        assert heads(jobs) == {"orders": 5}
        assert gate.reached.wait(60), "a reading has begun"
    settle(catalog)
    assert heads(look(catalog)[1]) == {"orders": 6}


def test_a_job_is_read_once_at_a_time_however_many_ask(store: MemoryStore) -> None:
    fill(store, Made("orders"))
    clock = Clock()
    catalog = catalog_of([root_at(store)], clock, patience=0.05)
    before = len(store.calls)
    with Gate(store) as gate:
        for _ in range(20):
            look(catalog)
        assert gate.reached.wait(60)
        assert len(store.calls) - before == 1
    settle(catalog)


def test_no_request_holds_up_the_event_loop(store: MemoryStore) -> None:
    fill(store, Made("orders"))
    catalog = catalog_of([root_at(store)], Clock())

    async def both() -> JobFacts:
        with Gate(store) as gate:
            asked = asyncio.create_task(catalog.job("main", "orders"))
            await asyncio.to_thread(gate.reached.wait, 60)
            # Whoever is here while the store does not answer could never open it, if the loop were held up.
            gate.open.set()
            return await asked

    assert asyncio.run(both()).status.head == 5


def test_nothing_is_read_while_nobody_looks(store: MemoryStore) -> None:
    fill(store, Made("orders"))
    clock = Clock()
    catalog = catalog_of([root_at(store)], clock)
    look(catalog)
    before = len(store.calls)
    clock.seconds += catalog_module.WATCHED + 1
    catalog.refresh_due()
    assert len(store.calls) == before
    look(catalog)
    settle(catalog)
    assert len(store.calls) > before


def test_jobs_come_and_go_with_the_root(store: MemoryStore) -> None:
    fill(store, Made("orders"))
    clock = Clock()
    catalog = catalog_of([root_at(store)], clock)
    assert set(look(catalog)[1]) == {"orders"}
    fill(store, Made("clicks"))
    store.delete([entry.path for entry in store.list("orders/")])
    clock.seconds += 100
    look(catalog)
    settle(catalog)
    assert heads(look(catalog)[1]) == {"clicks": 5}
    with refused(NotFoundError, "no job 'orders'"):
        open_job(catalog)


def test_connections_come_and_go(store: MemoryStore) -> None:
    fill(store, Made("orders"))
    clock = Clock()
    roots = [root_at(store)]
    catalog = catalog_of(roots, clock)
    assert set(look(catalog)[0]) == {"main"}
    roots[:] = [root_at(store, "other"), Root("bare", "", problem="connection 'bare' has no checkpoint root")]
    clock.seconds += 100
    look(catalog)
    settle(catalog)
    roots, jobs = look(catalog)
    assert set(roots) == {"other", "bare"}
    assert roots["bare"].error == "connection 'bare' has no checkpoint root"
    assert [job.conn_id for job in jobs.values()] == ["other"]
    with pytest.raises(UnavailableError, match="connection 'bare' has no checkpoint root"):
        open_job(catalog, conn_id="bare")


# When a store is away


def test_a_root_that_fails_says_so_and_the_others_go_on(store: MemoryStore) -> None:
    fill(store, Made("orders"))
    away = named_store("ui-away")

    def refuse(call: Call) -> None:
        raise UnavailableError("memory://ui-away refused to list")

    away.before = refuse
    roots, jobs = look(catalog_of([root_at(away, "away"), root_at(store)], Clock()))
    assert roots["away"].error == "memory://ui-away refused to list"
    assert roots["main"].error == ""
    assert heads(jobs) == {"orders": 5}


def test_what_was_known_of_a_root_stays_when_it_goes_away(store: MemoryStore) -> None:
    fill(store, Made("orders"))
    clock = Clock()
    catalog = catalog_of([root_at(store)], clock)
    look(catalog)
    open_job(catalog)

    def refuse(call: Call) -> None:
        raise UnavailableError("the network is down")

    store.before = refuse
    clock.seconds += 100
    look(catalog)
    settle(catalog)
    roots, jobs = look(catalog)
    assert roots["main"].error == "the network is down"
    assert heads(jobs) == {"orders": 5}
    assert open_job(catalog).status.head == 5
    assert catalog.error_of("main", "orders") == "the network is down"
    store.before = None
    clock.seconds += 100
    open_job(catalog)
    settle(catalog)
    look(catalog)
    settle(catalog)
    assert look(catalog)[0]["main"].error == ""
    assert catalog.error_of("main", "orders") == ""


def test_a_root_that_is_away_is_not_asked_for_each_of_its_jobs(store: MemoryStore) -> None:
    fill(store, *(Made(f"job-{number}", standing=1) for number in range(20)))
    clock = Clock()
    catalog = catalog_of([root_at(store)], clock)
    look(catalog)

    def refuse(call: Call) -> None:
        raise UnavailableError("the network is down")

    store.before = refuse
    clock.seconds += 11  # the names are due, the jobs are not old
    look(catalog)
    settle(catalog)
    before = len(store.calls)
    for _ in range(5):
        clock.seconds += 130  # jobs would be due, too
        look(catalog)
        settle(catalog)
    assert [(call.verb, call.path) for call in store.calls[before:]] == [("list", "")] * 5


def test_a_root_that_never_answers_is_said_not_to_and_holds_nobody_up(store: MemoryStore) -> None:
    fill(store, Made("orders"))
    silent = named_store("ui-silent")
    clock = Clock()
    catalog = catalog_of([root_at(silent, "silent"), root_at(store)], clock, patience=0.2)
    with Gate(silent):
        roots, _ = look(catalog)
        assert roots["silent"].error == ""
        clock.seconds += catalog_module.SLOW + 1
        settle(catalog, "main")
        roots, jobs = look(catalog)
        assert roots["silent"].error == "the root memory://ui-silent has not answered for 11 seconds"
        assert heads(jobs) == {"orders": 5}
        with pytest.raises(UnavailableError, match="is being read and not known yet"):
            open_job(catalog, conn_id="silent")


def test_what_is_not_known_in_time_is_said_to_be_being_read(store: MemoryStore) -> None:
    fill(store, Made("orders"))
    catalog = catalog_of([root_at(store)], Clock(), patience=0.05)
    with (
        Gate(store),
        refused(UnavailableError, "the root memory://", "ask again"),
    ):
        open_job(catalog)
    settle(catalog)
    with (
        Gate(store, "/epochs/"),
        refused(UnavailableError, "job 'orders'", "ask again"),
    ):
        open_job(catalog)


def test_a_mistake_of_ours_is_one_sentence_and_the_next_reading_may_go_well() -> None:
    clock = Clock()
    answers: list[Callable[[], int]] = [lambda: 1 // 0, lambda: 7]
    value: CachedValue[int] = CachedValue(
        "the answer", lambda: answers.pop(0)(), ReaderThreads(1, "test"), clock
    )
    value.refresh().result(60)
    assert str(value.known().error) == "the answer could not be read: the API server's log says why"
    value.refresh().result(60)
    assert (value.known().value, value.known().error) == (7, None)


# Bounds


def test_asking_for_names_that_do_not_exist_fills_nothing(store: MemoryStore) -> None:
    fill(store, Made("orders"))
    catalog = catalog_of([root_at(store)], Clock())
    for number in range(30):
        with refused(NotFoundError, f"no job 'nobody-{number}'"):
            open_job(catalog, f"nobody-{number}")
    assert set(look(catalog)[1]) == {"orders"}


def test_a_folder_with_a_name_that_no_job_can_have_hides_no_job(store: MemoryStore) -> None:
    fill(store, Made("orders"))
    store.put("of somebody else/job", b"")
    assert heads(look(catalog_of([root_at(store)], Clock()))[1]) == {"orders": 5}


def test_a_slow_root_is_shown_as_it_was_for_as_long_as_it_takes(store: MemoryStore) -> None:
    """What takes long to read is read seldom: nobody waits for it each time that it is older than usual."""
    fill(store, Made("orders"))
    clock = Clock()
    catalog = catalog_of([root_at(store)], clock)

    def slow(call: Call) -> None:
        clock.seconds += 1

    store.before = slow
    open_job(catalog)
    cost = catalog._roots["main"].jobs["orders"].facts.cost
    assert cost > 10
    clock.seconds += 15 * cost
    with Gate(store) as gate:
        assert open_job(catalog).status.head == 5
        assert gate.reached.wait(60)


@pytest.mark.parametrize("name", ["..", "../orders", "orders/chk-00000001", "_savepoints", "", "a\0b"])
def test_a_name_that_would_leave_its_folder_is_refused_before_anything_is_read(
    store: MemoryStore, name: str
) -> None:
    before = len(store.calls)
    with refused(UsageError, "is not usable"):
        open_job(catalog_of([root_at(store)], Clock()), name)
    assert len(store.calls) == before


def test_the_whole_history_is_held_of_a_few_jobs(store: MemoryStore) -> None:
    names = [f"job-{number}" for number in range(catalog_module.WHOLE_JOBS + 2)]
    fill(store, *(Made(name, standing=2, collected=600) for name in names))
    clock = Clock()
    catalog = catalog_of([root_at(store)], clock)
    for name in names:
        clock.seconds += 1
        assert len(open_job(catalog, name).lines.all) == 602
    look(catalog)
    clock.seconds += 400
    look(catalog)
    settle(catalog)
    held = {name: len(job.facts.value.lines.all) for name, job in look(catalog)[1].items() if job.facts.value}
    assert [name for name in names if held[name] == 602] == names[2:], "the oldest asked for had to go"
    clock.seconds += catalog_module.WHOLE_FOR
    look(catalog)
    settle(catalog)
    held = {name: len(job.facts.value.lines.all) for name, job in look(catalog)[1].items() if job.facts.value}
    assert set(held.values()) == {602 - 600 + 600 - 256}, "nobody has looked at any for long"


def test_stale_bounds_of_all_jobs_and_of_one() -> None:
    stale = StaleAfter("2 hours, orders=15 minutes, replay = never")
    assert [str(stale.of(name)) for name in ("clicks", "orders", "replay")] == ["2:00:00", "0:15:00", "None"]
    assert str(StaleAfter("").of("orders")) == "1 day, 2:00:00"
    wrong = StaleAfter("soon")
    assert "'soon' is not a duration" in wrong.problem
    assert str(wrong.of("orders")) == "1 day, 2:00:00"
