"""Limits of one connection before anybody has shown a token: bytes, time, and its share of the connections.

The parsers beneath bound none of these. Without limits, headers that never end fill the memory, and requests that are sent half
keep their connections for ever.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Beyond them a connection is closed."""

    connections: int = 512
    """Open at once. A further one is closed unread."""
    head: int = 16 << 10
    """Bytes of a request before its body: method, URL and headers."""
    queued: int = 16
    """Requests that wait on one connection for the answers to those before them."""
    receive: float = 20.0
    """Seconds from the connection, or from a request's first byte, until the request has come whole."""
    send: float = 30.0
    """Seconds that an answer waits for a client that takes nothing of it."""
    linger: float = 2.0
    """Seconds in which the rest of a request is ignored that was answered before it had come whole."""
