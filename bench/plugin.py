"""The pages' API inside Airflow's own app: what each address takes when a hundred jobs are known."""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.made_state import now
from bench.measurement import Measurement, Results, Section, Workplace, at_most, median, percentile, seconds
from bench.measurement import size as bytes_
from tests.jobs.records import Made, make_job

SIDES = ("get",)
LONG = "orders"
BOUND = 0.1
_PAUSE = 0.05
"""Seconds between two requests, so that the readings in the background go on between them, as in real use."""
_USER, _PASSWORD = "viewer", "viewer"


@dataclass(frozen=True, slots=True)
class Size:
    jobs: int
    checkpoints: int
    """Checkpoints of one of the jobs, all of them in the log."""
    requests: int
    """How often to request each address."""


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    root = workplace.folder / "checkpoints"
    workplace.say(f"making {size.jobs} jobs, one of {size.checkpoints:,} checkpoints")
    at = now()
    make_job(root, Made(LONG, standing=size.checkpoints), at)
    for number in range(1, size.jobs):
        make_job(root, Made(f"job-{number:03d}", standing=10, collected=300, running=number % 3 == 0), at)
    workplace.say("starting Airflow's app")
    return asyncio.run(measure(airflow_app(workplace.folder, root), addresses(size), size, workplace))


def addresses(size: Size) -> dict[str, str]:
    job = f"/stateflow/api/jobs/stateflow_default/{LONG}"
    return {
        "all jobs": "/stateflow/api/jobs",
        "one job": job,
        "timeline": f"{job}/timeline?points=600",
        "history, newest page": f"{job}/history?limit=100",
        "history, in the middle": f"{job}/history?limit=100&before={size.checkpoints // 2}",
        "one checkpoint": f"{job}/checkpoints/{size.checkpoints}",
        "graph": f"{job}/graph",
        "savepoints": f"{job}/savepoints",
        "storage": f"{job}/storage",
        "metrics": "/stateflow/metrics",
        "the page itself": "/stateflow/",
    }


def airflow_app(folder: Path, root: Path) -> Any:
    """Airflow's own app, with its database, its users and all of its middleware."""
    plugins = Path(__file__).resolve().parents[1] / "plugins"
    passwords = folder / "passwords.json"
    passwords.write_text(json.dumps({_USER: _PASSWORD}))
    connection = {"conn_type": "stateflow", "extra": {"checkpoint_dir": str(root)}}
    os.environ.update(
        {
            "AIRFLOW_HOME": str(folder / "airflow"),
            "_AIRFLOW_PROCESS_CONTEXT": "server",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(plugins),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{_USER}:viewer",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
            "AIRFLOW__API_AUTH__JWT_SECRET": "only-for-this-measurement-" * 3,
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
            "AIRFLOW_CONN_STATEFLOW_DEFAULT": json.dumps(connection),
        }
    )
    from airflow.api_fastapi.app import create_app
    from airflow.utils.db import initdb

    initdb()
    return create_app()


async def measure(app: Any, urls: dict[str, str], size: Size, workplace: Workplace) -> dict[str, Any]:
    async with app.router.lifespan_context(app):
        status, body = await ask(app, "POST", "/auth/token", {}, {"username": _USER, "password": _PASSWORD})
        if status != 201:
            raise AssertionError(f"Airflow gave no token: {status}")
        headers = {"Authorization": f"Bearer {json.loads(body)['access_token']}", "Accept-Encoding": "gzip"}
        workplace.say("waiting until everything is known")
        began = time.perf_counter()
        await everything_known(app, urls, headers, size)
        cold = time.perf_counter() - began
        figures: dict[str, Any] = {"cold": cold, "seconds": {}, "bytes": {}}
        for name, address in urls.items():
            workplace.say(f"asking for {name}")
            durations = []
            for _ in range(size.requests):
                began = time.perf_counter()
                status, body = await ask(app, "GET", address, headers)
                durations.append(time.perf_counter() - began)
                if status != 200:
                    raise AssertionError(f"{address} was answered with {status}: {body[:200]!r}")
                await asyncio.sleep(_PAUSE)
            figures["seconds"][name], figures["bytes"][name] = durations, len(body)
        figures["memory"] = memory()
        return figures


async def everything_known(app: Any, urls: dict[str, str], headers: dict[str, str], size: Size) -> None:
    plain = {"Authorization": headers["Authorization"]}
    while True:
        _, body = await ask(app, "GET", urls["all jobs"], plain)
        jobs = json.loads(body)["jobs"]
        all_listed = len(jobs) == size.jobs and all(job["status"] != "READING" for job in jobs)
        _, body = await ask(app, "GET", urls["one job"], plain)
        whole = json.loads(body).get("partial") is False
        answers = [(await ask(app, "GET", address, plain))[0] for address in urls.values()]
        if all_listed and whole and set(answers) == {200}:
            return
        await asyncio.sleep(0.2)


async def ask(
    app: Any, method: str, address: str, headers: dict[str, str], document: Any = None
) -> tuple[int, bytes]:
    """Calls the app itself, without a network: only the server is measured."""
    path, _, query = address.partition("?")
    body = b"" if document is None else json.dumps(document).encode()
    all_headers = {"Host": "localhost", "Content-Type": "application/json", **headers}
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in all_headers.items()],
        "client": ("127.0.0.1", 1), "server": ("localhost", 8080), "state": {},
    }  # fmt: skip
    sent: list[dict[str, Any]] = []
    requests = [{"type": "http.request", "body": body, "more_body": False}]
    disconnected = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if requests:
            return requests.pop()
        await disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    disconnected.set()
    status = next(message["status"] for message in sent if message["type"] == "http.response.start")
    return status, b"".join(message.get("body", b"") for message in sent)


def memory() -> int:
    """The memory of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def section(results: Results, size: Size) -> Section:
    figures = results.first("get")
    names = list(figures["seconds"])

    def of(name: str, share: float | None) -> float:
        pick = median if share is None else lambda values: percentile(values, share)
        return results.median("get", lambda trial: pick(trial["seconds"][name]))

    rows = [
        [name, seconds(of(name, None)), seconds(of(name, 0.95)), bytes_(figures["bytes"][name])]
        for name in names
    ]
    cold = results.median("get", lambda trial: trial["cold"])
    text = (
        f"Each address of the Airflow plugin's API {size.requests} times, through Airflow's whole app with a viewer's token, without "
        f"a network: {size.jobs} jobs in one root on the local disk, one of them with {size.checkpoints:,} checkpoints whose "
        "records all stand, about which the addresses below ask. Records were made without runs. Threads go on reading the root "
        "meanwhile. The last column is the answer as it is sent, compressed. From nothing, all of it was known after "
        f"{seconds(cold)}; the process held {bytes_(figures['memory'])} at the end."
    )
    slowest = max(names, key=lambda name: of(name, 0.95))
    targets = [
        at_most(
            f"every answer in less than 100 ms, 19 of 20 times ({size.jobs} jobs, {size.checkpoints:,} checkpoints); the slowest is "
            f"{slowest}",
            of(slowest, 0.95),
            BOUND,
            seconds,
        )
    ]
    return Section(text, ("address", "median", "95 %", "sent"), rows, targets)


MEASUREMENT = Measurement(
    "plugin",
    "The pages' API in Airflow",
    SIDES,
    {"full": Size(100, 10_000, 60), "quick": Size(20, 1_000, 20)},
    run,
    section,
    repeats=1,
    minutes={"full": 0.8, "quick": 0.4},
)
