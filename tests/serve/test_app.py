"""The service over real HTTP: routes, rights, refusals, newer checkpoints."""

from __future__ import annotations

import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

import stateflow as sf
from stateflow.checkpoint.pins import list_pins
from stateflow.format.encoding import EMPTY_NAMESPACE, prefix
from stateflow.format.keygroups import xxhash64
from stateflow.serve.access import from_file
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.values.serializers import serializer_for
from tests.jobs.queried import QueriedJob, Row, entries_of, filled, opener
from tests.serve.conftest import TOKEN, Serve, Served, until

ORDERS = "/jobs/orders/operators/balance/states"


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status, self.headers = response.status, response.headers
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"]["message"])


def ask(
    served: Served,
    path: str,
    *,
    token: str | None = TOKEN,
    body: Any = None,
    method: str = "",
    headers: dict[str, str] | None = None,
) -> Answer:
    connection = http.client.HTTPConnection(urlsplit(served.url).netloc, timeout=30)
    sent = {**({"Authorization": f"Bearer {token}"} if token is not None else {}), **(headers or {})}
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        connection.request(method or ("GET" if body is None else "POST"), path, data, sent)
        return Answer(connection.getresponse())
    finally:
        connection.close()


def test_one_key(served: Served) -> None:
    head = served.job.head()
    assert ask(served, f"{ORDERS}/total?key=7").json == {
        "job": "orders",
        "checkpoint": head.slot,
        "at": head.at,
        "operator": "balance",
        "state": "total",
        "kind": "value",
        "key": "7",
        "found": True,
        "what": "value",
        "value": 1.0,
        "more": False,
    }


def test_every_kind_of_state_that_may_be_served(served: Served) -> None:
    values = {
        name: (answer["what"], answer["value"])
        for name in ("total", "items", "log", "most", "mean", "brief")
        if (answer := ask(served, f"{ORDERS}/{name}?key=1").json)
    }
    assert values == {
        "total": ("value", 1.0),
        "items": ("map", {"sku0": 1, "sku1": 1}),
        "log": ("list", ["sku0", "sku1"]),
        "most": ("accumulator", 1.0),
        "mean": ("accumulator", {"_1": 1.0, "_2": 2}),
        "brief": ("value", 1),
    }
    entry = ask(served, f"{ORDERS}/items?key=1&map_key=sku1").json
    assert (entry["what"], entry["map_key"], entry["value"]) == ("map entry", "sku1", 1)
    less = ask(served, f"{ORDERS}/items?key=1&limit=1").json
    assert (less["value"], less["more"]) == ({"sku0": 1}, True)
    nothing = ask(served, f"{ORDERS}/total?key=-5").json
    assert (nothing["found"], nothing["value"]) == (False, None)


def test_many_keys(served: Served) -> None:
    answer = ask(served, f"{ORDERS}/total", body={"keys": [7, 999, "3"]}).json
    assert [one["value"] for one in answer["results"]] == [1.0, None, 1.0]
    assert [one["key"] for one in answer["results"]] == [7, 999, "3"]
    entries = ask(served, f"{ORDERS}/items", body={"keys": [1, 2], "map_key": "sku1"}).json
    assert [one["value"] for one in entries["results"]] == [1, 1]
    assert entries["map_key"] == "sku1"


class Accounts(sf.KeyedProcess[tuple[str, Decimal], Row, Row]):
    total = sf.ValueState(int, queryable=True)
    of_whom = sf.MapState(Decimal, int, queryable=True)

    def process(self, key: tuple[str, Decimal], rows: Any, ctx: Any) -> None:
        """What the test stores, it stores itself."""


