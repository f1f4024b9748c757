"""What the pages are told, through Airflow's real app: shapes, times, errors, and what is never said."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from stateflow.format.layout import JobLayout, default_savepoint
from stateflow.format.records import Owner, Savepoint, encode
from stateflow.jobs.job import Job
from stateflow.storage.roots import open_store
from stateflow_ui.actions import first_sentence
from tests.jobs.records import Made, make_job
from tests.ui.airflow_app import SECRET, AirflowApp, airflow_app, pause, press

__all__ = ["airflow_app"]

MICROS = 1_000_000
NOW = time.time_ns() // 1000
RUN = "orders_dag/scheduled__2026-01-01T00:00:00+00:00"
JOB = "/stateflow/api/jobs/stateflow_default/orders"


@pytest.fixture(scope="module", autouse=True)
def jobs(airflow_app: AirflowApp) -> None:
    root = airflow_app.root
    make_job(root, Made("orders", standing=12, collected=300, dag_run=RUN), NOW)
    make_job(
        root, Made("clicks", running=True), NOW + 48 * 3600 * MICROS
    )  # a run that is never called lost here, however late these tests come
    store = open_store(str(root))
    store.put(JobLayout("broken").identity, b"no record\n")
    job = Job(str(root), "orders")
    job.tag("before-prices", "checkpoint:305", note="new prices")
    made = Savepoint(
        id="s1",
        kind="native",
        job="orders",
        record=job.log().record(306),
        owner=Owner(run="r", user="ann"),
        note="before the upgrade",
        at=NOW,
        expires=NOW + MICROS,
    )
    store.put(default_savepoint("orders", "nightly") + "/_metadata", encode(made))


def get(app: AirflowApp, address: str) -> Any:
    answer = app.viewer.get(address)
    assert answer.status_code == 200, answer.text
    return answer.json()


def said(app: AirflowApp, address: str, status: int) -> str:
    answer = app.viewer.get(address)
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["detail"]
    sentence: str = answer.json()["detail"]
    return sentence


@pytest.mark.slow
def test_all_jobs_of_all_roots(airflow_app: AirflowApp) -> None:
    found = get(airflow_app, "/stateflow/api/jobs")
    by_name = {job["job"]: job for job in found["jobs"]}
    assert set(by_name) == {"orders", "clicks", "broken"}
    orders = by_name["orders"]
    assert orders["conn_id"] == "stateflow_default"
    assert (orders["status"], orders["health"], orders["head"], orders["epoch"]) == ("IDLE", "ok", 312, 1)
    assert orders["last_checkpoint_at"] == (NOW - 60 * MICROS) // 1000, "milliseconds"
    assert 60_000 <= orders["age"] <= found["now"] - orders["last_checkpoint_at"]
    assert orders["watermark"] == (NOW - 660 * MICROS) // 1000
    assert orders["lag"] >= 660_000
    assert (orders["dag_run"], orders["task"]) == (RUN, "run")
    assert (orders["state_size"], orders["num_files"]) == (
        3 * (100_000 + 200_000 + 300_000 + 400_000) + 12 * 312,
        12,
    )
    assert (orders["pending"], orders["running"], orders["rows_per_second"]) == ([], False, None)
    assert orders["outcome"]["exit_code"] == 0
    assert (
        len(orders["recent"]["t"]) == len(orders["recent"]["duration"]) == len(orders["recent"]["full"]) == 50
    )
    assert by_name["clicks"]["running"]
    assert by_name["clicks"]["rows_per_second"] > 0


def test_a_job_that_cannot_be_read_hides_no_other(airflow_app: AirflowApp) -> None:
    broken = next(job for job in get(airflow_app, "/stateflow/api/jobs")["jobs"] if job["job"] == "broken")
    assert (broken["status"], broken["health"]) == ("UNREADABLE", "unreadable")
    assert "broken/job is not a stateflow record" in broken["reason"]
    assert "broken/job is not a stateflow record" in said(airflow_app, JOB.replace("orders", "broken"), 409)


def test_a_root_that_cannot_be_read_says_why_and_the_others_are_there(airflow_app: AirflowApp) -> None:
    found = get(airflow_app, "/stateflow/api/jobs")
    roots = {root["conn_id"]: root for root in found["roots"]}
    assert roots["stateflow_default"]["error"] is None
    assert roots["stateflow_default"]["root"] == f"file://{airflow_app.root}"
    assert "does not exist on the API server" in roots["nowhere"]["error"]
    assert found["jobs"]


def test_jobs_of_a_dag_and_of_a_dag_run(airflow_app: AirflowApp) -> None:
    def names(query: str) -> list[str]:
        return [job["job"] for job in get(airflow_app, f"/stateflow/api/jobs?{query}")["jobs"]]

    assert names("dag_id=orders_dag") == ["orders"]
    assert names("dag_id=orders_dag&run_id=scheduled__2026-01-01T00:00:00%2B00:00") == ["orders"]
    assert names("dag_id=orders_dag&run_id=another") == []
    assert names("dag_id=orders") == [], "the start of a name is another name"


def test_one_job(airflow_app: AirflowApp) -> None:
    found = get(airflow_app, JOB)
    assert not found["partial"]
    status = found["status"]
    assert status["created_at"] == (NOW - 312 * 60 * MICROS) // 1000
    assert status["tags"] == {"before-prices": 305}
    assert status["operators"][0]["uid"] == "balance"
    assert status["sources"][0]["position"] == "version 311 read completely"
    assert status["parameters"] == {"input": "/data/orders", "password": "***"}
    assert found["summary"]["numberOfCompletedCheckpoints"] == 312, "collected ones too"
    assert set(found["percentiles"]) == {"duration", "size", "full_size", "rows"}
    duration = found["percentiles"]["duration"]
    assert duration["min"] <= duration["p50"] <= duration["p90"] <= duration["p99"] <= duration["max"]
    assert set(found["dags"]) == {"savepoint", "cleanup", "stop", "recovery"}
    assert (found["dags"]["savepoint"], found["dags"]["cleanup"]) == ("stateflow_savepoint", None)
    assert found["paused"]["stop"]


def test_the_timeline_goes_back_to_what_was_collected(airflow_app: AirflowApp) -> None:
    found = get(airflow_app, JOB + "/timeline")
    assert found["id"] == list(range(1, 313))
    assert {
        len(found[name]) for name in ("id", "t", "duration", "size", "full", "rows", "kind", "timeline")
    } == {312}
    assert len(get(airflow_app, JOB + "/timeline?points=50")["id"]) <= 50
    middle = found["t"][100]
    assert get(airflow_app, f"{JOB}/timeline?since={middle}&until={found['t'][110]}")["id"] == list(
        range(101, 112)
    )


def test_the_history_page_by_page(airflow_app: AirflowApp) -> None:
    first = get(airflow_app, JOB + "/history?limit=200")
    assert [line["id"] for line in first["lines"]] == list(range(312, 112, -1))
    assert (first["total"], first["next"]) == (312, 113)
    second = get(airflow_app, JOB + "/history?limit=200&before=113")
    assert [line["id"] for line in second["lines"]] == list(range(112, 0, -1))
    assert second["next"] is None
    line = first["lines"][0]
    assert line["watermark"] == (NOW - 660 * MICROS) // 1000
    assert (line["kind"], line["status"], line["dag_run"]) == ("checkpoint", "COMPLETED", RUN)
    assert line["sinks"] == {"totals": "committed"}
    assert line["metrics"]["commit_ms"] == 180, "whatever else the run noted"
    assert get(airflow_app, JOB + "/history?kind=restore")["lines"] == []
    assert get(airflow_app, JOB + "/history?dag_id=another")["lines"] == []
    assert len(get(airflow_app, JOB + "/history?dag_id=orders_dag")["lines"]) == 100


def test_one_checkpoint(airflow_app: AirflowApp) -> None:
    found = get(airflow_app, JOB + "/checkpoints/312")
    assert (found["line"]["id"], found["collected"], found["head"]) == (312, False, True)
    operator = found["operators"][0]
    assert (operator["uid"], operator["key"]) == ("balance", "user int")
    assert (operator["parallelism"], operator["max_parallelism"]) == (4, 128)
    assert operator["states"][0]["name"] == "total"
    assert operator["states"][0]["kind"] == "value"
    shard = operator["shards"][1]
    assert (shard["subtask"], shard["first"], shard["last"], shard["files"]) == (1, 32, 63, 3)
    assert shard["host"] == "executor_worker-1_1"
    assert len(operator["key_groups"]) == 128
    assert abs(sum(operator["key_groups"]) - sum(each["bytes"] for each in operator["shards"])) < 128
    assert found["sinks"] == [
        {
            "uid": "totals",
            "kind": "delta",
            "target": "/data/totals",
            "rows": 500,
            "prev": 311,
            "outcome": "committed",
        }
    ]
    assert found["sources"][0]["kind"] == "delta"
    assert found["owner"]["dag_run"] == RUN
    assert found["statistics"]["evaluate_ms"] == 1500
    assert get(airflow_app, JOB + "/checkpoints/305")["tags"] == ["before-prices"]


def test_of_a_collected_checkpoint_its_line_is_left(airflow_app: AirflowApp) -> None:
    found = get(airflow_app, JOB + "/checkpoints/17")
    assert (found["line"]["id"], found["collected"], found["operators"]) == (17, True, [])
    assert found["sinks"][0]["outcome"] == "committed"


def test_the_graph_with_tags_and_savepoints(airflow_app: AirflowApp) -> None:
    found = get(airflow_app, JOB + "/graph")
    assert (found["head"], found["tags"], found["audit"]) == (312, {"before-prices": 305}, [])
    assert [(span["newest"], span["oldest"]) for span in found["spans"]] == [
        (312, 312), (311, 306), (305, 305), (304, 301), (300, 1),
    ]  # fmt: skip
    assert [each["name"] for each in found["savepoints"]] == ["nightly"]


def test_savepoints(airflow_app: AirflowApp) -> None:
    found = get(airflow_app, JOB + "/savepoints")["savepoints"][0]
    assert found["url"] == f"file://{airflow_app.root}/_savepoints/orders/nightly"
    assert (found["name"], found["kind"], found["checkpoint"]) == ("nightly", "native", 306)
    assert (found["at"], found["expires"], found["note"]) == (
        NOW // 1000,
        (NOW + MICROS) // 1000,
        "before the upgrade",
    )
    assert found["bytes"] == 3 * 1_000_000 + 12 * 306


def test_storage(airflow_app: AirflowApp) -> None:
    found = get(airflow_app, JOB + "/storage?retained=4")
    assert found["kept"]["checkpoints"] == 12, "those above the log's floor stay until a run has raised it"
    assert (found["age"], "young" in found["roots"]) == ("0", False)
    by_age = get(airflow_app, JOB + "/storage?retained=4&age=40000%20weeks")
    assert by_age["age"] == "40000 weeks"
    assert by_age["roots"]["young"] > 0
    assert by_age["freed_records"] <= found["freed_records"]
    assert found["total_bytes"] == found["kept"]["bytes"] + sum(each["bytes"] for each in found["freed"])


@pytest.mark.parametrize(
    ("address", "status", "words"),
    [
        ("/stateflow/api/jobs/elsewhere/orders", 404, "there is no connection 'elsewhere' of type stateflow"),
        ("/stateflow/api/jobs/stateflow_default/nope", 404, "there is no job 'nope'"),
        ("/stateflow/api/jobs/stateflow_default/_savepoints", 400, "job name '_savepoints' is not usable"),
        ("/stateflow/api/jobs/stateflow_default/%2e%2e%2fsecret/timeline", 404, ""),
        ("/stateflow/api/jobs/stateflow_default/a b", 400, "job name 'a b' is not usable"),
        ("/stateflow/api/jobs/nowhere/orders", 404, "there is no job 'orders'"),
        (JOB + "/checkpoints/9999", 404, "job 'orders' has no checkpoint 9999"),
        (JOB + "/checkpoints/0", 422, "slot: "),
        (JOB + "/checkpoints/x", 422, "slot: "),
        (JOB + "/timeline?points=1", 422, "points: "),
        (JOB + "/history?limit=100000", 422, "limit: "),
        (JOB + "/history?kind=nonsense", 422, "kind: "),
        (JOB + "/storage?retained=0", 422, "retained: "),
        (JOB + "/storage?age=a%20while", 422, "age: 'a while' is not a duration"),
        ("/stateflow/api/jobs/stateflow_default/orders/storage?retained=10001", 422, "retained: "),
        ("/stateflow/api/jobs/stateflow_default/nope/storage", 404, "there is no job 'nope'"),
        ("/stateflow/api/jobs/stateflow_default/nope/savepoints", 404, "there is no job 'nope'"),
        ("/stateflow/nothing", 404, "Not Found"),
    ],
)
def test_what_is_not_there_or_makes_no_sense(
    airflow_app: AirflowApp, address: str, status: int, words: str
) -> None:
    assert words in said(airflow_app, address, status)


def test_who_asks_again_hears_nothing_when_nothing_has_changed(airflow_app: AirflowApp) -> None:
    for part in ("/timeline", "/history", "/checkpoints/312", "/graph", "/savepoints", "/storage"):
        first = airflow_app.viewer.get(JOB + part)
        again = airflow_app.viewer.get(JOB + part, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b""), part
        assert "private" in first.headers["cache-control"], "no proxy may hand it to somebody else"


def test_no_answer_holds_a_secret(airflow_app: AirflowApp) -> None:
    from tests.ui.test_access import FILLED

    for route in airflow_app.plugin.routes:
        if "GET" in route.methods:
            path = route.path.replace(":path", "").format(**FILLED)
            text = airflow_app.admin.get("/stateflow" + path).text
            assert SECRET not in text
            assert "storage_options" not in text
            assert "do not tell" not in text, "a parameter that is named like a secret"


def act(app: AirflowApp, dag_id: str, body: Any) -> tuple[int, str]:
    answer = press(app.admin, dag_id, body)
    return answer.status_code, first_sentence(answer.json().get("detail", ""))


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (
            {"conf": {"job": "orders", "kind": "golden"}},
            400,
            "'golden' is not one of ['native', 'canonical']",
        ),
        ({"conf": {"job": 7}}, 400, "7 is not of type 'string'"),
        ({"conf": "orders"}, 422, '"conf" has to be an object'),
        ({"conf": {}, "note": 1}, 422, '"note" has to be a text'),
        ({"configuration": {}}, 422, "the body has to be a JSON object"),
        ("{", 422, "the body has to be a JSON object"),
        ("[]", 422, "the body has to be a JSON object"),
        ({"conf": {"note": "x" * 70_000}}, 413, "a form has 65536 bytes at most"),
    ],
)
def test_a_form_with_nonsense_is_one_sentence_and_no_run(
    airflow_app: AirflowApp, body: Any, status: int, words: str
) -> None:
    before = airflow_app.admin.get("/api/v2/dags/~/dagRuns").json()["total_entries"]
    found, sentence = act(airflow_app, "stateflow_savepoint", body)
    assert found == status
    assert words in sentence
    assert "\n" not in sentence
    assert airflow_app.admin.get("/api/v2/dags/~/dagRuns").json()["total_entries"] == before


def test_a_dag_that_is_not_there_or_paused_is_not_started(airflow_app: AirflowApp) -> None:
    status, sentence = act(airflow_app, "stateflow_recovery", {"conf": {}})
    assert (status, "there is no DAG 'stateflow_recovery'" in sentence) == (404, True)
    pause("stateflow_savepoint", True)
    try:
        status, sentence = act(airflow_app, "stateflow_savepoint", {"conf": {}})
    finally:
        pause("stateflow_savepoint", False)
    assert (status, "is paused, so nothing would happen" in sentence) == (409, True)


def test_an_action_says_where_its_run_is_found(airflow_app: AirflowApp) -> None:
    form = {"conf": {"job": "orders"}, "note": "from the pages"}
    answer = press(airflow_app.admin, "stateflow_savepoint", form).json()
    assert answer["dag_run_id"].startswith("manual__")
    run = airflow_app.admin.get(f"/api/v2/dags/stateflow_savepoint/dagRuns/{answer['dag_run_id']}").json()
    assert (run["note"], run["conf"]["job"]) == ("from the pages", "orders")


def test_connections_are_found_in_database_and_environment(airflow_app: AirflowApp) -> None:
    from stateflow_ui.connections import read_roots

    root = airflow_app.root / "stored"
    made = airflow_app.admin.post(
        "/api/v2/connections",
        json={
            "connection_id": "stored",
            "conn_type": "stateflow",
            "extra": json.dumps({"checkpoint_dir": str(root)}),
        },
    )
    assert made.status_code == 201, made.text
    other = airflow_app.admin.post("/api/v2/connections", json={"connection_id": "mail", "conn_type": "smtp"})
    assert other.status_code == 201
    roots = {each.conn_id: each for each in read_roots()}
    assert list(roots) == ["stateflow_default", "nowhere", "stored"]
    assert roots["stored"].shown == f"file://{root}"
    assert SECRET not in repr(list(roots.values()))
    for conn_id in ("stored", "mail"):  # other modules' tests have the same database
        airflow_app.admin.delete(f"/api/v2/connections/{conn_id}")


def test_a_connection_without_a_root_says_so(
    airflow_app: AirflowApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stateflow_ui.connections import read_roots

    monkeypatch.setenv("AIRFLOW_CONN_EMPTY", json.dumps({"conn_type": "stateflow"}))
    monkeypatch.setenv("AIRFLOW__STATEFLOW__CONN_IDS", "vault_one, stateflow_default")
    roots = {each.conn_id: each for each in read_roots()}
    assert "connection 'empty' has no checkpoint root" in roots["empty"].problem
    assert "there is no connection 'vault_one'" in roots["vault_one"].problem, "it was named, so it is missed"
    assert not roots["stateflow_default"].problem


def test_airflow_lists_the_plugin_and_nothing_that_went_wrong_with_it(airflow_app: AirflowApp) -> None:
    found = airflow_app.admin.get("/api/v2/plugins").json()["plugins"]
    mine = [plugin for plugin in found if plugin["name"] == "stateflow"]
    assert len(mine) == 1
    assert [view["destination"] for view in mine[0]["external_views"]] == ["nav", "dag", "dag_run"]
    assert airflow_app.admin.get("/api/v2/plugins/importErrors").json()["import_errors"] == []
