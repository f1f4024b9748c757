"""The HTTP server around the application: its socket, its start and its end."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import uvicorn

from stateflow.errors import UsageError
from stateflow.serve.access import Access
from stateflow.serve.app import Service, make_app
from stateflow.serve.connections import ConnectionLimits
from stateflow.serve.follow import FollowedJobs
from stateflow.serve.internals import limited

LOOPBACK = "127.0.0.1"
MAX_QUERIES = 16
LIMITS = ConnectionLimits()
_GRACE = 5
"""Seconds that running requests have to end."""
_BACKLOG = 256


class StateServer:
    """Binds its socket when it is made. UsageError for a port that is taken; port 0 takes a free one."""

    def __init__(
        self,
        jobs: FollowedJobs,
        access: Access,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        max_queries: int = MAX_QUERIES,
        interval: float = 1.0,
        limits: ConnectionLimits = LIMITS,
    ) -> None:
        self._jobs = jobs
        self._socket = _bound(host, port)
        app = make_app(Service(jobs, access, max_queries=max_queries, interval=interval))
        config = _Limited(
            app,
            limits,
            log_config=None,
            server_header=False,
            lifespan="on",
            ws="none",
            timeout_graceful_shutdown=_GRACE,
            backlog=_BACKLOG,
        )
        self._server = uvicorn.Server(config)

    @property
    def url(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def started(self) -> bool:
        return bool(self._server.started)

    @property
    def open_to_others(self) -> bool:
        """Whether other hosts can reach it."""
        return not ipaddress.ip_address(self._socket.getsockname()[0].partition("%")[0]).is_loopback

    def run(self) -> None:
        """Serves until `stop`, SIGINT or SIGTERM. At the end it releases all pins."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self.close()

    def close(self) -> None:
        """For a server that was never run."""
        self._socket.close()
        self._jobs.close()

    def stop(self) -> None:
        """Ends the server after the running requests. Any thread may call it."""
        self._server.should_exit = True


class _Limited(uvicorn.Config):
    """Bounds what a connection costs, and logs no requests, however logging is set up."""

    def __init__(self, app: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(app, **options)
        self._limits = limits

    def load(self) -> None:
        super().load()
        self.http_protocol_class = limited(self.http_protocol_class, self._limits)


def _bound(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"the server cannot listen on {host}:{port}: {error}; choose another --port or --host"
        ) from None


__all__ = ["LOOPBACK", "MAX_QUERIES", "StateServer"]