def test_a_decimal_part_of_a_batchs_key_is_taken_digit_by_digit(tmp_path: Path, serve: Serve) -> None:
    mine, others = ("ann", Decimal("12345678901234567.89")), ("ann", Decimal("12345678901234568"))
    job = QueriedJob(
        tmp_path / "root", process=Accounts, key=(("user", "str"), ("account", "decimal")), retained=1
    )
    stored = {}
    codec, dumps = KeyCodec(["str", "decimal"]), serializer_for(int).dumps
    for key, value in ((mine, 1), (others, 2)):
        place = prefix(xxhash64(codec.decode(codec.encode(key), 0)[0]) % 128, job.states["total"].id)
        stored[place + codec.encode(key) + EMPTY_NAMESPACE] = dumps(value)
    job.checkpoint(stored)
    served = serve(job)
    answer = ask(served, f"{ORDERS}/total", body=b'{"keys": [["ann", 12345678901234567.89]]}')
    assert json.loads(answer.body, parse_float=Decimal)["results"] == [
        {"key": list(mine), "found": True, "what": "value", "value": 1, "more": False}
    ]
    part = ask(served, f"{ORDERS}/of_whom", body=b'{"keys": [["ann", 1.5]], "map_key": 12345678901234567.89}')
    assert json.loads(part.body, parse_float=Decimal)["map_key"] == mine[1]


def test_what_there_is(job: QueriedJob, serve: Serve) -> None:
    job.checkpoint(entries_of(filled(1)))
    served = serve(job)
    assert ask(served, "/jobs").json == {"jobs": [{"job": "orders", "checkpoint": None, "at": None}]}
    told = ask(served, "/jobs/orders").json
    assert told["checkpoint"] == job.head().slot
    operator = told["operators"]["balance"]
    assert operator["key"] == [{"name": "user", "type": "int"}]
    assert operator["states"]["items"] == {
        "kind": "map",
        "type": "int",
        "map_key": "str",
        "ttl": None,
        "queryable": True,
    }
    assert operator["states"]["secret"]["queryable"] is False
    assert ask(served, "/jobs").json["jobs"][0]["checkpoint"] == job.head().slot


def test_a_state_that_did_not_opt_in_is_refused_with_how_to(served: Served) -> None:
    answer = ask(served, f"{ORDERS}/secret?key=1")
    assert answer.status == 403
    assert "sf.ValueState(..., queryable=True)" in answer.error
    assert b"hidden" not in answer.body
    assert ask(served, f"{ORDERS}/secret", body={"keys": [1]}).status == 403
    timer = ask(served, f"{ORDERS}/idle?key=1")
    assert timer.status == 403
    assert "`stateflow query`" in timer.error


@pytest.mark.parametrize(
    "path", ["/jobs", "/jobs/orders", f"{ORDERS}/total?key=1", "/jobs/none", f"{ORDERS}/none"]
)
def test_without_a_token_nothing_is_answered(served: Served, path: str) -> None:
    for headers in (
        {},
        {"Authorization": "Bearer wrong-token-of-some-length"},
        {"Authorization": f"Basic {TOKEN}"},
    ):
        answer = ask(served, path, token=None, headers=headers)
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    # What takes no body says so without looking at who asks.
    assert ask(served, path, token=None, body={"keys": []}).status in (401, 405)


