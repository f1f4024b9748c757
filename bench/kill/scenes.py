"""Where a round plays: what is around the job, and what in it can be killed."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from stateflow.storage.roots import open_store
from stateflow.storage.store import Store
from tests.durable_s3 import DurableS3
from tests.lent_cache import lend
from tests.spark.kafka_broker import Broker, connector_jars
from tests.spark.murder_host import MurderHost
from tests.spark.murder_victim import QUICK, Errand

LOCAL, CLUSTER = "local[2,4]", "local-cluster[2,1,1500]"
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.minTaskRuntime": "200ms",
}
CLUSTERED = {"spark.task.maxFailures": "4", "spark.executor.memory": "600m", "spark.driver.host": "127.0.0.1"}
DRIVER = {"python": 6, "point": 8}
"""Victims of every scene, with how often their turn comes."""
DISK_MEGABYTES = 96


@dataclass
class Scene:
    errand: Errand
    victims: dict[str, int]
    faults: dict[str, Callable[[], object]] = field(default_factory=dict)
    """Victims beside the job's own processes: what kills them, and brings them back."""
    store: Callable[[], Store] | None = None
    """The job's root, when it is not in the folder."""
    broker: Broker | None = None
    """Who has the input, when it is no table in the folder."""
    lies: Callable[[], Counter[str]] = Counter
    host: MurderHost | None = None
    """Where runs are, when they are on a warm host."""
    worst: tuple[str, ...] = ("driver", "everything")
    """Of these, one dies in every round."""


@contextmanager
def calm(folder: Path, chance: random.Random) -> Iterator[Scene]:
    """One process, a root on the disk."""
    yield Scene(_errand(folder, chance), {**DRIVER, "worker": 3, "stop": 1, "driver": 1, "everything": 1})


@contextmanager
def cluster(folder: Path, chance: random.Random) -> Iterator[Scene]:
    """Executors in processes of their own."""
    yield Scene(_errand(folder, chance, master=CLUSTER), {**DRIVER, "executor": 4, "worker": 4})


@contextmanager
def server(folder: Path, chance: random.Random) -> Iterator[Scene]:
    """A root in an object store, whose server dies and comes back."""
    store = DurableS3.new(folder / "s3")

    def kill() -> None:
        store.kill()
        time.sleep(chance.uniform(0, 4))
        store.start()

    try:
        yield _on(store, folder, chance, {**DRIVER, "store's server": 4}, {"store's server": kill})
    finally:
        store.kill()


@contextmanager
def liar(folder: Path, chance: random.Random) -> Iterator[Scene]:
    """A root in an object store that delays, repeats and loses, and whose listings are stale."""
    store = DurableS3.new(folder / "s3", lies=0.06)
    try:
        yield _on(store, folder, chance, {**DRIVER, "worker": 2, "stop": 1}, {})
    finally:
        store.kill()


@contextmanager
def disk(folder: Path, chance: random.Random) -> Iterator[Scene]:
    """Root, state, staged files and tables on a small disk, which is full now and then."""
    small = folder / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MEGABYTES}m", "tmpfs", str(small)]
    subprocess.run(mount, check=True, capture_output=True)
    try:
        # What the loop itself writes does not have to fit.
        for name in ("runs", "orders"):
            (folder / name).mkdir(exist_ok=True)
            (small / name).symlink_to(folder / name)

        def fill() -> None:
            filler = small / "filler"
            with suppress(OSError), filler.open("wb", buffering=0) as out:
                while True:
                    out.write(bytes(1 << 16))
            try:
                time.sleep(chance.uniform(0.3, 4))
            finally:
                filler.unlink()

        yield Scene(_errand(small, chance), {**DRIVER, "full disk": 5}, {"full disk": fill})
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


@contextmanager
def clock(folder: Path, chance: random.Random) -> Iterator[Scene]:
    """The clock of the driver's Python jumps by up to six hours, forth and back, about every second."""
    errand = _errand(folder, chance, clock=6.0, retained_age="1 hour")
    yield Scene(errand, {**DRIVER, "stop": 1})


@contextmanager
def kafka(folder: Path, chance: random.Random) -> Iterator[Scene]:
    """The input comes from Kafka, whose broker dies and comes back."""
    broker = Broker(folder / "kafka", patience=300)
    broker.format()
    broker.start()

    def kill() -> None:
        broker.kill()
        time.sleep(chance.uniform(0, 4))
        broker.start()

    errand = _errand(folder, chance)
    conf = {**errand.conf, "spark.jars": ",".join(connector_jars())}
    errand = msgspec.structs.replace(errand, kafka=broker.address, conf=conf)
    try:
        yield Scene(errand, {**DRIVER, "Kafka's broker": 5}, {"Kafka's broker": kill}, broker=broker)
    finally:
        broker.end()


@contextmanager
def host(folder: Path, chance: random.Random) -> Iterator[Scene]:
    """Each run is one on a warm host."""
    errand = _errand(folder, chance)
    warehouse = {"spark.sql.warehouse.dir": str(folder / "warehouse")}
    warm = MurderHost(folder / "host", {**warehouse, **QUICK, **errand.conf})
    lend(folder / "host")
    worst = ("host's JVM", "host", "zygote", "host's keeper")
    try:
        yield Scene(
            errand,
            {"point": 8, "hosted run": 6, "client": 3, **dict.fromkeys(worst, 1)},
            host=warm,
            worst=worst,
        )
    finally:
        warm.end()


Play = Callable[[Path, random.Random], Any]
SCENES: dict[str, Play] = {
    "calm": calm,
    "cluster": cluster,
    "server": server,
    "disk": disk,
    "clock": clock,
    "liar": liar,
    "kafka": kafka,
    "host": host,
}


def playable() -> list[str]:
    """The scenes that this user can play: a disk of one's own takes root's rights."""
    return [name for name in SCENES if name != "disk" or (os.geteuid() == 0 and shutil.which("mount"))]


def _errand(
    folder: Path, chance: random.Random, *, master: str = LOCAL, clock: float = 0.0, **options: Any
) -> Errand:
    clustered = master == CLUSTER
    return Errand(
        str(folder),
        master=master,
        upsert=chance.random() < 0.5,
        straggle=0.1 if clustered else 0.0,
        clock=clock,
        conf={**SPECULATION, **(CLUSTERED if clustered else {})},
        options={
            "shared_filesystem": True,
            "local_fsync": False,
            "retained_checkpoints": chance.randint(1, 3),
            "max_concurrent_checkpoints": chance.randint(1, 2),
            "heartbeat_interval": "500 ms",
            "heartbeat_timeout": "3 s",
            **options,
        },
    )


def _on(
    server: DurableS3,
    folder: Path,
    chance: random.Random,
    victims: dict[str, int],
    faults: dict[str, Callable[[], object]],
) -> Scene:
    errand = _errand(
        folder, chance, checkpoint_dir=server.root, storage_options=server.options, inline_threshold="0 B"
    )
    return Scene(
        errand,
        victims,
        faults,
        store=lambda: open_store(server.root, server.options),
        lies=server.told,
    )
