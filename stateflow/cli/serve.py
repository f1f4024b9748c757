"""`stateflow serve`: states that opted in, over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stateflow.cli.options import Invocation, command, flag, root_of
from stateflow.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stateflow.config.options import Options
    from stateflow.serve.follow import FollowedJobs


@command
def serve(
    call: Invocation,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            help="Address to listen on; others than this host's own are open to whoever reaches them.",
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8765,
    job: Annotated[
        list[str] | None, flag("--job", metavar="JOB", help="Only this job; may be given again.")
    ] = None,
    tokens: Annotated[
        Path | None,
        flag("--tokens", metavar="FILE", help="Tokens and their rights; else one is made and printed."),
    ] = None,
    max_queries: Annotated[int, typer.Option("--max-queries", min=1, help="Queries that run at once.")] = 16,
    interval: Annotated[
        float, typer.Option("--interval", min=0.05, help="Seconds between two looks for a newer checkpoint.")
    ] = 1.0,
    open_shards: Annotated[int, typer.Option("--open-shards", min=1, help="Shards that stay open.")] = 64,
) -> None:
    """Answers look-ups over HTTP from the newest complete checkpoint of each job, which it follows.

    Only states that were declared with queryable=True are served, and only to those who send a token.
    """
    import gc
    import logging
    import secrets
    import signal
    from importlib.util import find_spec

    missing = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"`stateflow serve` needs {' and '.join(missing)}, which this environment lacks: pip install {' '.join(missing)}"
        )
    from stateflow.serve.access import from_file, single
    from stateflow.serve.server import StateServer

    options = call.options()
    logging.getLogger("uvicorn").setLevel(logging.DEBUG if call.debug else logging.WARNING)
    token = None if tokens is not None else secrets.token_urlsafe(32)
    access = from_file(tokens) if tokens is not None else single(str(token))
    jobs = _followed(options, job or (), open_shards)
    server = StateServer(jobs, access, host=host, port=port, max_queries=max_queries, interval=interval)
    try:
        jobs.release_stale()
        for name in job or ():
            jobs.follow(name)
    except BaseException:
        server.close()
        raise
    # The server has handlers of its own while it runs, and sends the signals on when it has ended: by then there is nothing left to end.
    # Before it runs they have to end it, too.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: server.stop())
    # The token goes to stdout, where no log is kept.
    call.output.event(
        {"event": "serving", "url": server.url, "token": token, "jobs": jobs.only},
        f"serving {server.url}",
        *([f"token {token}"] if token is not None else []),
    )
    if server.open_to_others:
        call.output.log(
            f"stateflow: {host} is not only this host, and HTTP is not encrypted: put a proxy with TLS in front"
        )
    # Looking for cycles among all that was imported stops every query for 30 ms, five times a second under load.
    gc.collect()
    gc.freeze()
    server.run()


def _followed(options: Options, only: Sequence[str], open_shards: int) -> FollowedJobs:
    """The jobs of the root, or those that are named, which are read as this process."""
    import time
    import uuid

    import msgspec

    from stateflow.checkpoint.process import this_process
    from stateflow.checkpoint.processes import note_of_process, process_start
    from stateflow.reading.snapshots import reader_context
    from stateflow.serve.follow import FollowedJobs

    def ids() -> str:
        return uuid.uuid4().hex

    place = reader_context(options, root_of(options), lambda: time.time_ns() // 1000)
    owner = this_process(run=ids())
    owner = msgspec.structs.replace(owner, note=note_of_process(process_start(owner.pid) or ""))
    return FollowedJobs(place, owner=owner, ids=ids, only=only, open_shards=open_shards)