def test_a_token_opens_what_it_has_a_right_to_and_hides_what_else_exists(
    job: QueriedJob, serve: Serve, tmp_path: Path
) -> None:
    job.checkpoint(entries_of(filled(1)))
    QueriedJob(tmp_path / "root", "payments")
    path = tmp_path / "tokens.toml"
    path.write_text(
        '[narrow]\ntoken = "narrow-token-0123456789"\nrights = ["orders/balance/total", "orders/balance/secret"]\n'
        '[other]\ntoken = "other-token-0123456789"\nrights = ["clicks/*/*"]\n'
    )
    served = serve(job, from_file(path))
    narrow, other = "narrow-token-0123456789", "other-token-0123456789"
    assert ask(served, f"{ORDERS}/total?key=1", token=narrow).json["value"] == 1.0
    refused = ask(served, f"{ORDERS}/items?key=1", token=narrow)
    assert refused.status == 403
    assert "'narrow' has no right to read orders/balance/items" in refused.error
    assert ask(served, f"{ORDERS}/none?key=1", token=narrow).status == 403, "before it says whether it exists"
    assert ask(served, f"{ORDERS}/secret?key=1", token=narrow).status == 403
    assert list(ask(served, "/jobs/orders", token=narrow).json["operators"]["balance"]["states"]) == [
        "total",
        "secret",
    ]
    assert ask(served, "/jobs/orders", token=other).status == 403
    assert ask(served, "/jobs", token=other).json == {"jobs": []}
    assert ask(served, "/jobs", token=narrow).json["jobs"][0]["job"] == "orders"
    unknown = ask(served, "/jobs/clicks", token=other)
    assert unknown.status == 404
    assert "payments" not in unknown.error


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        (f"{ORDERS}/total", 400, "add ?key="),
        (f"{ORDERS}/total?key=seven", 400, "key column 'user' is int"),
        (f"{ORDERS}/total?key=1&limit=2&key=2", 400, "'key' is given 2 times"),
        (f"{ORDERS}/total?key=1&at=2&at=3", 400, "'at' is given 2 times"),
        ("/jobs/orders?at=2&at=2", 400, "'at' is given 2 times"),
        (f"{ORDERS}/total?key=1&at={'9' * 5000}", 400, "5000 digits"),
        (f"{ORDERS}/total?key=1&at={quote('9999-12-31T23:59-01:00')}", 400, "1 to 9999"),
        (f"{ORDERS}/total?key=1&map_key=a", 400, "has no map keys"),
        (f"{ORDERS}/total?key=1&mapkey=a", 400, "'mapkey' is unknown here"),
        (f"{ORDERS}/items?key=1&limit=0", 400, "limit is '0': use a whole number from 1 to 10000"),
        (f"{ORDERS}/items?key=1&limit=x", 400, "limit is 'x'"),
        (f"{ORDERS}/items?key=1&min_checkpoint=1.5", 400, "min_checkpoint is '1.5'"),
        (f"{ORDERS}/items?key=1&min_checkpoint=1&wait=nan", 400, "wait is 'nan'"),
        (f"{ORDERS}/none?key=1", 404, "no state 'none'"),
        ("/jobs/orders/operators/none/states/total?key=1", 404, "no operator 'none'"),
        ("/jobs/none/operators/balance/states/total?key=1", 404, "no job 'none'"),
        (f"/jobs/{quote('../x', safe='')}", 404, "/openapi.json lists"),
        ("/jobs/.hidden", 400, "job name '.hidden' is not usable"),
        ("/nothing", 404, "/openapi.json lists"),
        ("/docs", 404, "/openapi.json lists"),
    ],
)
def test_what_cannot_be_answered_says_why(served: Served, path: str, status: int, says: str) -> None:
    answer = ask(served, path)
    assert (answer.status, says in answer.error) == (status, True), answer.body
    assert set(answer.json["error"]) == {"type", "message", "exit_code"}


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"{", 400, "the body is not usable"),
        (b'{"keys": ["\xff"]}', 400, "the body is not usable"),
        (b'{"keys": ' + b"[" * 100_000, 400, "the body is not usable"),
        (b'{"keys": [1e99999999999999999999]}', 400, "the body is not usable"),
        ({}, 400, "missing required field `keys`"),
        ({"keys": [1], "key": 2}, 400, "unknown field `key`"),
        ({"keys": list(range(1001))}, 400, "1001 keys are too many"),
        ({"keys": [1, "x"]}, 400, "'x' is not one"),
        ({"keys": [1], "limit": 10001}, 400, "limit is 10001"),
        (b" " * (1 << 20) + b"{}", 413, "larger than"),
    ],
)
def test_a_batch_that_cannot_be_answered_says_why(served: Served, body: Any, status: int, says: str) -> None:
    answer = ask(served, f"{ORDERS}/total", body=body)
    assert (answer.status, says.lower() in answer.error.lower()) == (status, True), answer.body


