"""`make demo`: Airflow on this machine, a story told through its REST API, and then it is yours until Ctrl-C.

`make demo-check` ends after the story, with exit code 0 when the totals are right.
"""

from __future__ import annotations

import argparse
import fcntl
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from rich.console import Console

from demo.story import Story
from stateflow.config.options import cache_folder
from stateflow.errors import BusyError, StateflowError

PORT = 8080
ORDERS_EVERY = 60.0
"""Seconds between new orders while the demo is yours."""


def main(arguments: list[str] | None = None) -> int:
    options = _arguments(arguments)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    console = Console(highlight=False)
    folder = cache_folder() / "demo"
    try:
        # `kill` ends it as Ctrl-C does, and takes Airflow along.
        with handled(signal.SIGTERM, signal.default_int_handler), alone(folder):
            return tell(folder, console, options)
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return 130
    except StateflowError as error:
        print(f"demo: {error}", file=sys.stderr)
        return error.exit_code


def tell(folder: Path, console: Console, options: argparse.Namespace) -> int:
    """Tells the story in a fresh folder. Then Airflow stays until Ctrl-C, or with `--check` ends with a verdict."""
    story = Story(folder, console, options.port)
    try:
        right = story.play()
        if not options.check:
            leave_running(story, console)
    finally:
        # A second Ctrl-C would leave half of it running.
        with (
            handled(signal.SIGINT, signal.SIG_IGN),
            console.status("ending Airflow and what it has started"),
        ):
            story.close()
        console.print(f"[dim]Airflow has ended; what it leaves is in {folder}[/]", soft_wrap=True)
    if options.check:
        console.print("[bold green]right[/]" if right else "[bold red]wrong[/]")
    return 0 if right else 1


def leave_running(story: Story, console: Console) -> None:
    """Waits for Ctrl-C, and adds new orders meanwhile."""
    console.print()
    console.rule("[bold]It is yours", align="left")
    story.sign_in()
    console.print(
        "Browse, Stateflow shows the job: its checkpoints, the crash, the restore and the new timeline. New orders arrive every "
        f"minute; trigger stateflow_orders to have them counted. From a shell:\n   {shell_example(story.folder)}\n"
        "[bold]Ctrl-C ends it.[/]",
        soft_wrap=True,
    )
    ended = threading.Event()
    with suppress(KeyboardInterrupt):
        while not ended.wait(ORDERS_EVERY):
            story.more_orders()


def shell_example(folder: Path) -> str:
    from demo.spark_runs import command_path, short

    return f"{' '.join(command_path())} show orders --checkpoint-dir {short(folder / 'checkpoints')}"


@contextmanager
def handled(number: signal.Signals, handler: Any) -> Iterator[None]:
    """Handles a signal in another way for the length of a block."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def alone(folder: Path) -> Iterator[IO[str]]:
    """Lets one demo run at a time in a checkout, and deletes what the last one left."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "demo.lock").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BusyError("a demo is running from this folder already: end it with Ctrl-C first") from None
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        yield lock


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--check", action="store_true", help="end after the story, with a verdict")
    parser.add_argument("--port", type=int, default=None, help=f"of Airflow's address; {PORT} if it is free")
    options = parser.parse_args(arguments)
    if options.port is None:
        options.port = PORT if not options.check and _is_free(PORT) else 0
    return options


def _is_free(port: int) -> bool:
    from demo.airflow_server import free_port

    with suppress(StateflowError):
        return free_port(port) == port
    return False


if __name__ == "__main__":
    sys.exit(main())
