"""The HTTP server around the application: its socket, its start and its end."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import uvicorn

from stateflow.errors import UsageError
from stateflow.serve.access import Access
from stateflow.serve.app import Service, make_app
from stateflow.serve.follow import FollowedJobs

LOOPBACK = "127.0.0.1"
MAX_QUERIES = 16
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
    ) -> None:
        self._jobs = jobs
        self._socket = _bound(host, port)
        app = make_app(Service(jobs, access, max_queries=max_queries, interval=interval))
        config = _Quiet(
            app,
            log_config=None,
            server_header=False,
            lifespan="on",
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


class _Quiet(uvicorn.Config):
    """Logs no requests, however logging is set up: a key in a URL may name a person."""

    def load(self) -> None:
        super().load()
        protocol: Any = self.http_protocol_class

        class Protocol(protocol):  # type: ignore[misc]
            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(*arguments, **options)
                self.access_log = False

        self.http_protocol_class = Protocol


def _bound(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"the server cannot listen on {host}:{port}: {error}; choose another --port or --host"
        ) from None


__all__ = ["LOOPBACK", "MAX_QUERIES", "StateServer"]
