"""A warm host for victims: each is a run on it, and it dies itself now and then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.spark.murder_hosted import AT
from tests.spark.murder_pipelines import JOB

if TYPE_CHECKING:
    from tests.spark.murder_victim import Errand

ROOT = Path(__file__).absolute().parents[2]
NAME = "murder"
PATIENCE = 600.0


class Silent(AssertionError):
    """The host did not answer within its time."""


@dataclass
class MurderHost:
    folder: Path
    conf: Mapping[str, str]
    """Settings of its Spark."""
    starts: int = field(default=0)
    """How often it was started anew, because its keeper was killed."""

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("STATEFLOW_", "PYSPARK_"))}
        return {**kept, "PYTHONPATH": str(ROOT), "STATEFLOW_CACHE_DIR": str(self.folder)}

    def command(self, errand: Errand) -> list[str]:
        """The run of an errand, as one types it."""
        given = {"folder": errand.folder, "upsert": errand.upsert, "straggle": errand.straggle}
        options = {
            "checkpoint_dir": f"{errand.folder}/root",
            "cache_dir": f"{errand.folder}/cache",
            **errand.options,
        }
        return [
            *self._words("run", f"{ROOT}/tests/spark/murder_hosted.py:{JOB}", "--job", JOB),
            *("--host", NAME, "--host-only", "--host-wait", "10 minutes"),
            *(["--takeover"] if errand.takeover else []),
            *(word for name, value in given.items() for word in ("-p", f"{name}={_text(value)}")),
            *(word for name, value in options.items() for word in ("--option", f"{name}={_text(value)}")),
        ]

    def victim(self, errand: Errand) -> dict[str, str]:
        """The environment of a run."""
        return {**self.environment, AT: errand.at}

    def start(self) -> None:
        words = self._words("host", "start", NAME, "--master", "local[2,4]", "--runs", "2", "--cold")
        words += [word for name, value in self.conf.items() for word in ("--conf", f"{name}={value}")]
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode:
            raise Silent(f"the host did not start: {done.stderr}")

    def ready(self) -> None:
        """Waits until it takes runs. A keeper that was killed is started again, as systemd does."""
        from stateflow.hosts.starting import has_died

        if has_died(self.folder / "hosts" / NAME):
            self.starts += 1
            self.start()
        self._until(lambda: not self.shown()["draining"], "takes runs")

    def kill(self, victim: str) -> None:
        if victim == "host's keeper":
            keeper = json.loads((self.folder / "hosts" / NAME / "keeper.json").read_text(encoding="utf-8"))
            pid = int(keeper["pid"])
        elif victim == "hosted run":
            pid = next((int(run["pid"]) for run in self.shown()["runs"]), 0)
        else:
            pid = int(
                self.shown()["processes"][{"host's JVM": "jvm", "host": "host", "zygote": "zygote"}[victim]]
            )
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def left(self) -> str:
        """What runs that have ended have left on it; empty for nothing."""
        try:
            self._until(lambda: not self.shown()["runs"], "has no run any more")
        except Silent as silent:
            return str(silent)
        return ""

    def end(self) -> None:
        from tests.spark.murder import descendants

        with suppress(OSError, KeyError, ValueError):
            keeper = json.loads((self.folder / "hosts" / NAME / "keeper.json").read_text(encoding="utf-8"))
            family = descendants(int(keeper["pid"]))
            os.kill(int(keeper["pid"]), signal.SIGKILL)
            for each in family:
                each.kill()

    def shown(self) -> dict[str, Any]:
        from stateflow.hosts.client import Refused, ask

        until = time.monotonic() + PATIENCE
        while True:
            with suppress(Refused):
                return ask(self.folder / "hosts" / NAME)
            if time.monotonic() > until:
                raise Silent(f"the host does not answer: see {self.folder / 'hosts' / NAME / 'host.log'}")
            time.sleep(0.1)

    def _until(self, happened: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE
        while not happened():
            if time.monotonic() > until:
                raise Silent(f"it is not true within {PATIENCE:.0f} s that the host {what}")
            time.sleep(0.1)

    @staticmethod
    def _words(*words: str) -> list[str]:
        return [sys.executable, "-m", "stateflow", *words]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
