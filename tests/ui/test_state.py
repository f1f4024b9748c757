"""What the pages tell of state, through Airflow's real app: to whom, how much of it, and that it is right."""

from __future__ import annotations

import asyncio
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash

from stateflow.format.records import FileRef, Owner
from stateflow.jobs.erasure import plan_erase
from stateflow.jobs.job import Job
from stateflow.reading.past_states import KeyOfState
from stateflow.replay import reports
from stateflow.replay.comparison import ReplayReport, SinkChanges
from stateflow.replay.rows import RowChange
from stateflow.state.values.serializers import serializer_for
from stateflow_ui import details, reading_budget, state_documents, state_reader
from stateflow_ui.catalog import Catalog
from stateflow_ui.root import Root
from tests.jobs.builder import options_of
from tests.jobs.files import files_of
from tests.memory_store import MemoryStore
from tests.reading.grown import GrownJob, fall_below_zero, put
from tests.ui.airflow_app import AirflowApp, airflow_app
from tests.ui.catalogs import Clock, catalog_of

__all__ = ["airflow_app"]

JOB = "/stateflow/api/jobs/stateflow_default/orders"
KEY = f"{JOB}/key?operator=balance&state=total&key="
_int = serializer_for(int)
ERASED = 918_273_645
"""A value whose digits stand in no time and no number of an answer."""


@pytest.fixture(scope="module", autouse=True)
def grown(airflow_app: AirflowApp) -> GrownJob:
    """Checkpoints 2 to 9: user 1 falls below zero in 5, user 3 goes in 6, and something expires in 9."""
    job = GrownJob(airflow_app.root)
    fall_below_zero(job)
    job.batch(lambda model: job.put(model, "brief", 1, 7))
    job.batch(seconds=20)
    return job


@pytest.fixture
def fresh(airflow_app: AirflowApp) -> Iterator[None]:
    """Answers of other tests are forgotten: they were made with other bounds."""

    def forget() -> None:
        catalog: Catalog = airflow_app.plugin.state.catalog
        for root in catalog._roots.values():
            for job in root.jobs.values():
                job.answers.clear()

    forget()
    yield
    forget()


def get(app: AirflowApp, address: str) -> Any:
    answer = app.admin.get(address)
    assert answer.status_code == 200, answer.text
    return answer.json()


def said(app: AirflowApp, address: str, status: int) -> str:
    answer = app.admin.get(address)
    assert answer.status_code == status, answer.text
    sentence: str = answer.json()["detail"]
    return sentence


@pytest.mark.slow
@pytest.mark.parametrize("address", [f"{KEY}1", f"{JOB}/differences?before=2&after=3", f"{JOB}/replays"])
def test_state_is_for_those_who_may_edit_the_connection(airflow_app: AirflowApp, address: str) -> None:
    answer = airflow_app.viewer.get(address)
    assert answer.status_code == 403
    assert answer.json()["detail"].startswith(
        "what the state of a job holds is shown to those who may edit the connection 'stateflow_default'"
    )
    assert airflow_app.anonymous.get(address).status_code == 401
    assert airflow_app.admin.get(address).status_code == 200
    assert airflow_app.viewer.get(JOB).json()["reads_state"] is False
    assert airflow_app.admin.get(JOB).json()["reads_state"] is True


