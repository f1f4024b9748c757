"""A deterministic scheduler: actors in threads of which exactly one runs, handing over at every store call.

A schedule is the list of who ran at each step, so that whatever fails can be run again.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tests.memory_store import Call, CrashError, MemoryStore
from tests.protocol.scenario import World

Actor = Callable[[], object]
Choose = Callable[[int, tuple[str, ...], str | None], str]
"""Step number, who can run, who ran last: who runs now, or with a `!` before the name, who dies now."""


@dataclass
class Played:
    """One execution."""

    schedule: list[str] = field(default_factory=list)
    runnable: list[tuple[str, ...]] = field(default_factory=list)
    errors: dict[str, BaseException] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)

    def story(self) -> str:
        return "\n".join(self.steps)


class Turns:
    """Runs actors over one world; each pauses before every store call and around every sink commit."""

    def __init__(self, world: World, store: MemoryStore, actors: Mapping[str, Actor]) -> None:
        self._deletes = any(name.startswith("GC") for name in actors)
        self._played = Played()
        self._go = {name: threading.Semaphore(0) for name in actors}
        self._back = threading.Semaphore(0)
        self._actors = actors
        self._waiting: set[str] = set(actors)
        self._dying: set[str] = set()
        self._next: dict[str, str] = dict.fromkeys(actors, "begins")
        store.before = self._before
        world.step = self._pause

    def follow(self, script: Iterable[tuple[str, str]]) -> Played:
        """Lets actors run in turn, each at least a step and until it is about to do what is named; then the rest."""
        parts = list(script)
        begun = False

        def choose(step: int, runnable: tuple[str, ...], last: str | None) -> str:
            nonlocal begun
            while parts:
                name, until = parts[0]
                if name in runnable and not (begun and until in self._next[name]):
                    begun = True
                    return name
                parts.pop(0)
                begun = False
            return runnable[0]

        return self.play(choose)

    def play(self, choose: Choose) -> Played:
        threads = [
            threading.Thread(target=self._run, args=(name,), name=name, daemon=True) for name in self._actors
        ]
        for thread in threads:
            thread.start()
        last: str | None = None
        while self._waiting:
            runnable = tuple(sorted(self._waiting))
            chosen = choose(len(self._played.schedule), runnable, last)
            self._played.runnable.append(runnable)
            self._played.schedule.append(chosen)
            name = chosen.removeprefix("!")
            if chosen != name:
                self._dying.add(name)
            self._played.steps.append(f"{chosen}: {self._next[name]}")
            self._go[name].release()
            self._back.acquire()
            last = name
        for thread in threads:
            thread.join()
        return self._played

    def _run(self, name: str) -> None:
        self._go[name].acquire()
        try:
            if name not in self._dying:
                self._actors[name]()
        except BaseException as error:
            self._played.errors[name] = error
        self._waiting.discard(name)
        self._back.release()

    def _before(self, call: Call) -> None:
        # What never changes needs no turn of its own, and fewer turns are more schedules.
        if call.verb == "read" and (not self._deletes or call.path.endswith("/job")):
            return
        if call.path.endswith("/deleted"):
            return
        self._pause(f"{call.verb} {call.path}")

    def _pause(self, what: str) -> None:
        name = threading.current_thread().name
        if name not in self._go:
            return  # the test itself, looking at the world
        self._next[name] = what
        self._back.release()
        self._go[name].acquire()
        if name in self._dying:
            raise CrashError(f"{name} dies before: {what}")


Play = Callable[[Choose], Played]
"""Builds a fresh world, plays it and checks it."""


def every_schedule(play: Play, preemptions: int) -> Iterator[Played]:
    """All schedules in which running actors are interrupted at most so often."""
    waiting: list[list[str]] = [[]]
    while waiting:
        prefix = waiting.pop()
        played = play(_follow(prefix))
        yield played
        spent = 0
        for at, (chosen, runnable) in enumerate(zip(played.schedule, played.runnable, strict=True)):
            last = played.schedule[at - 1] if at else None
            if at >= len(prefix):
                for other in runnable:
                    cost = spent + (last in runnable and other != last)
                    if other != chosen and cost <= preemptions:
                        waiting.append([*played.schedule[:at], other])
            spent += last in runnable and chosen != last


def some_schedules(play: Play, seed: int, count: int) -> Iterator[Played]:
    """Random schedules, which switch at random rates and let an actor die now and then, from one seed."""
    source = random.Random(seed)
    for _ in range(count):
        rate = source.choice([0.05, 0.2, 0.5, 0.9])
        death = source.choice([0.0, 0.0, 0.02, 0.1])

        def choose(
            step: int, runnable: tuple[str, ...], last: str | None, rate: float = rate, death: float = death
        ) -> str:
            if source.random() < death:
                return "!" + source.choice(runnable)
            if last in runnable and last is not None and source.random() > rate:
                return last
            return source.choice(runnable)

        yield play(choose)


def _follow(prefix: list[str]) -> Choose:
    def choose(step: int, runnable: tuple[str, ...], last: str | None) -> str:
        if step < len(prefix):
            return prefix[step]
        return last if last in runnable and last is not None else runnable[0]

    return choose
