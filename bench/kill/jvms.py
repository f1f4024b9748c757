"""The warm JVMs of a loop, and where its victims come from: one JVM for each master, and a second one for the run that takes
over from a frozen one."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tests.spark.murder_jvm import WarmJvm
from tests.spark.murder_nursery import Nursery
from tests.spark.murder_victim import Errand

LIFE = 60
"""Runs that a JVM is lent to before it is replaced: what dead runs leave in it adds up."""


@dataclass
class Jvms:
    folder: Path
    nursery: Nursery = field(default_factory=Nursery)
    _warm: dict[str, WarmJvm] = field(default_factory=dict)
    _lent: dict[str, int] = field(default_factory=dict)
    _started: int = 0

    def lend(self, errand: Errand, which: str = "") -> WarmJvm:
        """A warm JVM with this errand's master and settings."""
        name = f"{errand.master} {errand.conf.get('spark.jars', '')} {which}"
        jvm = self._warm.get(name)
        if jvm is not None and (self._lent[name] >= LIFE or jvm.process.poll() is not None):
            jvm.end()
            jvm = None
        if jvm is None:
            self._started += 1
            folder = self.folder / f"jvm-{self._started}"
            shutil.rmtree(folder, ignore_errors=True)
            own = Errand(str(folder), master=errand.master, conf=errand.conf)
            jvm = self._warm[name] = WarmJvm.start(own, folder)
            self._lent[name] = 0
        self._lent[name] += 1
        return jvm

    def end(self) -> None:
        for jvm in self._warm.values():
            jvm.end()
        self._warm.clear()
        self.nursery.end()