def test_the_edit_right_is_asked_of_the_connection_s_own_team(
    airflow_app: AirflowApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stateflow_ui import internals

    asked: list[tuple[str, str | None]] = []

    def refuse(conn_id: str, user: Any, team: str | None) -> bool:
        asked.append((conn_id, team))
        return False

    monkeypatch.setattr(internals, "may_edit_connection", refuse)
    assert airflow_app.admin.get(f"{KEY}1").status_code == 403
    assert asked == [("stateflow_default", None)]


def test_a_key_s_history_is_what_a_query_finds_at_every_checkpoint(airflow_app: AirflowApp) -> None:
    found = get(airflow_app, f"{KEY}1")
    assert [(v["slot"], v["what"], v["value"]) for v in found["versions"]] == [
        (2, "kept", "5"), (4, "changed", "8"), (5, "changed", "-3"), (7, "changed", "-1"),
    ]  # fmt: skip
    assert (found["checkpoints"], found["notes"]) == (8, [])
    assert found["versions"][0]["at"] < 10**14, "milliseconds"
    gone = get(airflow_app, f"{KEY}3")["versions"]
    assert [(v["slot"], v["what"], v["value"]) for v in gone] == [(5, "set", "4"), (6, "deleted", None)]
    brief = get(airflow_app, f"{JOB}/key?operator=balance&state=brief&key=1")["versions"]
    assert [(v["what"], v["value"]) for v in brief] == [("set", "7"), ("expired", None)]
    assert [v["slot"] for v in get(airflow_app, f"{KEY}1&since=5")["versions"]] == [5, 7]
    assert get(airflow_app, f"{KEY}99")["versions"] == []


@pytest.mark.slow
def test_differences_are_those_of_the_command(airflow_app: AirflowApp, tmp_path: Path) -> None:
    options = options_of(airflow_app.root, tmp_path)
    job = Job(str(airflow_app.root), "orders")
    for before in range(2, 10):
        for after in (2, 4, 6, 9):
            shown = get(airflow_app, f"{JOB}/differences?before={before}&after={after}")
            with job.diff(str(before), str(after), options=options) as differences:
                wanted = [
                    {name: as_text(value) for name, value in change.json.items()}
                    for change in differences.changes()
                ]
            told = [
                {"operator": state["operator"], "state": state["state"], **change}
                for state in shown["states"]
                for change in state["first"]
            ]
            assert sorted(map(str, told)) == sorted(map(str, wanted)), (before, after)
            assert sum(sum(s["counts"].values()) for s in shown["states"]) == len(wanted)


def as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


@pytest.mark.parametrize(
    ("value", "text", "drawn"),
    [
        (9007199254740993, "9007199254740993", {"": "9007199254740993"}),
        (-0.0, "-0.0", {"": "-0.0"}),
        (True, "true", {}),
        ("12", "12", {}),
        (None, None, {}),
        ({"cents": -1234567890123456789, "of": "ann"}, '{"cents":-1234567890123456789,"of":"ann"}', {"cents": "-1234567890123456789"}),
        ([1, 2], "[1,2]", {}),
    ],
)  # fmt: skip
def test_a_value_is_a_text_with_all_its_digits(value: Any, text: str | None, drawn: dict[str, str]) -> None:
    assert (state_documents.shown(value), state_documents.numbers(value)) == (text, drawn)


def test_a_long_value_is_cut_and_too_many_numbers_are_no_curves() -> None:
    value = {f"field {k}": k for k in range(1000)}
    assert len(state_documents.shown(value) or "") == state_documents.MOST_TEXT
    assert state_documents.numbers(value) == {}


def test_a_renamed_state_is_compared_with_itself_and_said_to_be(airflow_app: AirflowApp) -> None:
    job = GrownJob(airflow_app.root, "renamed")
    before = put(job, u1=5)
    for former, name in (("total", "sum"), ("sum", "balance")):
        job.schemas[name] = msgspec.structs.replace(job.schemas.pop(former), aliases=(former,))
        after = put(job, u1=6)
    address = f"{JOB.removesuffix('orders')}renamed/differences?before={before}&after={after}"
    until(lambda: airflow_app.admin.get(address).status_code == 200)
    found = get(airflow_app, address)
    (state,) = found["states"]
    assert (state["state"], [(c["before"], c["after"]) for c in state["first"]]) == ("balance", [("5", "6")])
    assert found["notes"] == [
        f"state 'balance' of operator 'balance' is called 'total' in checkpoint {before}"
    ]


def test_points_are_named_as_on_the_command_line(airflow_app: AirflowApp) -> None:
    Job(str(airflow_app.root), "orders").tag("before", "checkpoint:4")
    address = f"{JOB}/differences?before=tag:before&after=latest"
    until(lambda: airflow_app.admin.get(address).status_code == 200)
    answer = airflow_app.admin.get(address)
    assert (answer.json()["before"]["slot"], answer.json()["after"]["slot"]) == (4, 9)


@pytest.mark.parametrize(
    ("address", "status", "sentence"),
    [
        ("key?operator=nobody&state=total&key=1", 404, "operator 'nobody'"),
        ("key?operator=balance&state=nothing&key=1", 404, "state 'nothing'"),
        ("key?operator=balance&state=total&key=anna", 400, "anna"),
        ("key?operator=balance&state=total&key=1&since=300", 404, "keeps no checkpoint in that time"),
        ("key?operator=balance&state=total", 422, "key"),
        ("differences?before=2&after=300", 404, "300"),
        ("differences?before=2&after=s3://elsewhere/savepoint", 400, "names no checkpoint: write latest, 42"),
        ("differences?before=2&after=9&operator=nobody", 404, "neither of the two has an operator 'nobody'"),
        ("differences?before=2", 422, "after"),
    ],
)
def test_bad_input_is_one_sentence(airflow_app: AirflowApp, address: str, status: int, sentence: str) -> None:
    words = said(airflow_app, f"{JOB}/{address}", status)
    assert sentence in words
    assert "\n" not in words


@pytest.mark.usefixtures("fresh")
def test_more_checkpoints_than_the_pages_look_at_are_said(
    airflow_app: AirflowApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_reader, "MOST_CHECKPOINTS", 3)
    found = get(airflow_app, f"{KEY}1")
    assert found["checkpoints"] == 3
    assert found["notes"] == [
        "these are the newest 3 of 8 kept checkpoints: `stateflow history` looks at all of them"
    ]


@pytest.mark.usefixtures("fresh")
def test_more_changes_than_are_shown_are_counted(
    airflow_app: AirflowApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_reader, "FIRST", 1)
    [state] = get(airflow_app, f"{JOB}/differences?before=2&after=7&state=total")["states"]
    assert sum(state["counts"].values()) == 2
    assert len(state["first"]) == 1


@pytest.mark.usefixtures("fresh")
def test_points_that_are_too_far_apart_are_refused_with_the_command_that_takes_them(
    airflow_app: AirflowApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_reader, "MOST_COMPARED", 10)
    words = said(airflow_app, f"{JOB}/differences?before=2&after=7", 400)
    assert words.startswith("checkpoints 2 and 7 do not share ")
    assert words.endswith("or use `stateflow diff orders 2 7`")


@pytest.mark.usefixtures("fresh")
def test_a_question_that_takes_too_long_ends_with_a_sentence(
    airflow_app: AirflowApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_reader, "SECONDS", -1.0)
    words = said(airflow_app, f"{KEY}1", 400)
    assert words.startswith(
        "reading this takes longer than the -1 seconds that the pages take for it: narrow it down, or use "
    )
    assert words.endswith("`stateflow history orders balance total KEY`")


def test_a_question_that_fetches_too_much_ends_with_a_sentence(tmp_path: Path) -> None:
    store = MemoryStore()
    store.put("it", b"x" * 100)
    ref = FileRef(name="it", size=100, xxh3=xxhash.xxh3_64_hexdigest(b"x" * 100), path="it")
    for most, refused in ((100, False), (99, True)):
        budget = reading_budget.ReadingBudget("stateflow diff orders 1 2", 20.0, fetched=most)
        cache = reading_budget.BudgetedCache(tmp_path / str(most), 1 << 20, budget)
        if refused:
            with pytest.raises(
                reading_budget.BudgetSpent, match=r"fetches more than .* or use `stateflow diff orders 1 2`$"
            ):
                cache.fetch(store, ref)
        else:
            assert cache.fetch(store, ref).read_bytes() == b"x" * 100
            cache.fetch(store, ref)  # it is here by now


@pytest.mark.usefixtures("fresh")
def test_what_keys_held_before_is_left_out_when_it_takes_too_long_and_that_is_said(
    airflow_app: AirflowApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_reader, "LOOK_UP_SECONDS", -1.0)
    found = get(airflow_app, f"{JOB}/differences?before=3&after=4")
    assert found["kinds"] == ["written"]
    assert found["notes"][0].startswith("what each key held before takes too long to find here")


@pytest.mark.usefixtures("fresh")
def test_nothing_is_written_into_the_root_and_no_database_is_opened(
    airflow_app: AirflowApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> Any:
        raise AssertionError("the API server opens no database of a root")

    monkeypatch.setattr("stateflow.state.backends.rocksdb.rocksdb_reader", refuse)
    before = files_of(airflow_app.root)
    get(airflow_app, f"{KEY}1")
    get(airflow_app, f"{JOB}/differences?before=2&after=7")
    assert files_of(airflow_app.root) == before


def test_kept_reports_of_replays_are_shown_newest_first(airflow_app: AirflowApp) -> None:
    job = Job(str(airflow_app.root), "orders")
    change = RowChange("different", {"user": 1}, {"user": 1, "password": "hidden"}, {"user": 1, "total": 2})
    sink = SinkChanges("totals", ("user",), 9, 9, {"different": 1}, [(4, change)])
    for at, name in ((1_000_000, "old"), (2_000_000, "new")):
        made = reports.kept_report(
            ReplayReport("orders", "orders", 3, 7, batches=5, sinks={"totals": sink}),
            name, at=at, owner=Owner("r", dag_run="stateflow_upgrade/manual__1"), max_changed=0.01,
        )  # fmt: skip
        reports.keep(job.store, job.layout, made)
    get(airflow_app, f"{JOB}/replays")  # the catalog knows the job from then on, if nobody asked before
    catalog: Catalog = airflow_app.plugin.state.catalog
    catalog._roots["stateflow_default"].jobs["orders"].replays.refresh().result(20)
    found = get(airflow_app, f"{JOB}/replays")["replays"]
    assert [each["name"] for each in found] == ["new", "old"]
    assert found[0]["at"] == 2000
    assert found[0]["excess"].startswith("1 of 9 rows of sink 'totals' would be others")
    assert found[0]["by"]["dag_run"] == "stateflow_upgrade/manual__1"
    assert found[0]["report"]["sinks"][0]["changes"][0]["before"] == '{"user":1,"password":"***"}'
    assert "hidden" not in str(found)


def test_the_page_s_form_is_told_of_every_state(airflow_app: AirflowApp) -> None:
    [operator] = get(airflow_app, JOB)["status"]["operators"]
    assert (operator["uid"], operator["key"]) == ("balance", "user int")
    kinds = {name: text.split()[0] for name, text in operator["states"].items()}
    assert kinds == {
        "total": "value",
        "items": "map",
        "log": "list",
        "brief": "value",
        "idle": "timer",
        "kept": "columns",
    }
    for name in kinds:
        assert airflow_app.admin.get(f"{JOB}/key?operator=balance&state={name}&key=1").status_code == 200, (
            name
        )


@pytest.mark.slow
def test_an_answer_does_not_outlive_the_head_nor_an_erased_key(
    airflow_app: AirflowApp, tmp_path: Path
) -> None:
    job = GrownJob(airflow_app.root, "erased")
    first = put(job, u1=5)
    address = JOB.replace("/orders", "/erased")
    key = f"{address}/key?operator=balance&state=total&key=1"
    until(lambda: airflow_app.admin.get(key).status_code == 200)
    newest = put(job, u1=ERASED)
    until(lambda: get(airflow_app, key)["versions"][-1]["value"] == str(ERASED))
    assert str(ERASED) in str(get(airflow_app, f"{address}/differences?before={first}&after={newest}"))
    options = options_of(airflow_app.root, tmp_path)
    plan_erase(Job(str(airflow_app.root), "erased"), "1", options).apply(Owner("me"))
    until(lambda: str(ERASED) not in str(get(airflow_app, key)["versions"]))
    assert airflow_app.admin.get(f"{address}/differences?before={first}&after={newest}").status_code == 404


def test_a_history_says_what_was_not_looked_at(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    job = GrownJob(tmp_path)
    slots = [put(job, u1=value) for value in range(4)]
    job.begin("another", retained=2)
    slots.append(put(job, u1=5))
    job.collect()
    operator, model = job.operator(), job.model
    other = job.record(msgspec.structs.replace(operator, key=(("user", "str"),)), {})
    job.record(operator, model)
    job.schemas["sum"] = msgspec.structs.replace(job.schemas.pop("total"), aliases=("total",))
    put(job, u1=9)
    catalog = catalog_of([Root("main", str(tmp_path), str(tmp_path))], Clock())
    key = KeyOfState("balance", "sum", "1", None, None)
    notes = state_documents.history(asyncio.run(catalog.key_history("main", "orders", key, "1")))["notes"]
    options = options_of(tmp_path, tmp_path_factory.mktemp("cache"))
    found = Job(str(tmp_path), "orders").history_of("balance", "sum", "1", since="1", options=options)
    assert notes == found.notes
    assert (found.begins_later, found.other_keys) == (slots[-3], (other,))
    assert len(notes) == 3
    assert "called 'total'" in notes[2]


def test_what_changed_is_asked_since_what_is_kept(tmp_path: Path) -> None:
    job = GrownJob(tmp_path)
    slots = [put(job, u1=value) for value in range(6)]
    job.tag(slots[1], "first")
    job.tag(slots[4], "second")
    job.begin("another", retained=2)
    slots += [put(job, u1=value) for value in (6, 7)]
    job.collect()
    catalog = catalog_of([Root("main", str(tmp_path), str(tmp_path))], Clock())
    kept = [slots[1], *slots[4:]]
    key = KeyOfState("balance", "total", "1", None, None)
    found = state_documents.history(asyncio.run(catalog.key_history("main", "orders", key, "")))
    assert [(each["slot"], each["previous"]) for each in found["versions"]] == [
        (slot, previous) for slot, previous in zip(kept, [None, *kept], strict=False)
    ]

    def page(slot: int) -> tuple[bool, int | None]:
        facts, body = asyncio.run(catalog.checkpoint("main", "orders", slot))
        line = facts.lines.find(slot)
        assert line is not None
        shown = details.checkpoint(facts, line, body)
        return shown["kept"], shown["since"]

    pages = dict(zip(kept, [(True, since) for since in (None, *kept)], strict=False))
    assert {slot: page(slot) for slot in slots} == dict.fromkeys(slots, (False, None)) | pages
    for slot, (_, since) in pages.items():
        if since is not None:
            asyncio.run(catalog.differences("main", "orders", str(since), str(slot), "", ""))


def until(holds: Callable[[], bool]) -> None:
    """The pages look at an open job every few seconds."""
    end = time.monotonic() + 40
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.3)


class BegunAnew(GrownJob):
    """A job whose ids are of nobody else, as those of a run are."""

    def ids(self) -> str:
        return uuid.uuid4().hex


def test_nothing_of_a_deleted_job_is_told_of_the_job_that_took_its_name(tmp_path: Path) -> None:
    root, clock = tmp_path / "root", Clock()
    catalog = catalog_of([Root("main", str(root), str(root))], clock)

    def told(*values: int) -> tuple[list[Any], str]:
        """The history of a key, and the text of what changed at last, after a job was deleted and began again with these values."""
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        job = BegunAnew(root)
        slots = [str(put(job, u1=value)) for value in values]
        clock.seconds += 60
        asyncio.run(catalog.job("main", "orders"))
        key = KeyOfState("balance", "total", "1", None, None)
        history = asyncio.run(catalog.key_history("main", "orders", key, ""))
        changed = asyncio.run(catalog.differences("main", "orders", *slots[-2:], "balance", "total"))
        return (
            [each["value"] for each in state_documents.history(history)["versions"]],
            str(state_documents.differences(changed)["states"]),
        )

    assert told(5, 2, 8)[0] == ["5", "2", "8"]
    values, changes = told(100, 200, 300)
    assert values == ["100", "200", "300"]
    assert "300" in changes
