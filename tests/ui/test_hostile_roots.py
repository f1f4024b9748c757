"""Whoever may write into one job's folder can break that job's pages, and no other's."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
import xxhash

from stateflow.checkpoint.statistics import HistoryLine
from stateflow.errors import CorruptError, UsageError
from stateflow.format.layout import JobLayout
from stateflow.format.records import Record, decode, encode
from stateflow.observe.status import _last_checkpoint_at
from stateflow.observe.timelines import spans
from stateflow_ui import details, documents, metrics
from stateflow_ui.catalog import Catalog
from stateflow_ui.reading_store import ReadingStore
from stateflow_ui.responses import response_to
from stateflow_ui.stale_after import StaleAfter
from tests.jobs.operators import one_shard
from tests.jobs.records import Made
from tests.memory_store import MemoryStore
from tests.refusals.refusal import refused
from tests.ui.catalogs import NOW, Clock, catalog_of, fill, heads, look, open_job, root_at, store

__all__ = ["store"]

DIGITS = 10**399
ORDERS = JobLayout("orders")


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Ends what would never end."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError(f"it took more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def change(store: MemoryStore, path: str, **fields: object) -> None:
    """Sets fields of a body and gives it the checksum that its writer would have given it."""
    text = store.read(path).partition(b"\n")[2]
    changed = json.dumps({**json.loads(text), **fields}).encode()
    checksum = xxhash.xxh3_64_hexdigest(changed).encode()
    store.put(path, b"stateflow 1 %s %d\n%s\n" % (checksum, len(changed), changed))


def rows(catalog: Catalog) -> dict[str, dict[str, object]]:
    """The list of jobs as a browser gets it."""
    page = documents.overview(*asyncio.run(catalog.overview()), NOW, StaleAfter(""))
    return {row["job"]: row for row in json.loads(msgspec.json.encode(page))["jobs"]}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_parallelism", 2_000_000_000),
        ("max_parallelism", 0),
        ("assignment", [[0, DIGITS]]),
        ("next_state_id", DIGITS),
    ],
    ids=("too many groups", "no groups", "a group of 400 digits", "an id of 400 digits"),
)
def test_a_count_that_would_fill_the_memory_is_refused_where_it_is_decoded(
    store: MemoryStore, field: str, value: object
) -> None:
    fill(store, Made("orders"))
    path = ORDERS.pending(5)
    operators = json.loads(store.read(path).partition(b"\n")[2])["operators"]
    operators["balance"][field] = value
    change(store, path, operators=operators)
    with pytest.raises(CorruptError, match=f"{path} does not have the fields of a Record"):
        decode(store.read(path), Record, path)


@pytest.mark.parametrize(
    "field", ["at", "now", "watermark", "slot", "timeline", "based_on", "floor", "epoch"]
)
def test_a_time_or_a_number_of_400_digits_is_refused_where_it_is_decoded(
    store: MemoryStore, field: str
) -> None:
    fill(store, Made("orders"))
    path = ORDERS.pending(5)
    change(store, path, **{field: DIGITS})
    with pytest.raises(CorruptError, match="does not have the fields of a Record"):
        decode(store.read(path), Record, path)


def test_the_source_that_holds_the_watermark_is_named_unless_the_note_is_hostile(store: MemoryStore) -> None:
    fill(store, Made("orders"))
    since = NOW - 90_000_000
    notes = {("clicks", since): {"source": "clicks", "since": since // 1000}}
    notes |= dict.fromkeys([("clicks", DIGITS), ("c" * 10_000, since), (7, since), ("clicks", -1)])
    for (source, at), shown in notes.items():
        noted = {"watermark_held_by": source, "watermark_held_since": at, "watermark_held_partition": DIGITS}
        change(store, ORDERS.pending(5), statistics=noted)
        catalog = catalog_of([root_at(store)], Clock())
        row, facts = rows(catalog)["orders"], open_job(catalog)
        assert row["watermark_held"] == shown
        assert documents.status_document(facts.status)["watermark_held"] == shown


def test_json_that_is_nested_too_deep_is_a_damaged_record(store: MemoryStore) -> None:
    deep = b'{"statistics":{"a":' + b"[" * 100_000
    body = b"stateflow 1 %s %d\n%s\n" % (xxhash.xxh3_64_hexdigest(deep).encode(), len(deep), deep)
    with refused(CorruptError, "nested too deep"):
        decode(body, Record, "orders/chk-00000001/_pending")


@pytest.mark.parametrize(
    "hostile",
    [
        {"at": DIGITS},
        {"statistics": {"processed_rows": DIGITS, "trigger_timestamp": DIGITS, "checkpointed_size": "many"}},
        {"statistics": {"trigger_timestamp": 1 << 52}},
        {"based_on": 6},
        {"operators": {"balance": {"max_parallelism": 2_000_000_000}}},
        {"previous": {"slot": 5, "writer": "me"}},
        {"slot": 3},
    ],
    ids=lambda fields: "-".join(fields),
)
def test_one_hostile_record_hides_no_other_job(store: MemoryStore, hostile: dict[str, object]) -> None:
    fill(store, Made("orders"), Made("clicks"))
    change(store, ORDERS.pending(5), **hostile)
    with within(60):
        catalog = catalog_of([root_at(store)], Clock())
        jobs = rows(catalog)
        text = metrics.page(*asyncio.run(catalog.overview()), NOW, StaleAfter(""))
    assert set(jobs) == {"orders", "clicks"}
    assert (jobs["clicks"]["head"], jobs["clicks"]["error"]) == (5, None)
    assert 'stateflow_job_last_checkpoint_id{conn_id="main",stateflow_job="clicks"} 5' in text


def test_folders_with_numbers_of_hundreds_of_digits_are_nobodys(store: MemoryStore) -> None:
    fill(store, Made("orders"), Made("clicks"))
    store.put(f"orders/epochs/{DIGITS}", b"")
    store.put(f"orders/chk-{DIGITS}/_pending", b"")
    catalog = catalog_of([root_at(store)], Clock())
    jobs = rows(catalog)
    assert open_job(catalog).unreadable == ()
    assert (jobs["orders"]["epoch"], jobs["orders"]["head"]) == (1, 5)
    assert jobs["clicks"]["head"] == 5


def test_a_job_that_no_page_can_show_is_shown_as_broken(store: MemoryStore) -> None:
    fill(store, Made("orders"), Made("clicks"))
    catalog = catalog_of([root_at(store)], Clock())
    look(catalog)
    facts = open_job(catalog, "orders")
    object.__setattr__(facts.status, "last_checkpoint_at", "noon")
    jobs = rows(catalog)
    assert (jobs["orders"]["status"], jobs["orders"]["health"]) == ("UNREADABLE", "unreadable")
    assert "has a value that no page can show" in str(jobs["orders"]["error"])
    assert jobs["clicks"]["head"] == 5
    text = metrics.page(*asyncio.run(catalog.overview()), NOW, StaleAfter(""))
    assert 'stateflow_job_readable{conn_id="main",stateflow_job="orders"} 0' in text
    assert 'stateflow_job_readable{conn_id="main",stateflow_job="clicks"} 1' in text


@pytest.mark.parametrize("path", [ORDERS.metadata(5), ORDERS.pending(5)])
def test_a_damaged_record_is_named_by_the_list_the_metrics_and_its_own_page(
    store: MemoryStore, path: str
) -> None:
    fill(store, Made("orders"), Made("clicks"))
    store.put(path, b"no record")
    catalog = catalog_of([root_at(store)], Clock())
    row = rows(catalog)["orders"]
    assert row["health"] == "unreadable"
    assert f"{path} cannot be read" in str(row["reason"])
    text = metrics.page(*asyncio.run(catalog.overview()), NOW, StaleAfter(""))
    assert 'stateflow_job_readable{conn_id="main",stateflow_job="orders"} 0' in text
    assert 'stateflow_job_health{conn_id="main",stateflow_job="orders",state="unreadable"} 1' in text
    assert 'stateflow_job_readable{conn_id="main",stateflow_job="clicks"} 1' in text
    with refused(CorruptError, path, "stateflow verify orders") as caught:
        asyncio.run(catalog.checkpoint("main", "orders", 5))
    assert isinstance(caught.value, CorruptError)
    assert response_to(caught.value).status_code == 409
    assert asyncio.run(catalog.checkpoint("main", "orders", 4))[1] is not None


def test_a_job_that_has_lost_its_identity_stays_in_the_list_and_the_metrics(store: MemoryStore) -> None:
    fill(store, Made("orders"), Made("clicks"))
    store.delete([ORDERS.identity])
    catalog = catalog_of([root_at(store)], Clock())
    row = rows(catalog)["orders"]
    assert (row["status"], row["health"]) == ("UNREADABLE", "unreadable")
    assert "orders/job, which says who job 'orders' is, is missing" in str(row["reason"])
    text = metrics.page(*asyncio.run(catalog.overview()), NOW, StaleAfter(""))
    assert 'stateflow_job_readable{conn_id="main",stateflow_job="orders"} 0' in text


def line(slot: int, based_on: int, kind: str = "checkpoint") -> HistoryLine:
    return HistoryLine(id=slot, kind=kind, status="COMPLETED", based_on=based_on)


def test_records_that_continue_each_other_in_a_circle_are_drawn() -> None:
    circle = [line(1, 3), line(2, 1), line(3, 2), line(4, 4)]
    with within(10):
        assert {span.newest for span in spans(circle, {}, None)} >= {4, 3}


def test_restores_that_continue_each_other_in_a_circle_have_no_last_checkpoint(store: MemoryStore) -> None:
    fill(store, Made("orders"))
    record = decode(store.read(ORDERS.pending(5)), Record, "")
    head = msgspec.structs.replace(record, kind="restore", slot=2)
    with within(10):
        assert _last_checkpoint_at(head, [line(1, 2, "restore"), line(2, 1, "restore")]) is None


def test_lines_of_a_segment_that_no_chart_can_draw_are_damaged_lines(store: MemoryStore) -> None:
    fill(store, Made("orders", collected=20))
    (segment,) = store.list(ORDERS.statistics)
    body = store.read(segment.path).replace(b'"id":7,', b'"id":7,"state_size":%d,' % DIGITS)
    store.put(segment.path, body)
    facts = open_job(catalog_of([root_at(store)], Clock()))
    assert [each.id for each in facts.lines.all] == [1, 2, 3, 4, 5, 6, *range(8, 26)]
    assert len(facts.lines.columns["full"]) == 24


def test_key_groups_of_many_wide_shards_are_summed_at_once() -> None:
    state = one_shard(groups=32_768, times=20_000)
    with within(10):
        assert details.key_groups(state) == [0] * 32_768


def test_a_huge_object_is_refused_before_it_is_in_memory() -> None:
    memory = MemoryStore("huge", {"orders/job": b"x" * 1_001, "orders/small": b"x" * 1_000})
    reading = ReadingStore(memory, most=1_000)
    assert len(reading.read("orders/small")) == 1_000
    with refused(CorruptError, "orders/job has more than 1"):
        reading.read("orders/job")


def test_an_object_of_several_pieces_is_read_whole() -> None:
    body = bytes(range(256)) * 4_097
    memory = MemoryStore("pieces", {"orders/large": body, "orders/small": b"x", "orders/empty": b""})
    reading = ReadingStore(memory)
    assert [reading.read(f"orders/{name}") for name in ("large", "small", "empty")] == [body, b"x", b""]
    assert len(memory.calls) == 2 + 1 + 1


def test_a_job_with_a_huge_record_is_shown_without_it(store: MemoryStore) -> None:
    fill(store, Made("orders"), Made("clicks"))
    change(store, ORDERS.pending(5), versions={"spark": "4" * (33 << 20)})
    catalog = catalog_of([root_at(store)], Clock())
    assert heads(look(catalog)[1]) == {"orders": 4, "clicks": 5}
    assert open_job(catalog).unreadable == (ORDERS.pending(5),)


def test_the_pages_write_nothing() -> None:
    memory = MemoryStore("read-only", {"orders/job": b"x"})
    reading = ReadingStore(memory)
    for write in (
        lambda: reading.put("orders/job", b""),
        lambda: reading.create("orders/new", b""),
        lambda: reading.copy("orders/job", "orders/new"),
        lambda: reading.delete(["orders/job"]),
    ):
        with refused(UsageError, "the pages only read"):
            write()
    assert memory.snapshot() == {"orders/job": b"x"}


def test_an_encoded_record_is_what_the_bounds_let_through(store: MemoryStore) -> None:
    fill(store, Made("orders"))
    record = decode(store.read(ORDERS.pending(5)), Record, "")
    assert decode(encode(record), Record, "") == record
