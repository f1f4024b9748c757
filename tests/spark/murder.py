"""Starts runs in processes of their own, and kills them: the driver, an executor, a Python worker, or all."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tests.spark.murder_host import MurderHost
from tests.spark.murder_jvm import WarmJvm
from tests.spark.murder_nursery import Born, Nursery
from tests.spark.murder_victim import Errand

ROOT = Path(__file__).absolute().parents[2]
Event = dict[str, Any]


class Stuck(AssertionError):
    """A run did not get where it had to within its time."""


@dataclass(frozen=True)
class Process:
    """A process, told apart from a later one that was given its number."""

    pid: int
    parent: int = field(compare=False)
    """Another one adopts it when that dies."""
    born: str
    command: str

    @property
    def kind(self) -> str:
        if "CoarseGrainedExecutorBackend" in self.command:
            return "executor"
        if "daemon pyspark.worker" in self.command:
            return "worker"
        return "driver"

    def kill(self, number: int = signal.SIGKILL) -> bool:
        if process_of(self.pid) != self:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)
            return True
        return False


def process_of(pid: int) -> Process | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, parent, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else Process(pid, int(parent), rest[17], command.strip())


def descendants(pid: int) -> list[Process]:
    """What `pid` has started, and they in turn, itself left out."""
    found = (process_of(int(at.name)) for at in Path("/proc").iterdir() if at.name.isdigit())
    children: dict[int, list[Process]] = {}
    for process in found:
        if process is not None:
            children.setdefault(process.parent, []).append(process)
    out: list[Process] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        out += below
        waiting += [p.pid for p in below]
    return out


@dataclass
class Run:
    """A driver in a session of its own, so that its JVMs and Python processes are known."""

    errand: Errand
    process: subprocess.Popen[bytes] | Born
    log: Path
    family: set[Process] = field(default_factory=set)
    jvm: WarmJvm | None = None
    """The JVM that it was given, which outlives it; otherwise it has one of its own."""

    @classmethod
    def start(
        cls,
        errand: Errand,
        jvm: WarmJvm | None = None,
        nursery: Nursery | None = None,
        host: MurderHost | None = None,
    ) -> Run:
        logs = Path(errand.folder) / "runs"
        logs.mkdir(exist_ok=True)
        log = logs / f"{len(list(logs.glob('*.log'))):03d}.log"
        env = {k: v for k, v in os.environ.items() if not k.startswith("STATEFLOW_")}
        env["PYTHONPATH"] = str(ROOT)
        # A JVM that is killed leaves copies of its jars, some 90 MB.
        env["SPARK_LOCAL_DIRS"] = str(log.with_suffix(".spark"))
        if jvm is not None:
            env |= jvm.environment
        if nursery is not None:
            born = nursery.bear(errand, log, log.with_suffix(".err"), env)
            return cls(errand, born, log, jvm=jvm)
        command = [sys.executable, "-m", "tests.spark.murder_victim", msgspec.json.encode(errand).decode()]
        if host is not None:
            host.ready()
            command, env = host.command(errand), host.victim(errand)
        with log.open("wb") as out, log.with_suffix(".err").open("wb") as err:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=env,
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return cls(errand, process, log, jvm=jvm)

    @property
    def events(self) -> list[Event]:
        lines = self.log.read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith(b"{")]

    def told(self, event: str) -> list[Event]:
        return [e for e in self.events if e["event"] == event]

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def until(self, happened: Callable[[Run], Any], seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not happened(self):
            if self.ended and not happened(self):
                raise Stuck(f"the run ended ({self.process.returncode}) before {what}\n{self.story()}")
            if time.monotonic() > end:
                self.bury()
                raise Stuck(f"no {what} within {seconds:.0f} s\n{self.story()}")
            time.sleep(0.05)

    def wait(self, seconds: float = 180) -> int:
        """Until it ends by itself; its exit code."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.bury()
            raise Stuck(f"the run did not end within {seconds:.0f} s\n{self.story()}") from None
        self.bury()
        return code

    def look(self) -> list[Process]:
        found = descendants(self.process.pid)
        self.family.update(found)
        return found

    def kill(self, *, everything: bool = False) -> None:
        """SIGKILL to the driver's group; Python's daemon is in a group of its own and may live a little longer."""
        found = self.look()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        if everything:
            for process in found:
                process.kill()
        self.process.wait(30)

    def kill_one(self, kind: str, chance: random.Random) -> bool:
        """SIGKILL to one executor or to one Python worker, if there is any."""
        found = self.look() if self.jvm is None else descendants(self.jvm.pid)
        if kind == "worker":
            # Not the daemon, whose parent is a JVM: the forked workers below it.
            daemons = {p.pid for p in found if p.kind == "worker"}
            some = [p for p in found if p.kind == "worker" and p.parent in daemons]
        else:
            some = [p for p in found if p.kind == kind]
        return bool(some) and chance.choice(sorted(some, key=lambda p: p.pid)).kill()

    def freeze(self) -> None:
        """SIGSTOP to all of it."""
        for process in self._all():
            process.kill(signal.SIGSTOP)

    def thaw(self) -> None:
        for process in self._all():
            process.kill(signal.SIGCONT)

    def _all(self) -> list[Process]:
        tops = [self.process.pid, *([] if self.jvm is None else [self.jvm.pid])]
        own = self.look() if self.jvm is None else [*self.look(), *descendants(self.jvm.pid)]
        return [*own, *(process for top in tops if (process := process_of(top)) is not None)]

    def bury(self) -> None:
        """Leaves nothing of it running: only what this test has started, each by its own number."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.look()
        self.process.wait(30)
        for process in self.family:
            process.kill()
        shutil.rmtree(self.log.with_suffix(".spark"), ignore_errors=True)

    def story(self) -> str:
        errors = self.log.with_suffix(".err").read_text(errors="replace")[-3000:]
        return "\n".join([f"errand: {self.errand}", *map(str, self.events[-8:]), errors])


@dataclass
class Killer:
    """Runs a job until its input is used up, killing it on the way as the dice fall."""

    errand: Callable[[], Errand]
    chance: random.Random
    log: Callable[[str], None] = print
    spread: float = 1.0
    """How late a kill can come, in times of what the run took to start."""
    kills: list[str] = field(default_factory=list)
    restarts: int = 0

    def once(self, moment: str, *, patience: float = 180) -> bool:
        """One run, killed in the way that `moment` says; False when it was through before it could be."""
        how, _, where = moment.partition(" ")
        errand = self.errand()
        run = Run.start(msgspec.structs.replace(errand, at=f"{where}:kill") if how == "point" else errand)
        self.restarts += 1
        try:
            if how == "point":
                run.wait(patience)
                done = bool(run.told("kill"))
            else:
                done = self._at_random(run, how, patience)
            if not done and run.process.returncode != 0:
                raise Stuck(f"a run failed by itself with {run.process.returncode}\n{run.story()}")
            if done:
                self.kills.append(moment)
            self.log(
                f"{moment}: {'killed' if done else 'was through before'} after {len(run.told('batch'))} batches"
            )
            return done
        finally:
            run.bury()

    def _at_random(self, run: Run, how: str, patience: float) -> bool:
        run.until(lambda r: r.events or r.ended, patience, "sign of life")
        share = self.chance.uniform(-0.2, self.spread)
        if share > 0:
            run.until(lambda r: r.told("claimed") or r.ended, patience, "claim")
        # How long the run took to start tells how long things take on this machine just now.
        wait = abs(share) * (time.time() - run.told("begins")[0]["at"] if share > 0 else 5)
        with suppress(subprocess.TimeoutExpired):
            run.process.wait(wait)
            return False
        if how in ("driver", "everything"):
            run.kill(everything=how == "everything")
            return True
        killed = run.kill_one(how, self.chance)
        # The run gets over it by itself, or it does not; either way the next one carries on.
        run.wait(patience)
        return killed

    def drain(self, patience: float = 300) -> Run:
        run = Run.start(self.errand())
        self.restarts += 1
        if run.wait(patience) != 0:
            raise Stuck(f"the last run failed with {run.process.returncode}\n{run.story()}")
        return run


def moments(chance: random.Random, kinds: list[str], points: list[str]) -> Iterator[str]:
    """How to kill next, for ever."""
    while True:
        how = chance.choice(kinds)
        if how == "point":
            yield f"point {chance.choice(points)}:{chance.randint(1, 3)}"
        else:
            yield how
