"""One round: a job is killed again and again, then drained and examined."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from bench.kill.journal import Round
from bench.kill.jvms import Jvms
from bench.kill.scenes import SCENES, Scene
from stateflow.errors import FencedError
from tests.spark.kafka_broker import Broker
from tests.spark.murder import Run, Stuck
from tests.spark.murder_evidence import Inbox, examine
from tests.spark.murder_host import MurderHost
from tests.spark.murder_jvm import WarmJvm

PATIENCE = 900.0
BACKLOG = 4
"""Commits that wait for a run when it begins: as many batches, so that most moments come."""
ONCE = ("claimed", "fenced")
LEAVES_PENDING = ("decided", "committing", "committed", "calling", "called", "delivered")
MOST_TIMES = {
    **dict.fromkeys(ONCE, 1), "ran": 4, "acked": 4, "prepared": 3, "decided": 3, "committing": 6, "committed": 6,
    "calling": 3, "called": 3, "delivered": 3, "completed": 3, "collecting": 2, "collected": 2,
}  # fmt: skip
"""Points that every run passes, and how often at least."""


class Playing:
    """A round under way."""

    def __init__(
        self, scene: Scene, inbox: Inbox, chance: random.Random, jvms: Jvms, log: Callable[[str], None]
    ) -> None:
        self._scene, self._inbox, self._chance, self._jvms, self._log = scene, inbox, chance, jvms, log
        self._folder = Path(scene.errand.folder)
        self.kills: Counter[str] = Counter()
        self.points: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.fenced = 0
        self.runs = 0
        self._sent = 0
        """Rows of the inbox that the topic has, if there is one."""
        self._pending = False
        """Whether the last run died with a record that is decided and not complete."""

    @property
    def batches(self) -> int:
        return sum(log.read_text(errors="replace").count('"event": "batch"') for log in self._logs())

    @property
    def jumps(self) -> int:
        return sum(log.read_text(errors="replace").count('"event": "jump"') for log in self._logs())

    def _logs(self) -> list[Path]:
        return list((self._folder / "runs").glob("*.log"))

    def kill(self, most: int, victim: str = "") -> None:
        """One run, and one kill of it, or up to so many of what a run gets over; without a victim, of one by chance."""
        while self._inbox.commits - self.batches < BACKLOG:
            self._inbox.add(15)
        if self._scene.broker is not None:
            self._send(self._scene.broker)
        victims = self._scene.victims
        victim = victim or self._chance.choices(list(victims), list(victims.values()))[0]
        before = self.kills.total()
        if victim == "point":
            self._at_point()
        elif victim == "stop":
            self._freeze()
        elif victim in ("python", "driver", "everything"):
            self._driver(victim)
        elif self._scene.host is not None:
            self._hosted(victim, self._scene.host)
        else:
            self._meanwhile(victim, min(most, 4))
        self._log(f"{victim}: {self.kills.total() - before} killed, {self.batches} batches so far")

    def _send(self, broker: Broker) -> None:
        """Sends what is new in the inbox to the topic."""
        new = self._inbox.rows[self._sent :]
        self._sent = len(self._inbox.rows)
        lines = self._folder / "lines.json"
        lines.write_text("\n".join(json.dumps(vars(order)) for order in new))
        self._jvms.lend(self._scene.errand).produce(broker.address, lines)

    def drain(self) -> None:
        run, jvm = self._start(warm=True)
        try:
            if run.wait(PATIENCE) != 0:
                raise Stuck(f"the last run failed with {run.process.returncode}\n{run.story()}")
        finally:
            self._over(run, jvm)

    def _start(
        self, *, warm: bool, at: str = "", which: str = "", takeover: bool = True
    ) -> tuple[Run, WarmJvm | None]:
        errand = msgspec.structs.replace(self._scene.errand, at=at, takeover=takeover)
        if self._scene.host is not None:
            self.runs += 1
            return Run.start(errand, host=self._scene.host), None
        jvm = self._jvms.lend(errand, which) if warm else None
        self.runs += 1
        return Run.start(errand, jvm, self._jvms.nursery if warm else None), jvm

    def _over(self, run: Run, jvm: WarmJvm | None) -> None:
        run.thaw()
        run.bury()
        if jvm is not None:
            jvm.tidy()

    def _at_point(self) -> None:
        if self._pending and self._chance.random() < 0.6:
            point, times = self._chance.choice(("carrying", "carried")), self._chance.randint(1, 2)
        else:
            point = self._chance.choice(list(MOST_TIMES))
            times = self._chance.randint(1, MOST_TIMES[point])
        run, jvm = self._start(warm=True, at=f"{point}:{times}:kill")
        try:
            run.wait(PATIENCE)
            killed = bool(run.told("kill"))
            self._pending = killed and point in LEAVES_PENDING
            if killed:
                self.kills["point"] += 1
                self.points[point] += 1
            elif run.process.returncode != 0:
                raise Stuck(f"a run failed by itself with {run.process.returncode}\n{run.story()}")
        finally:
            self._over(run, jvm)

    def _driver(self, victim: str) -> None:
        began = time.monotonic()
        run, jvm = self._start(warm=victim == "python")
        try:
            if self._chance.random() < 0.15:
                wait = self._chance.uniform(0, 4)
            else:
                run.until(lambda r: r.told("claimed") or r.ended, PATIENCE, "claim")
                # How long the run took to start tells how long things take on this machine just now.
                wait = self._chance.uniform(0, 2.5) * (time.monotonic() - began)
            with suppress(subprocess.TimeoutExpired):
                if run.process.wait(wait) != 0:
                    raise Stuck(f"a run failed by itself with {run.process.returncode}\n{run.story()}")
                return
            run.kill(everything=victim == "everything")
            self.kills[victim] += 1
            self._pending = False
        finally:
            self._over(run, jvm)

    def _hosted(self, victim: str, host: MurderHost) -> None:
        """A run on a warm host, or the host with it."""
        began = time.monotonic()
        run, jvm = self._start(warm=True)
        try:
            run.until(lambda r: r.told("claimed") or r.ended, PATIENCE, "claim")
            with suppress(subprocess.TimeoutExpired):
                if run.process.wait(self._chance.uniform(0, 2.5) * (time.monotonic() - began)) != 0:
                    raise Stuck(f"a run failed by itself with {run.process.returncode}\n{run.story()}")
                return
            if victim == "client":
                run.kill()
            else:
                host.kill(victim)
                if run.process.wait(PATIENCE) == 0:
                    return  # it was through
            self.kills[victim] += 1
            self._pending = False
        finally:
            self._over(run, jvm)

    def _meanwhile(self, victim: str, most: int) -> None:
        """What is killed is not the driver: it gets over it, or the next run does."""
        run, jvm = self._start(warm=True)
        killed = 0
        try:
            run.until(lambda r: r.told("claimed") or r.ended, PATIENCE, "claim")
            while killed < most and not run.ended:
                with suppress(subprocess.TimeoutExpired):
                    run.process.wait(self._chance.uniform(0.2, 3))
                if run.ended:
                    break
                if victim in self._scene.faults:
                    self._scene.faults[victim]()
                elif not run.kill_one(victim, self._chance):
                    continue
                killed += 1
            code = run.wait(PATIENCE)
            self.kills[victim] += killed
            self.ends[f"{victim}: {_end(run, code)}"] += 1
            if code and not killed:
                raise Stuck(f"a run failed by itself with {code}\n{run.story()}")
        finally:
            self._over(run, jvm)

    def _freeze(self) -> None:
        """Freezes a run for longer than its heartbeat may be missing; another one takes over; the first one wakes up."""
        first, jvm = self._start(warm=True, takeover=False)
        second: Run | None = None
        other: WarmJvm | None = None
        try:
            first.until(lambda r: r.told("claimed") or r.ended, PATIENCE, "claim")
            with suppress(subprocess.TimeoutExpired):
                first.process.wait(self._chance.uniform(0, 6))
            if first.ended:
                return
            first.freeze()
            second, other = self._start(warm=True, which="successor", takeover=False)
            if second.wait(PATIENCE) != 0:
                raise Stuck(f"the run that took over failed\n{second.story()}")
            first.thaw()
            code = first.wait(PATIENCE)
            self.kills["stop"] += 1
            if code == FencedError.exit_code:
                self.fenced += 1
            elif code != 0 or not first.told("ended"):  # else it was through when it was frozen
                raise Stuck(f"a zombie ended with {code} instead of {FencedError.exit_code}\n{first.story()}")
        finally:
            self._over(first, jvm)
            if second is not None:
                self._over(second, other)


def _end(run: Run, code: int) -> str:
    """The exit code, or the error's name when there is one."""
    if code == 0:
        return "got over it"
    errors = run.told("error")
    return str(errors[-1]["kind"]) if errors else f"exit code {code} without an error of the library"


