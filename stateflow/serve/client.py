"""A client of `stateflow serve`. It needs only the standard library and msgspec, so it starts fast."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from stateflow.errors import UnavailableError, UsageError
from stateflow.serve.problems import LONGEST_WAIT, error_of

_BROKEN = (http.client.HTTPException, OSError)


class StateClient:
    """`StateClient("http://127.0.0.1:8765", token).get("orders", "balance", "total", 42)`

    Values are JSON values: numbers, texts, lists, dicts; instants and decimals are texts. Any number of threads may use one
    client. It reuses connections. It raises the library's own errors, like the command line.
    """

    def __init__(self, url: str, token: str, *, timeout: float = 30.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{url!r} is not the URL of a server: write http://HOST:PORT")
        if not token.isascii() or not token.isprintable() or not token.strip():
            raise UsageError(
                "the token is empty or has characters that a token cannot have: check where it comes from"
            )
        self._url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._prefix = parts.path.rstrip("/")
        self._timeout = timeout
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def get(
        self,
        job: str,
        operator: str,
        state: str,
        key: Any,
        map_key: Any = None,
        *,
        at: int | str | datetime | None = None,
    ) -> Any:
        """The value; None when there is none, an empty list or map for those kinds.

        With `at` as of then: a slot, `tag:NAME`, or a time with its zone.
        """
        body = self.look_up(job, operator, state, key, map_key, at=at)
        return _whole(body["value"], body, key)

    def get_many(
        self,
        job: str,
        operator: str,
        state: str,
        keys: Sequence[Any],
        map_key: Any = None,
        *,
        at: int | str | datetime | None = None,
    ) -> list[Any]:
        """The values in the order of the keys, all from one checkpoint."""
        body = self.look_up_many(job, operator, state, keys, map_key, at=at)
        return [_whole(one["value"], one, key) for key, one in zip(keys, body["results"], strict=True)]

    def look_up(
        self,
        job: str,
        operator: str,
        state: str,
        key: Any,
        map_key: Any = None,
        *,
        limit: int | None = None,
        min_checkpoint: int | None = None,
        wait: float | None = None,
        at: int | str | datetime | None = None,
    ) -> dict[str, Any]:
        """The whole answer: found, value, what it is, whether there is more, and the checkpoint that was read.

        `min_checkpoint` wants this checkpoint or a newer one, `at` the one of then.
        """
        parameters = _given(
            key=key, map_key=map_key, limit=limit, min_checkpoint=min_checkpoint, wait=wait, at=_point(at)
        )
        query = urlencode({name: _text(value) for name, value in parameters.items()})
        return self._request("GET", f"{_path(job, operator, state)}?{query}", wait=wait)

    def look_up_many(
        self,
        job: str,
        operator: str,
        state: str,
        keys: Sequence[Any],
        map_key: Any = None,
        *,
        limit: int | None = None,
        min_checkpoint: int | None = None,
        wait: float | None = None,
        at: int | str | datetime | None = None,
    ) -> dict[str, Any]:
        """The whole answer for many keys. Its `results` are in the order of the keys."""
        parameters = _given(
            map_key=map_key, limit=limit, min_checkpoint=min_checkpoint, wait=wait, at=_point(at)
        )
        body = {"keys": list(keys), **parameters}
        return self._request("POST", _path(job, operator, state), msgspec.json.encode(body), wait=wait)

    def jobs(self) -> list[dict[str, Any]]:
        """The jobs that a right of the token names."""
        return list(self._request("GET", "/jobs")["jobs"])

    def job(self, job: str, *, at: int | str | datetime | None = None) -> dict[str, Any]:
        """A job's newest checkpoint, or that of then, and the states that the token's rights name, each with whether it is served."""
        query = "" if at is None else "?" + urlencode({"at": _point(at)})
        return self._request("GET", f"/jobs/{quote(job, safe='')}{query}")

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __enter__(self) -> StateClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"StateClient({self._url!r})"

    def _request(
        self, method: str, path: str, body: bytes | None = None, *, wait: float | None = None
    ) -> dict[str, Any]:
        # The server refuses any other wait at once.
        patience = self._timeout + min(max(0.0, wait or 0.0), LONGEST_WAIT)
        status, answer = self._send(method, self._prefix + path, body, patience)
        try:
            document = msgspec.json.decode(answer)
        except msgspec.DecodeError:
            document = None
        if status != 200:
            raise error_of(document, status)
        if not isinstance(document, dict):
            raise UnavailableError(f"{self._url} answers, but not as `stateflow serve` does: check the URL")
        return document

    def _send(self, method: str, path: str, body: bytes | None, patience: float) -> tuple[int, bytes]:
        headers: Mapping[str, str] = self._headers
        if body is not None:
            headers = {**headers, "Content-Type": "application/json"}
        while True:
            with self._lock:
                reused = self._idle.pop() if self._idle else None
            connection = reused or self._connection()
            connection.timeout = patience
            if connection.sock is not None:
                connection.sock.settimeout(patience)
            try:
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                answer = response.read()
            except _BROKEN as error:
                connection.close()
                # A server may close an idle connection at any moment. To read twice does no harm.
                if reused is not None and not isinstance(error, TimeoutError):
                    continue
                raise UnavailableError(
                    f"{self._url} does not answer ({type(error).__name__}: {error}): is `stateflow serve` running there?"
                ) from None
            if response.will_close:
                connection.close()
            else:
                with self._lock:
                    self._idle.append(connection)
            return response.status, answer

    def _connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self._host, self._port)


def _path(job: str, operator: str, state: str) -> str:
    job, operator, state = (quote(name, safe="") for name in (job, operator, state))
    return f"/jobs/{job}/operators/{operator}/states/{state}"


def _given(**parameters: Any) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


def _text(value: Any) -> Any:
    """The text of a key as the command line and URLs write it."""
    if value is None or isinstance(value, str):
        return value
    plain = msgspec.to_builtins(value)
    return plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()


def _point(at: int | str | datetime | None) -> Any:
    if isinstance(at, datetime) and at.tzinfo is None:
        raise UsageError(f"the time {at} has no zone: give it one, such as datetime(..., tzinfo=UTC)")
    return _text(at)


def _whole(value: Any, body: Mapping[str, Any], key: Any) -> Any:
    if body["more"] and not value:
        raise UsageError(
            f"the first entries of key {key!r} have all expired, and there are more behind them than one answer looks at: ask for "
            "a map_key, or read the state as a table, with `stateflow state export`"
        )
    if body["more"]:
        raise UsageError(
            f"the {body['what']} of key {key!r} has more entries than one answer holds: ask for a map_key, or use look_up "
            "with a limit, which says so in 'more'"
        )
    return value


__all__ = ["StateClient"]
