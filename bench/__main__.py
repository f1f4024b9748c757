"""python -m bench [--quick] [--only NAME] [--side PATTERN] [--repeats N] [--fresh] [--report] [--list]"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from bench.generate import CACHE
from bench.measurement import Form, Measurement, Trial
from bench.measurements import MEASUREMENTS
from bench.report import Page, gathered, write_page
from bench.store import ROOT, ResultStore, fingerprint

BUDGET_MINUTES = 80
"""After so many minutes no second or third repeat begins; the next run adds the missing ones."""
console = Console(stderr=True)


class TrialFailed(Exception):
    """The message names the trial and the log with its output."""


def main(arguments: Sequence[str]) -> int:
    # Otherwise the trial under way would go on by itself.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    options = _arguments(arguments)
    form: Form = "quick" if options.quick else "full"
    measurements = [MEASUREMENTS[name] for name in options.only] or [
        each for each in MEASUREMENTS.values() if options.list or not each.named_only
    ]
    if options.list:
        _print_list(form, measurements, options.repeats)
        return 0
    store = ResultStore()
    failed = False
    if not options.report:
        if options.fresh:
            for measurement in measurements:
                store.forget(form, measurement.name)
        try:
            failed = _measure(store, form, measurements, options.repeats, options.side)
        except KeyboardInterrupt:
            console.print("interrupted: the same command goes on from here")
            return 130
    page = gathered(store, form, list(MEASUREMENTS.values()))
    path = write_page(page)
    _print_targets(page)
    console.print(f"written: {path.relative_to(ROOT)}")
    return 1 if failed else 0


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Side-by-side benchmarks.")
    parser.add_argument("--quick", action="store_true", help="small sizes, each side once")
    parser.add_argument("--only", action="append", default=[], choices=sorted(MEASUREMENTS), metavar="NAME")
    parser.add_argument(
        "--side",
        action="append",
        default=[],
        metavar="PATTERN",
        help="only sides of such names, such as 'ours-*'",
    )
    parser.add_argument("--repeats", type=int, help="at most so many of each side")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before")
    parser.add_argument("--report", action="store_true", help="only write the page from what was measured")
    parser.add_argument("--list", action="store_true", help="what there is and how long it takes")
    return parser.parse_args(arguments)


def _measure(
    store: ResultStore,
    form: Form,
    measurements: Sequence[Measurement],
    repeats: int | None,
    sides: Sequence[str] = (),
) -> bool:
    failed = False
    version = fingerprint()
    # What is run only once goes first: when time runs out, what is left undone is a third repeat.
    ordered = sorted(measurements, key=lambda m: m.repeats > 1)
    trials = [
        (m, trial) for m in ordered for trial in m.trials(form, repeats) if asked_for(trial.side, sides)
    ]
    last_begin = time.monotonic() + 60 * BUDGET_MINUTES
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console,
    ) as progress:  # fmt: skip
        task = progress.add_task("", total=len(trials))
        given_up: set[tuple[str, str]] = set()
        for measurement, trial in trials:
            name = f"{trial.measurement}, {trial.side}, repeat {trial.repeat + 1}"
            progress.update(task, description=name)
            late = trial.repeat > 0 and time.monotonic() > last_begin
            due = not late and (trial.measurement, trial.side) not in given_up
            if due and store.read(trial, version) is None:
                load = os.getloadavg()[0]
                began = time.monotonic()
                try:

                    def say(text: str, name: str = name) -> None:
                        progress.update(task, description=f"{name}: {text}"[:100])

                    result = run_trial(measurement, trial, say)
                    store.write(trial, version, load, result)
                    progress.console.print(f"{name}: {time.monotonic() - began:.0f} s")
                except TrialFailed as error:
                    progress.console.print(str(error), style="red", highlight=False)
                    # The other sides' results are kept, so that the next run has this one alone to try.
                    given_up.add((trial.measurement, trial.side))
                    failed = True
                if fingerprint() != version:
                    progress.console.print(
                        "the code was changed while it was measured: run again when it rests", style="red"
                    )
                    return True
            progress.advance(task)
    return failed


def asked_for(side: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(side, pattern) for pattern in patterns)


def run_trial(measurement: Measurement, trial: Trial, say: Callable[[str], None]) -> dict[str, object]:
    """Runs a trial in a process group of its own, and removes what it leaves behind."""
    logs = CACHE / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{trial.form}-{trial.measurement}-{trial.side}-{trial.repeat}.log"
    work = CACHE / "work"
    work.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{trial.measurement}-{trial.side}-", dir=work))
    result = folder / "result.json"
    command = [
        *(
            sys.executable,
            "-m",
            "bench.trial",
            trial.measurement,
            trial.side,
            trial.form,
            str(folder),
            str(result),
        ),
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("STATEFLOW_")}
    environment |= {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_DIRS": str(folder / "spark")}
    try:
        with (
            log.open("w") as errors,
            subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True,
                start_new_session=True,
            ) as process,
        ):  # fmt: skip
            alarm = _Alarm(process, measurement.patience * 60)
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    say(line.strip())
                code = process.wait()
            finally:
                alarm.end()
        if code or not result.exists():
            why = (
                f"took longer than {measurement.patience:.0f} minutes"
                if alarm.rang
                else f"ended with code {code}"
            )
            raise TrialFailed(f"{trial.measurement}, {trial.side}: {why}; its output is {log}")
        outcome: dict[str, object] = json.loads(result.read_text())
        return outcome
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Alarm:
    """Kills a trial's processes when it takes too long, and in any case when it has ended."""

    def __init__(self, process: subprocess.Popen[str], seconds: float) -> None:
        self._process = process
        self.rang = False
        self._timer = threading.Timer(seconds, self._ring)
        self._timer.daemon = True
        self._timer.start()

    def _ring(self) -> None:
        self.rang = True
        self._kill()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        self._timer.cancel()
        self._kill()


def _print_list(form: Form, measurements: Sequence[Measurement], repeats: int | None) -> None:
    table = Table("name", "sides", "repeats", "about")
    total = 0.0
    for measurement in measurements:
        count = len({trial.repeat for trial in measurement.trials(form, repeats)})
        minutes = measurement.minutes.get(form, 0) * count
        total += 0 if measurement.named_only else minutes
        name = f"{measurement.name} (--only)" if measurement.named_only else measurement.name
        table.add_row(name, ", ".join(measurement.sides), str(count), f"{minutes:.0f} min")
    console.print(table)
    console.print(f"about {total:.0f} minutes on a quiet machine with two cores")


def _print_targets(page: Page) -> None:
    table = Table("target", "measured", "", title=f"{page.form} form")
    for _, text, measured, met, today in page.targets:
        verdict = "[green]met[/]" if met else "[red]missed[/]"
        table.add_row(text, measured, verdict if today else f"{verdict} by earlier code")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
