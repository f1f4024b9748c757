"""A sitting: the job runs for so long, and one of all that it needs is killed every few minutes. Then everything is examined."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.cluster.journal import Batch, Journal, Kill, Sample, Sitting, Start
from bench.cluster.orders import Sender, order, sent
from bench.cluster.servers import Servers
from tests.spark.murder import Process, Run, Stuck, descendants
from tests.spark.murder_evidence import examine

TRIGGER = "2 seconds"
SAMPLED_EVERY = 20.0
PATIENCE = 900.0
VICTIMS = ("executor", "worker", "driver", "broker", "store")
"""Each dies once before one dies again."""
AWAY = (0.5, 6.0)
"""Seconds that a killed server is away, from and to."""


@dataclass
class Job:
    """The run that is under way, or the next one when it has died."""

    servers: Servers
    journal: Journal
    minute: Callable[[], float]
    run: Run
    _told: int = 0

    @classmethod
    def begin(cls, servers: Servers, journal: Journal, minute: Callable[[], float]) -> Job:
        return cls(servers, journal, minute, Run.start(servers.errand(trigger=TRIGGER)))

    def look(self) -> None:
        """Writes down the batches that are new, and starts another run when this one has ended."""
        batches = self.run.told("batch")
        for each in batches[self._told :]:
            self.journal.add(Batch(self.minute(), each["rows"], each["seconds"]))
        self._told = len(batches)
        if self.run.ended:
            errors = self.run.told("error")
            why = (
                f"{errors[-1]['kind']}: {errors[-1]['message'][:200]}"
                if errors
                else f"exit code {self.run.process.returncode}"
            )
            self.run.bury()
            self.run, self._told = Run.start(self.servers.errand(trigger=TRIGGER)), 0
            self.journal.add(Start(self.minute(), why))

    def end(self) -> float:
        """Lets a last run read all that is in the topic; the seconds that it took."""
        self.run.bury()
        began = time.monotonic()
        last = Run.start(self.servers.errand())
        if last.wait(PATIENCE) != 0:
            raise Stuck(f"the last run failed with {last.process.returncode}\n{last.story()}")
        return time.monotonic() - began


def sit(
    servers: Servers, journal: Journal, minutes: float, between: float, rate: int, commit: str
) -> Sitting:
    """`between`: minutes from one kill to the next, on average. `rate`: rows a second."""
    chance = random.Random(len(journal.lines))
    earlier, began = journal.minutes, time.monotonic()

    def minute() -> float:
        return round(earlier + (time.monotonic() - began) / 60, 2)

    sender = Sender(servers.broker.address, rate)
    job = Job.begin(servers, journal, minute)
    turn: list[str] = []
    next_kill, next_sample = 1.5 * between, SAMPLED_EVERY / 60
    try:
        while (now := minute() - earlier) < minutes:
            job.look()
            if now >= next_sample:
                journal.add(_sample(servers, job, minute(), sender.next))
                next_sample = now + SAMPLED_EVERY / 60
            if now >= next_kill and now < minutes - between / 2:
                turn = turn or chance.sample(VICTIMS, len(VICTIMS))
                victim = turn[-1]
                if _kill(victim, servers, job, chance):
                    turn.pop()
                    journal.add(Kill(minute(), victim))
                    print(f"  minute {minute():.1f}: {victim} killed, {sender.next} rows sent", flush=True)
                    next_kill = now + chance.uniform(0.5, 1.5) * between
            time.sleep(0.5)
        sender.end()
        job.look()
        seconds = job.end()
    finally:
        job.run.bury()
        with suppress(AssertionError):
            sender.end()
    rows = sent(servers.broker.address)
    wrong = examine(servers.folder, map(order, range(rows)), upsert=True, store=servers.store())
    done = Sitting(minute() - earlier, commit, rows, round(seconds, 1), wrong)
    journal.add(done)
    return done


def _kill(victim: str, servers: Servers, job: Job, chance: random.Random) -> bool:
    if victim == "driver":
        job.run.kill()
    elif victim == "broker":
        servers.broker.kill()
        time.sleep(chance.uniform(*AWAY))
        servers.broker.start()
    elif victim == "store":
        servers.objects.kill()
        time.sleep(chance.uniform(*AWAY))
        servers.objects.start()
    else:
        some = _of_the_cluster(victim)
        return bool(some) and chance.choice(sorted(some, key=lambda each: each.pid)).kill()
    return True


def _of_the_cluster(kind: str) -> list[Process]:
    """Executors, or the Python workers below them that are not the daemon of one."""
    found = descendants(os.getpid())
    if kind == "executor":
        return [each for each in found if each.kind == kind and "java" in each.command.split()[0]]
    daemons = {each.pid for each in found if each.kind == "worker"}
    return [each for each in found if each.kind == "worker" and each.parent in daemons]


def _sample(servers: Servers, job: Job, minute: float, rows: int) -> Sample:
    family = descendants(job.run.process.pid)
    jvms = [each.pid for each in family if "java" in each.command.split(" ")[0]]
    executors = [each.pid for each in _of_the_cluster("executor")]
    workers = [each.pid for each in descendants(os.getpid()) if each.kind == "worker"]
    files = [*(servers.folder / "s3" / "objects").iterdir()]
    return Sample(
        minute,
        {
            "driver's Python": _memory([job.run.process.pid]),
            "driver's JVM": _memory(jvms),
            "an executor's JVM, the largest": max(map(_one_memory, executors), default=0),
            "Python workers": _memory(workers),
        },
        sum(map(_open_files, [job.run.process.pid, *jvms])),
        len(files),
        sum(map(_size, files)),
        rows,
    )


def _memory(pids: list[int]) -> int:
    return sum(map(_one_memory, pids))


def _one_memory(pid: int) -> int:
    """What is resident; 0 when it has ended meanwhile."""
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    return 0


def _open_files(pid: int) -> int:
    with suppress(OSError):
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return 0


def _size(file: Path) -> int:
    with suppress(OSError):
        return file.stat().st_size
    return 0