def play(number: int, seed: int, name: str, kills: int, jvms: Jvms, folder: Path) -> Round:
    """Plays one round; its figures, with everything that is wrong."""
    chance = random.Random(f"{seed}-{number}")
    folder.mkdir(parents=True)
    began = time.monotonic()
    with SCENES[name](folder, chance) as scene:
        place = Path(scene.errand.folder)
        inbox = Inbox(place / "orders", random.Random(f"{seed}-{number}-input"))
        playing = Playing(
            scene, inbox, chance, jvms, lambda text: print(f"  round {number}, {name}: {text}", flush=True)
        )
        wrong: list[str] = []
        try:
            # The worst of all costs most, and a round by chance may leave it out.
            playing.kill(1, chance.choice(scene.worst))
            while playing.kills.total() < kills and playing.runs < kills * 3:
                playing.kill(kills - playing.kills.total())
            playing.drain()
            store = scene.store() if scene.store else None
            wrong = examine(place, inbox.rows, upsert=scene.errand.upsert, store=store)
            if scene.host is not None and (left := scene.host.left()):
                wrong.append(left)
        except Stuck as stuck:
            wrong = [str(stuck)]
        if wrong and place != folder:
            shutil.copytree(place, folder / "found", symlinks=True)  # its disk goes
        return Round(
            number=number,
            scene=name,
            kills=dict(playing.kills),
            points=dict(playing.points),
            ends=dict(playing.ends),
            fenced=playing.fenced,
            runs=playing.runs,
            batches=playing.batches,
            rows=len(inbox.rows),
            lies=dict(scene.lies()),
            jumps=playing.jumps,
            seconds=round(time.monotonic() - began, 1),
            wrong=wrong,
        )
