"""Point queries: the first one on a host with an empty cache, and many clients at a server with a warm one."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.made_state import JOB, OPERATOR, STATE, make, now
from bench.measurement import Measurement, Plot, Results, Section, Workplace, at_most, median, percentile
from bench.measurement import size as bytes_

SIDES = ("cold", "warm")
SHARDS, CLIENTS = 8, 16


@dataclass(frozen=True, slots=True)
class Size:
    keys: int
    cold: int
    """How many hosts with an empty cache."""
    warm_up: int
    requests: int
    """Requests of all clients together."""


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    workplace.say(f"making {size.keys:,} keys")
    root = workplace.folder / "root"
    make(root, size.keys, shards=SHARDS)
    return cold(root, size, workplace) if side == "cold" else warm(root, size, workplace)


def cold(root: Path, size: Size, workplace: Workplace) -> dict[str, Any]:
    """Queries with an empty cache each time, from reading the job's log to the value."""
    from stateflow.format.records import Owner
    from stateflow.reading.snapshots import ReaderContext, checkpoint_reader
    from stateflow.state.backends.choice import ShardReaders
    from stateflow.state.backends.rocksdb_options import RocksOptions
    from stateflow.storage.cache import FileCache

    figures: dict[str, Any] = {"seconds": [], "fetched": [], "owner": [], "state": 0}
    for number in range(size.cold):
        folder = workplace.folder / f"host-{number}"
        here = ReaderContext(
            str(root),
            FileCache(folder / "cache", 1 << 40),
            folder / "scratch",
            ShardReaders(RocksOptions()),
            now,
        )
        key = size.keys // size.cold * number
        began = time.perf_counter()
        with checkpoint_reader(here, JOB, owner=Owner(run=JOB), ids=lambda: uuid.uuid4().hex) as reader:
            if reader.get(OPERATOR, STATE, key) != float(key):
                raise AssertionError(f"key {key} does not have its value")
            figures["seconds"].append(time.perf_counter() - began)
            target = reader.target(OPERATOR, STATE)
            owner = target.shards[target.place(key)[0]]
            figures["owner"].append(sum(ref.size for ref in owner.files if ref.data is None))
            figures["state"] = sum(shard.bytes for shard in target.shards)
        figures["fetched"].append(here.cache.bytes_fetched)
    return figures


def warm(root: Path, size: Size, workplace: Workplace) -> dict[str, Any]:
    """Queries from clients in a process of their own. Each asks again as soon as it has its answer."""
    with serving(root, workplace.folder) as (url, token):
        load = _Load(url, token, size.keys)
        workplace.say("warming up")
        asyncio.run(load.by(CLIENTS, size.warm_up))
        workplace.say(f"asking {size.requests:,} times")
        began = time.perf_counter()
        seconds = asyncio.run(load.by(CLIENTS, size.requests))
        return {"seconds": seconds, "elapsed": time.perf_counter() - began}


@contextmanager
def serving(root: Path, folder: Path) -> Iterator[tuple[str, str]]:
    command = [
        sys.executable,
        "-m",
        "stateflow.cli",
        "serve",
        "--checkpoint-dir",
        str(root),
        "--job",
        JOB,
    ]
    command += ["--port", "0", "-o", "json"]
    environment = {**os.environ, "STATEFLOW_CACHE_DIR": str(folder / "cache")}
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            yield said["url"], said["token"]
        finally:
            process.terminate()


class _Load:
    def __init__(self, url: str, token: str, keys: int) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname, parts.port
        self._keys = keys
        self._head = f" HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {token}\r\nAccept: application/json\r\n\r\n"

    async def by(self, clients: int, times: int) -> list[float]:
        """The seconds of each answer."""
        each = [self._one(random.Random(number), times // clients) for number in range(clients)]
        return [second for answers in await asyncio.gather(*each) for second in answers]

    async def _one(self, chance: random.Random, times: int) -> list[float]:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(_Client, self._host, self._port)
        path = f"GET /jobs/{JOB}/operators/{OPERATOR}/states/{STATE}?key="
        seconds = []
        for _ in range(times):
            key = chance.randrange(self._keys)
            began = time.perf_counter()
            body = await client.ask(f"{path}{key}{self._head}".encode())
            seconds.append(time.perf_counter() - began)
            if f'"value":{float(key)}'.encode() not in body:
                raise AssertionError(f"key {key} was answered {body!r}")
        client.end()
        return seconds


class _Client(asyncio.Protocol):
    """A minimal client, so that the server is measured and not the client."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._answer: asyncio.Future[bytes] | None = None
        self._buffer = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def ask(self, request: bytes) -> asyncio.Future[bytes]:
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) >= length and self._answer is not None:
            self._buffer = b""
            self._answer.set_result(body)

    def end(self) -> None:
        self._transport.close()


def section(results: Results, size: Size) -> Section:
    first = results.first("cold")
    middle = results.median("warm", lambda trial: median(trial["seconds"]))
    slowest = results.median("warm", lambda trial: percentile(trial["seconds"], 0.99))
    rate = results.median("warm", lambda trial: len(trial["seconds"]) / trial["elapsed"])
    over = max(
        fetched / owner
        for trial in results.of("cold")
        for fetched, owner in zip(trial["fetched"], trial["owner"], strict=True)
    )
    opened = results.median("cold", lambda trial: median(trial["seconds"]))
    rows = [
        ["state", bytes_(first["state"]), f"{size.keys:,} keys in {SHARDS} shards"],
        [
            "first answer on a host that has nothing",
            _ms(opened),
            f"{bytes_(median(first['fetched']))} fetched",
        ],
        [f"answer with {CLIENTS} clients, median", _ms(middle), f"{rate:,.0f} answers a second"],
        [f"answer with {CLIENTS} clients, 99th percentile", _ms(slowest), ""],
    ]
    text = (
        f"A look-up of a key in {SHARDS} shards. Cold: the job's log is read, the one shard that owns the key is fetched, checked "
        f"and opened. Warm: {CLIENTS} clients in a process of their own, each of which asks for another key as soon as it is "
        "answered, over HTTP with tokens checked, so that the server is never idle."
    )
    targets = [
        at_most("a cold look-up fetches only the shard that owns the key", over, 1.0),
        at_most(f"the median answer with {CLIENTS} clients takes at most 5 ms", middle, 0.005, _ms),
        at_most(f"the 99th percentile with {CLIENTS} clients is at most 20 ms", slowest, 0.020, _ms),
    ]
    shares = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
    seconds = results.first("warm")["seconds"]
    plot = Plot(
        "query",
        f"Answers with {CLIENTS} clients",
        "lines",
        [f"{share:.1%}".replace(".0", "") for share in shares],
        {"this server": [percentile(seconds, share) * 1000 for share in shares]},
        "share of answers",
        "milliseconds, at most",
    )
    return Section(text, ("what", "measured", ""), rows, targets, [plot])


def _ms(value: float) -> str:
    return f"{value * 1000:.1f} ms"


MEASUREMENT = Measurement(
    "query",
    "Point queries",
    SIDES,
    {"full": Size(5_000_000, 8, 4_000, 40_000), "quick": Size(500_000, 4, 2_000, 10_000)},
    run,
    section,
    minutes={"full": 1.5, "quick": 0.3},
)
