"""`stateflow host`: Spark applications that stay, in which runs begin in a moment."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from stateflow.cli.options import Conf, Invocation, argument, flag, pairs, rootless_command
from stateflow.cli.output import TextTable
from stateflow.errors import UnavailableError, UsageError

app = typer.Typer(
    no_args_is_help=True, help="Warm hosts: Spark applications in which runs begin in a moment."
)
DAY = 86_400.0
HostName = Annotated[str, argument(metavar="NAME", help="Name of the host.")]


@app.command("start")
@rootless_command
def start(
    call: Invocation,
    name: HostName,
    master: Annotated[str | None, flag(help="Spark's master, such as local[4].")] = None,
    conf: Conf = None,
    runs: Annotated[int, flag("--runs", min=1, max=1000, help="Runs at once (4).")] = 4,
    memory: Annotated[str | None, flag("--memory", help="Of Spark's driver, such as 2g.")] = None,
    recycle_runs: Annotated[
        int, flag("--recycle-runs", min=1, help="Runs after which Spark is replaced (2000).")
    ] = 2000,
    recycle_growth: Annotated[
        float,
        flag(
            "--recycle-growth",
            min=0.1,
            help="Growth of memory after which it is: 1.0 is twice as much (1.0).",
        ),
    ] = 1.0,
    lease: Annotated[
        str | None,
        flag(
            "--lease",
            metavar="SPAN",
            help="Drain when nobody renews it for so long, such as '15 minutes'.",
        ),
    ] = None,
    cold: Annotated[
        bool, flag("--cold", help="Take runs before Spark is warm: the first ones take longer.")
    ] = False,
    foreground: Annotated[
        bool, flag("--foreground", help="Stay here until it is stopped, for who keeps services.")
    ] = False,
) -> None:
    """Starts a host. It stays until it is stopped, and replaces its Spark application by itself."""
    from stateflow.hosts import keeper, starting
    from stateflow.hosts.settings import HostSettings, driver_memory, folder_of

    folder = folder_of(name)
    chosen = pairs(conf, "--conf") | driver_memory(memory or "", "--memory")
    settings = HostSettings(
        master=master,
        conf=chosen,
        places=runs,
        warms=not cold,
        recycle_runs=recycle_runs,
        recycle_growth=recycle_growth,
        lease=_span(lease),
    )
    if foreground:
        starting.prepare(folder, settings)
        raise typer.Exit(keeper.keep(folder, starting.APPLICATION, settings))
    starting.require_free(folder, settings)
    call.output.log(f"the host {name} starts Spark, which takes some 10 to 60 seconds")
    shown = {"name": name, "state": "running", **starting.start(folder, settings)}
    call.output.answer(shown, _line(shown))


def _span(text: str | None) -> float:
    from stateflow.quantities import duration

    if text is None:
        return 0.0
    try:
        length = duration(text).total_seconds()
    except ValueError as error:
        raise UsageError(f"--lease {text}: {error}") from None
    if length <= 0:
        raise UsageError(f"--lease {text}: a lease is longer than 0, such as '15 minutes'")
    return length


@app.command("renew")
@rootless_command
def renew(call: Invocation, name: HostName) -> None:
    """Renews the lease of a host: it stays for as long as that once more."""
    from stateflow.hosts import lease
    from stateflow.hosts.settings import folder_of, read_settings

    _keeper(name)
    folder = folder_of(name)
    settings = read_settings(folder)
    if not settings.lease:
        raise UsageError(
            f"the host {name!r} has no lease, and stays until it is stopped: nothing is to be renewed"
        )
    lease.renew(folder)
    call.output.log(f"the host {name} stays for {settings.lease:.0f} s more")


@app.command("list")
@rootless_command
def list_hosts(call: Invocation) -> None:
    """Lists the hosts of this user on this machine, without those that ended more than a day ago."""
    from stateflow.hosts.settings import folder_of, names

    found = [(folder_of(name), {"name": name, **_shown(folder_of(name))}) for name in names()]
    hosts = [shown for folder, shown in found if shown["state"] != "ended" or not _long_over(folder)]
    call.output.answer(hosts, "\n".join(map(_line, hosts)) if hosts else "there is no host of this user here")


@app.command("show")
@rootless_command
def show(
    call: Invocation,
    name: HostName,
    ready: Annotated[
        bool, flag("--ready", help="Fail, with exit code 9, if it takes no runs: for health checks.")
    ] = False,
) -> None:
    """Shows what runs on a host, since when, its memory, and how many runs it has served."""
    from stateflow.hosts.settings import folder_of, read_settings

    folder = folder_of(name)
    read_settings(folder)
    shown = {"name": name, **_shown(folder)}
    runs = [(run["job"], _since(run["since"]), str(run["pid"])) for run in shown.get("runs", ())]
    table = [TextTable(("job", "since", "process"), runs)] if runs else []
    call.output.answer(shown, _line(shown), *table)
    if ready and ("places" not in shown or shown["draining"]):
        raise typer.Exit(UnavailableError.exit_code)


@app.command("drain")
@rootless_command
def drain(call: Invocation, name: HostName) -> None:
    """Ends a host when its runs have ended. It takes no new ones."""
    from stateflow.hosts.settings import folder_of, read_settings

    applications = _applications(folder_of(name))
    _signal(call, name, signal.SIGUSR1, "drains: it takes no new runs, and ends when those on it have ended")
    for line in _waits(applications, read_settings(folder_of(name)).drain_timeout, time.time()):
        call.output.log(line)


def _applications(folder: Path) -> list[dict[str, Any]]:
    """What the Spark applications of a host say: the one that takes runs, and those that it has replaced and that still have some."""
    from stateflow.hosts.client import Refused, ask

    found = []
    for each in sorted(folder.glob("application-*")):
        with suppress(Refused):
            found.append(ask(each))
    return found


def _waits(applications: list[dict[str, Any]], limit: float, now: float) -> list[str]:
    """What a host that drains waits for, a line for each run."""
    lines = []
    for application in applications:
        rest = limit - (now - application["draining_since"] if application["draining"] else 0.0)
        within = f"after its batch in {_length(rest)}" if rest > 0 else "after its batch"
        for run in application["runs"]:
            since = f"{run['endless'] or run['job']}, since {_since(run['since'])}"
            if run["endless"]:
                lines.append(
                    f"  {since}: is continuous, and ends {within}, or now with `stateflow stop {run['endless']}`"
                )
            else:
                lines.append(f"  {since}: ends with its input, or {within}")
    return lines


def _length(seconds: float) -> str:
    """A limit for people: whole minutes where it has some."""
    from stateflow.quantities import several

    minutes = round(seconds / 60)
    return several(minutes, "minute") if minutes else several(max(1, round(seconds)), "second")


@app.command("stop")
@rootless_command
def stop(
    call: Invocation,
    name: HostName,
    now: Annotated[bool, flag("--now", help="Do not wait for the batches of its runs.")] = False,
) -> None:
    """Ends a host. Its runs end after their batch; their next ones go on from there."""
    from stateflow.hosts.settings import folder_of
    from stateflow.hosts.starting import keeper_of

    _signal(call, name, signal.SIGTERM, "stops: each of its runs ends after its batch")
    folder = folder_of(name)
    if now:
        time.sleep(0.2)
        with suppress(UnavailableError):
            _signal(call, name, signal.SIGTERM, "ends now")
    while keeper_of(folder) is not None:
        time.sleep(0.1)
    call.output.log(f"the host {name} has ended")


def _signal(call: Invocation, name: str, number: int, what: str) -> None:
    os.kill(_keeper(name), number)
    call.output.log(f"the host {name} {what}")


def _keeper(name: str) -> int:
    """The process that keeps a host of this machine. UnavailableError when none does."""
    from stateflow.hosts.client import Refused, ask
    from stateflow.hosts.settings import folder_of, read_settings
    from stateflow.hosts.starting import keeper_of

    folder = folder_of(name)
    read_settings(folder)
    if (keeper := keeper_of(folder)) is not None:
        return keeper.pid
    try:
        ask(folder)
    except Refused:
        raise UnavailableError(
            f"the host {name!r} is not running: start it with `stateflow host start {name}`"
        ) from None
    raise UnavailableError(
        f"the host {name!r} is a process of another container, which shares its folder: end it there"
    )


def _shown(folder: Path) -> dict[str, Any]:
    from stateflow.hosts.client import Refused, ask
    from stateflow.hosts.starting import keeper_of

    try:
        return {"state": "running", **ask(folder)}
    except Refused:
        return {"state": "ended" if keeper_of(folder) is None else "starting"}


def _long_over(folder: Path) -> bool:
    """Whether a host that has ended was started, and has written its log for the last time, more than a day ago."""
    from stateflow.hosts.client import LOG
    from stateflow.hosts.settings import SETTINGS

    written = [(folder / file).stat().st_mtime for file in (SETTINGS, LOG) if (folder / file).exists()]
    return max(written, default=0.0) < time.time() - DAY


def _line(shown: dict[str, Any]) -> str:
    name = shown["name"]
    if "places" not in shown:
        return f"{name}: {shown['state']}"
    memory = sum(shown["memory"].values()) >> 20
    doing = "draining" if shown["draining"] else f"{len(shown['runs'])} of {shown['places']} places taken"
    waiting = f", {shown['waiting']} waiting" if shown["waiting"] else ""
    return (
        f"{name}: {doing}{waiting}, {shown['served']} runs served since {_since(shown['since'])}, {memory} MiB, "
        f"master {shown['master']}"
    )


def _since(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
