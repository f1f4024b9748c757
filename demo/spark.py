"""`make demo-spark`: a run, kill -9 and recovery on the command line alone, for who has a minute and no use for Airflow."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from rich.console import Console

from demo.narrator import Narrator
from demo.spark_runs import Command, short
from stateflow.config.options import cache_folder

FIRST, LAST = (2, 4_000), (5, 4_000)
"""Files of new orders before each run, and orders in a file. A batch takes one file."""
PIPELINE = Path(__file__).resolve().parents[1] / "examples" / "orders.py"


class Demo(Narrator):
    """Three runs of one pipeline; the second does not end well."""

    def __init__(self, folder: Path, console: Console) -> None:
        super().__init__(folder, console)
        self.command = Command(folder)
        self.run = [
            "run",
            f"{short(folder / 'orders.py')}:orders",
            "-p",
            f"input={short(folder / 'orders')}",
            "-p",
            f"output={short(self.totals)}",
            "--master",
            "local[2]",
        ]

    def play(self) -> bool:
        """All of it; whether the totals are right in the end."""
        began = time.perf_counter()
        shutil.copy(PIPELINE, self.folder / "orders.py")
        self._first_run()
        self._killed_run()
        self._recovery()
        right = self.verdict("Is it right?")
        self.console.print(f"[dim]{time.perf_counter() - began:.0f} s in all[/]")
        self._next()
        return right

    def _first_run(self) -> None:
        self.title("1  A first run")
        count = self.orders.add(*FIRST)
        self.say(
            f"{count:,} orders lie in a Delta table. The pipeline keeps a total per user in RocksDB and appends the new "
            "totals to another table. It takes one checkpoint per micro-batch and ends when the input is used up."
        )
        self._call(*self.run)
        self._checkpoints()

    def _killed_run(self) -> None:
        self.title("2  kill -9 in the middle of a batch")
        count = self.orders.add(*LAST)
        self.say(
            f"{count:,} orders. After two batches of this run, while the third is under way, the driver, its JVM and its "
            "workers get SIGKILL: no goodbye, no clean-up."
        )
        self._shown(*self.run)
        slots = self.command.killed_in_a_batch(*self.run, batches=2, pause=0.4)
        if not slots:
            raise SystemExit(
                "demo-spark: the second run ended before it could be killed; its message is above"
            )
        self.console.print(f"[bold red]killed[/] after checkpoint {slots[-1]}")
        self._checkpoints()

    def _recovery(self) -> None:
        self.title("3  Recovery")
        self.say(
            "The next run sees that the old one's heart has stopped, fences it, carries out what it had decided and not "
            "delivered, if anything, and goes on from there."
        )
        self._call(*self.run)
        self._checkpoints()

    def suggestions(self) -> list[list[str]]:
        """Commands that work on what is left behind."""
        return [
            ["show", "orders"],
            ["checkpoints", "orders", "-o", "json"],
            ["verify", "orders", "--deep"],
            ["gc", "orders"],
            ["check", *self.run[1:6]],
            self.run,
        ]

    def _next(self) -> None:
        self.title("Try this next")
        for arguments in self.suggestions():
            text = self.command.text(*arguments)
            self.console.print(f"  {text}", markup=False, soft_wrap=True, highlight=False)

    def _call(self, *arguments: str) -> None:
        self._shown(*arguments)
        if code := self.command.call(*arguments):
            raise SystemExit(f"demo-spark: the command ended with exit code {code}; its message is above")

    def _checkpoints(self) -> None:
        self._call("checkpoints", "orders", "--limit", "8")

    def _shown(self, *arguments: str) -> None:
        self.console.print(
            f"[dim]$ {self.command.text(*arguments)}[/]".replace("local[2]", r"local\[2]"), soft_wrap=True
        )


def main() -> int:
    folder = cache_folder() / "demo-spark"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # Line by line, so that what the commands print comes in between where it belongs.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        return 0 if Demo(folder, Console(highlight=False)).play() else 1
    except KeyboardInterrupt:
        print("demo-spark: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
