"""Results as JSON files, one per trial, so that a run which was interrupted goes on where it was.

They are filed under a fingerprint of the code that was measured: figures of two versions never mix in one table.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.generate import CACHE
from bench.measurement import Form, Measurement, Results, Trial

ROOT = Path(__file__).resolve().parents[1]
NOT_MEASURED = frozenset(
    {"__main__.py", "report.py", "plots.py", "kill.py", "worker_profile.py", "measurement.py", "store.py"}
)


def fingerprint() -> str:
    """A hash of the library and of the code that measures it, without the code that only shows figures."""
    digest = hashlib.sha256()
    for folder in ("stateflow", "bench"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if folder == "bench" and path.name in NOT_MEASURED:
                continue
            if {"cli", "airflow"} & set(path.relative_to(ROOT / folder).parts):
                continue
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Found:
    """The newest results of a measurement."""

    results: Results
    fingerprint: str
    repeats: int
    """Repeats of the side that has the fewest."""
    measured: float
    """When the last trial ended, in seconds since 1970."""
    load: float
    """The highest load of the machine when a trial began."""


@dataclass(frozen=True, slots=True)
class ResultStore:
    folder: Path = CACHE / "results"

    def read(self, trial: Trial, version: str) -> Mapping[str, Any] | None:
        path = self._path(trial, version)
        return json.loads(path.read_text()) if path.exists() else None

    def write(self, trial: Trial, version: str, load: float, result: Mapping[str, Any]) -> None:
        path = self._path(trial, version)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".making")
        part.write_text(json.dumps({"trial": asdict(trial), "load": load, "result": result}, indent=1))
        part.rename(path)

    def forget(self, form: Form, measurement: str) -> None:
        shutil.rmtree(self.folder / form / measurement, ignore_errors=True)

    def newest(self, form: Form, measurement: Measurement, version: str) -> Found | None:
        """The current version's results if every side has one; else the newest complete ones."""
        folder = self.folder / form / measurement.name
        versions = sorted(folder.iterdir(), key=lambda p: p.stat().st_mtime) if folder.exists() else []
        ordered = [folder / version, *(p for p in reversed(versions) if p.name != version)]
        return next((results for path in ordered if (results := _complete(path, measurement))), None)

    def _path(self, trial: Trial, version: str) -> Path:
        return self.folder / trial.form / trial.measurement / version / f"{trial.side}-{trial.repeat}.json"


def _complete(folder: Path, measurement: Measurement) -> Found | None:
    by_side: dict[str, Sequence[Mapping[str, Any]]] = {}
    measured, load = 0.0, 0.0
    for side in measurement.sides:
        paths = sorted(folder.glob(f"{side}-[0-9].json"))
        if not paths:
            if measurement.whole:
                return None
            continue
        bodies = [json.loads(path.read_text()) for path in paths]
        measured = max(measured, *(path.stat().st_mtime for path in paths))
        load = max(load, *(float(body["load"]) for body in bodies))
        by_side[side] = [body["result"] for body in bodies]
    if not by_side:
        return None
    return Found(Results(by_side), folder.name, min(map(len, by_side.values())), measured, load)
