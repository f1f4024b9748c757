"""uvicorn's protocol of a connection, with limits. uvicorn has no public way to bound a head, a queue or the time of a request."""

from __future__ import annotations

from typing import Any

from stateflow.internals import internal
from stateflow.serve.connections import ConnectionLimits

_PIECE = 64 << 10
"""Bytes that the parser gets at once: after each piece its queue of requests is looked at."""
_END = b"\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_H11 = "uvicorn.protocols.http.h11_impl"


@internal(
    f"{_H11}.H11Protocol.access_log",
    f"{_H11}.H11Protocol.connections",
    f"{_H11}.H11Protocol.cycle",
    f"{_H11}.H11Protocol.loop",
    f"{_H11}.H11Protocol.transport",
    f"{_H11}.H11Protocol.on_response_complete()",
    f"{_H11}.RequestResponseCycle.more_body",
    f"{_H11}.RequestResponseCycle.response_complete",
    "uvicorn.protocols.http.httptools_impl.HttpToolsProtocol.pipeline",
    where_missing="a connection fails when it is opened: nothing is answered without limits",
    seen_in=("uvicorn 0.54.0",),
)
def limited(protocol: Any, limits: ConnectionLimits) -> Any:
    """uvicorn's protocol class, whichever parser it has, with limits. It logs no requests: a key in a URL may name a person."""

    class Limited(protocol):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.access_log = False
            self._head = 0
            """Bytes so far of a head that is not complete."""
            self._last = b""
            self._receiving: Any = None
            self._sending: Any = None
            self._answered_early = False

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                transport.abort()
            else:
                self._receiving = self.loop.call_later(limits.receive, transport.abort)

        def connection_lost(self, exc: Exception | None) -> None:
            self._arrived()
            self._taken()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            for start in range(0, len(data), _PIECE):
                if self.transport.is_closing() or self._answered_early:
                    return
                self._take(data[start : start + _PIECE] if len(data) > _PIECE else data)

        def _take(self, piece: bytes) -> None:
            before = self.cycle
            in_head = before is None or not before.more_body
            if in_head:
                room = limits.head - self._head
                if len(piece) > room and _END not in self._last + piece[: max(room, 0)]:
                    self._refuse()
                    return
                if self._receiving is None:
                    self._receiving = self.loop.call_later(limits.receive, self.transport.abort)
            super().data_received(piece)
            if self.transport.is_closing():
                return
            if len(getattr(self, "pipeline", ())) > limits.queued:
                self.transport.abort()
                return
            if self.cycle is not before or not in_head:
                self._head, self._last = 0, b""
            else:
                self._head, self._last = self._head + len(piece), (self._last + piece[-3:])[-3:]
            if not self._head and self.cycle is not None and not self.cycle.more_body:
                self._arrived()

        def _refuse(self) -> None:
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(_TOO_LARGE)
                self.transport.close()
            else:
                self.transport.abort()

        def on_response_complete(self) -> None:
            if self.cycle.response_complete and self.cycle.more_body and not self.transport.is_closing():
                # Closed at once, the client might lose the answer: it is still sending.
                self._answered_early = True
                self.loop.call_later(limits.linger, self.transport.abort)
            super().on_response_complete()

        def _arrived(self) -> None:
            if self._receiving is not None:
                self._receiving.cancel()
                self._receiving = None

        def _taken(self) -> None:
            if self._sending is not None:
                self._sending.cancel()
                self._sending = None

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._sending is None:
                self._sending = self.loop.call_later(limits.send, self.transport.abort)

        def resume_writing(self) -> None:
            self._taken()
            super().resume_writing()

    return Limited
