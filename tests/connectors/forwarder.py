"""Stands between a client and a server, and breaks their connections as a server does that is restarted: without the restart's seconds."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Forwarder:
    def __init__(self, listener: socket.socket, to: int) -> None:
        self.port: int = listener.getsockname()[1]
        self.broken = 0
        """Connections that were open when they were broken."""
        self._listener = listener
        self._to = to
        self._open: set[socket.socket] = set()

    def accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                self._open |= {client, server}
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    def _copy(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        self._open.discard(one)
        for each in (one, other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def break_connections(self) -> None:
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
                self.broken += 1


@contextmanager
def forwarder(to: int) -> Iterator[Forwarder]:
    """To a port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Forwarder(listener, to)
        threading.Thread(target=made.accept, daemon=True).start()
        yield made
        made.break_connections()
        listener.shutdown(socket.SHUT_RDWR)