def test_a_batch_of_large_maps_is_refused_and_not_cut(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateflow.serve.answers.MOST_TOGETHER", 5)
    fits = ask(served, f"{ORDERS}/items", body={"keys": [1, 2, 999]})
    assert [len(one["value"]) for one in fits.json["results"]] == [2, 2, 0]
    refused = ask(served, f"{ORDERS}/items", body={"keys": [1, 2, 3]})
    assert refused.status == 400
    assert "more than 5 entries" in refused.error
    assert ask(served, f"{ORDERS}/total", body={"keys": list(range(10))}).status == 200


def test_health_needs_no_token(served: Served) -> None:
    assert ask(served, "/healthz", token=None).json == {"status": "ok"}


def test_the_description_has_every_route_and_loads_nothing_from_elsewhere(served: Served) -> None:
    document = ask(served, "/openapi.json", token=None).json
    found = {(method, path) for path, methods in document["paths"].items() for method in methods}
    state = "/jobs/{job}/operators/{operator}/states/{state}"
    assert found == {
        ("get", "/healthz"),
        ("get", "/jobs"),
        ("get", "/jobs/{job}"),
        ("get", state),
        ("post", state),
    }
    names = {p["name"] for p in document["paths"][state]["get"]["parameters"]}
    assert names == {
        "job", "operator", "state", "key", "map_key", "limit", "min_checkpoint", "wait", "Stateflow-Min-Checkpoint", "at",
    }  # fmt: skip
    assert document["components"]["securitySchemes"] == {"bearer": {"type": "http", "scheme": "bearer"}}
    assert "security" not in document["paths"]["/healthz"]["get"]
    assert ask(served, "/docs").status == ask(served, "/redoc").status == 404


def test_newer_checkpoints_are_followed(job: QueriedJob, serve: Serve) -> None:
    first = job.checkpoint(entries_of(filled(1)))
    served = serve(job, interval=0.02)
    assert ask(served, f"{ORDERS}/total?key=1").json["checkpoint"] == first
    second = job.checkpoint(entries_of(filled(1, rows=3)))
    until(lambda: ask(served, f"{ORDERS}/total?key=1").json["checkpoint"] == second)
    assert ask(served, f"{ORDERS}/total?key=1").json["value"] == 3.0
    until(lambda: [p.slot for p in list_pins(job.store, job.layout)] == [second])


def test_an_error_that_nobody_has_foreseen_is_logged_once_and_does_not_end_the_following(
    job: QueriedJob, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    broken = threading.Event()

    def open_with(backend: str) -> Any:
        def open_shard(*given: Any) -> Any:
            if broken.is_set():
                raise RuntimeError("something odd")
            return opener(backend)(*given)

        return open_shard

    first = job.checkpoint(entries_of(filled(1)))
    served = serve(job, interval=0.02, open_with=open_with)
    assert ask(served, f"{ORDERS}/total?key=1").json["checkpoint"] == first
    broken.set()
    second = job.checkpoint(entries_of(filled(1, rows=3)))
    until(lambda: "RuntimeError: something odd" in caplog.text)
    assert ask(served, f"{ORDERS}/total?key=1").json["checkpoint"] == first
    broken.clear()
    until(lambda: ask(served, f"{ORDERS}/total?key=1").json["checkpoint"] == second)
    assert caplog.text.count("RuntimeError: something odd") == 1
    until(lambda: [p.slot for p in list_pins(job.store, job.layout)] == [second])


def test_an_answer_can_be_asked_from_a_checkpoint_on(job: QueriedJob, serve: Serve) -> None:
    job.checkpoint(entries_of(filled(1)))
    served = serve(job)  # it would poll once an hour
    ask(served, f"{ORDERS}/total?key=1")
    second = job.checkpoint(entries_of(filled(1, rows=3)))
    assert ask(served, f"{ORDERS}/total?key=1").json["value"] == 1.0
    assert ask(served, f"{ORDERS}/total?key=1&min_checkpoint={second}").json["value"] == 3.0
    third = job.checkpoint(entries_of(filled(1, rows=4)))
    header = {"Stateflow-Min-Checkpoint": str(third)}
    assert ask(served, f"{ORDERS}/total?key=1", headers=header).json["value"] == 6.0
    fourth = job.checkpoint(entries_of(filled(1, rows=5)))
    many = ask(served, f"{ORDERS}/total", body={"keys": [1], "min_checkpoint": fourth}).json
    assert many["results"][0]["value"] == 10.0
    late = ask(served, f"{ORDERS}/total?key=1&min_checkpoint={fourth + 1}&wait=0.05")
    assert late.status == 409
    assert late.headers["Retry-After"] == "1"
    assert f"has not reached checkpoint {fourth + 1}: it is at {fourth}" in late.error


def test_who_waits_for_a_checkpoint_is_answered_when_it_comes(job: QueriedJob, serve: Serve) -> None:
    first = job.checkpoint(entries_of(filled(1)))
    served = serve(job, interval=0.02)
    ask(served, f"{ORDERS}/total?key=1")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, served, f"{ORDERS}/total?key=1&min_checkpoint={first + 1}&wait=60")
        assert ask(served, f"{ORDERS}/total?key=1").json["checkpoint"] == first
        assert not waiting.done()
        job.checkpoint(entries_of(filled(1, rows=3)))
        assert waiting.result(timeout=30).json["value"] == 3.0


def test_too_many_at_once_are_turned_away_and_the_loop_stays_free(job: QueriedJob, serve: Serve) -> None:
    job.checkpoint(entries_of(filled(*range(40))))
    go = threading.Event()

    def slow(backend: str) -> Any:
        def open_shard(*arguments: Any) -> Any:
            go.wait(30)
            return opener(backend)(*arguments)

        return open_shard

    served = serve(job, max_queries=2, open_with=slow)
    path = f"{ORDERS}/total?key=1"
    with ThreadPoolExecutor(30) as pool:
        # Two run (one opens the shard, one waits for that), sixteen wait their turn.
        asked = [pool.submit(ask, served, path) for _ in range(30)]
        until(lambda: sum(one.done() for one in asked) == 12)
        for one in asked:
            if one.done():
                turned = one.result()
                assert (turned.status, turned.headers["Retry-After"]) == (503, "1")
                assert turned.json["error"]["type"] == "BusyError"
        assert ask(served, "/healthz").status == 200
        go.set()
        assert sorted(one.result().status for one in asked) == [200] * 18 + [503] * 12
    assert ask(served, path).status == 200


def test_damaged_state_is_an_error_of_the_server(job: QueriedJob, serve: Serve) -> None:
    job.checkpoint(entries_of(filled(*range(1500))))
    files = [f for s in job.head().operators["balance"].shards for f in s[0].files if f.path]
    job.store.delete([f.path for f in files])
    served = serve(job)
    answer = ask(served, f"{ORDERS}/total?key=1")
    assert answer.status == 500
    assert answer.json["error"]["type"] == "CorruptError"
    assert ask(served, "/healthz").status == 200


def test_what_is_not_expected_is_logged_and_not_told(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import stateflow.serve.app as app

    def broken(*_: Any) -> bytes:
        raise ZeroDivisionError("key of a person")

    monkeypatch.setattr(app, "answer", broken)
    answer = ask(served, f"{ORDERS}/total?key=1")
    assert answer.status == 500
    assert b"person" not in answer.body
    assert "ZeroDivisionError" in caplog.text


def test_nothing_secret_is_logged(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    ask(served, f"{ORDERS}/total?key=4711")
    ask(served, f"{ORDERS}/total?key=4711", token="wrong-token-of-some-length")
    ask(served, f"{ORDERS}/total", body={"keys": [4711]})
    assert TOKEN not in caplog.text
    assert "wrong-token" not in caplog.text
    assert "4711" not in caplog.text


def test_the_end_releases_what_was_pinned(job: QueriedJob, serve: Serve) -> None:
    job.checkpoint(entries_of(filled(1)))
    served = serve(job)
    ask(served, f"{ORDERS}/total?key=1")
    assert len(list_pins(job.store, job.layout)) == 1
    served.server.stop()
    until(lambda: list_pins(job.store, job.layout) == [])


def test_the_last_of_a_job_is_not_the_last_of_the_server(job: QueriedJob, serve: Serve) -> None:
    job.checkpoint(entries_of(filled(1)))
    served = serve(job, interval=0.02)
    assert ask(served, f"{ORDERS}/total?key=1").status == 200
    job.store.delete([entry.path for entry in job.store.list("orders/") if "/pins/" not in entry.path])
    until(lambda: served.jobs.get("orders") is None)
    assert ask(served, f"{ORDERS}/total?key=1").status == 404
    assert ask(served, "/healthz").status == 200
