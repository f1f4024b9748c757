"""The routes. They run on the event loop, so they only read requests: threads read stores and state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from decimal import Decimal
from functools import partial, wraps
from typing import Any, TypeVar

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from stateflow.errors import BusyError, NotFoundError, StateflowError, UsageError
from stateflow.reading.query import LIMIT
from stateflow.serve import description
from stateflow.serve.access import Access, Grant
from stateflow.serve.answers import MOST_ENTRIES, MOST_KEYS, Question, answer, answer_many, describe
from stateflow.serve.follow import FollowedJob, FollowedJobs, Then
from stateflow.serve.problems import (
    LONGEST_WAIT,
    RETRY_AFTER,
    Refusal,
    document,
    no_right,
    refusal_of,
    unknown_token,
)
from stateflow.serve.turns import Turns

_log = logging.getLogger(__name__)
T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]

STATE = "/jobs/{job}/operators/{operator}/states/{state}"
MIN_CHECKPOINT = "stateflow-min-checkpoint"
"""The header with the same meaning as the parameter `min_checkpoint`."""
LARGEST_BODY = 1 << 20
NAMES_LAST = 5.0
"""Seconds before the names of jobs are listed again: in an object store that means listing everything."""
_FOLLOWERS = 8
"""Threads that read stores: a slow store delays new checkpoints, never a query."""
_PARAMETERS = frozenset({"key", "map_key", "limit", "min_checkpoint", "wait", "at"})


class Batch(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request for many keys."""

    keys: list[Any]
    map_key: Any = None
    limit: int = LIMIT
    min_checkpoint: int | None = None
    wait: float = 0.0
    at: int | str | None = None


_batches = msgspec.json.Decoder(Batch, float_hook=Decimal)
"""A decimal part of a key stays exact: as a float it would be another key."""


class Service:
    """Belongs to one event loop, from `start` to `stop`. The caller closes the followed jobs afterwards."""

    def __init__(self, jobs: FollowedJobs, access: Access, *, max_queries: int, interval: float) -> None:
        self._jobs, self._access, self._interval = jobs, access, interval
        self._turns = Turns(max_queries)
        self._pool = ThreadPoolExecutor(_FOLLOWERS, "stateflow-follow")
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._refreshes: dict[str, asyncio.Future[bool]] = {}
        self._changes: dict[str, asyncio.Event] = {}
        self._names: list[str] = []
        self._listed = float("-inf")

    async def start(self) -> None:
        for name in self._jobs.only:
            await self._job(name)

    async def stop(self) -> None:
        for poll in self._polls.values():
            poll.cancel()
        await asyncio.gather(*self._polls.values(), return_exceptions=True)
        self._turns.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def health(self, request: Request) -> Response:
        return _json(b'{"status":"ok"}')

    async def jobs(self, request: Request) -> Response:
        grant = self._grant(request)
        now = asyncio.get_running_loop().time()
        if now - self._listed > NAMES_LAST:
            self._names, self._listed = await self._in_thread(self._jobs.names), now
        names = [name for name in self._names if grant.allows_job(name)]
        followed = {name: job.record for name in names if (job := self._jobs.get(name)) is not None}
        listed = [
            {"job": name, "checkpoint": record.slot if record else None, "at": record.at if record else None}
            for name, record in ((name, followed.get(name)) for name in names)
        ]
        return _json(msgspec.json.encode({"jobs": listed}))

    async def job(self, request: Request) -> Response:
        grant, name = self._grant(request), request.path_params["job"]
        if not grant.allows_job(name):
            raise no_right(grant.name, f"read job {name!r}")
        parameters = _parameters(request, frozenset({"at"}))
        job = await self._job(name)
        then = await self._then(job, parameters.get("at"))
        return _json(
            await self._turns.take(partial(describe, job, grant, None if then is None else then.record))
        )

    async def state(self, request: Request) -> Response:
        name, operator, state = self._authorized(request)
        parameters = _parameters(request, _PARAMETERS)
        key = parameters.get("key")
        if key is None:
            raise UsageError("the request names no key: add ?key=... to the URL")
        limit = _limit(parameters.get("limit", LIMIT))
        minimum, wait = parameters.get("min_checkpoint"), parameters.get("wait", 0)
        job = await self._job(name, minimum, wait, request)
        then = await self._then(job, parameters.get("at"), minimum, request)
        question = Question(operator, state, parameters.get("map_key"), limit, then)
        return _json(await self._turns.take(partial(answer, job, question, key)))

    async def states(self, request: Request) -> Response:
        name, operator, state = self._authorized(request)
        try:
            batch = _batches.decode(await _body(request))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ArithmeticError) as error:
            raise UsageError(
                f'the body is not usable: {error}; send JSON such as {{"keys": [1, 2]}}'
            ) from None
        if len(batch.keys) > MOST_KEYS:
            raise UsageError(
                f"{len(batch.keys)} keys are too many for one request: send at most {MOST_KEYS}, or read the state as "
                "a table"
            )
        limit = _limit(batch.limit)
        job = await self._job(name, batch.min_checkpoint, batch.wait, request)
        then = await self._then(job, batch.at, batch.min_checkpoint, request)
        question = Question(operator, state, batch.map_key, limit, then)
        return _json(await self._turns.take(partial(answer_many, job, question, batch.keys)))

    def _grant(self, request: Request) -> Grant:
        grant = self._access.grant_of(request.headers.get("authorization"))
        if grant is None:
            raise unknown_token()
        return grant

    def _authorized(self, request: Request) -> tuple[str, str, str]:
        """The job, operator and state of a request, if its token may read them. It does not say whether they exist."""
        grant, names = self._grant(request), request.path_params
        path = (names["job"], names["operator"], names["state"])
        if not grant.allows(*path):
            raise no_right(grant.name, f"read {'/'.join(path)}")
        return path

    async def _job(
        self, name: str, minimum: Any = None, wait: Any = 0, request: Request | None = None
    ) -> FollowedJob:
        job = self._jobs.get(name)
        if job is None or job.record is None:
            job = await self._in_thread(partial(self._jobs.follow, name))
        if name not in self._polls:
            self._polls[name] = asyncio.create_task(self._poll(job))
        if minimum is None and request is not None:
            minimum = request.headers.get(MIN_CHECKPOINT)
        if minimum is not None:
            await self._wait_for(
                job,
                int(_number("min_checkpoint", minimum, whole=True)),
                _number("wait", wait, most=LONGEST_WAIT),
            )
        return job

    async def _then(
        self, job: FollowedJob, at: Any, minimum: Any = None, request: Request | None = None
    ) -> Then | None:
        """The older checkpoint that a request asks for."""
        if at is None:
            return None
        if minimum is not None or (request is not None and MIN_CHECKPOINT in request.headers):
            raise UsageError(
                "at and min_checkpoint exclude each other: at asks for a checkpoint of the past, min_checkpoint for a new one"
            )
        return await self._in_thread(partial(job.kept, str(at)))

    async def _wait_for(self, job: FollowedJob, minimum: int, wait: float) -> None:
        """Waits until the job serves at least checkpoint `minimum`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        if _slot(job) < minimum:
            await self._refresh(job)
        while _slot(job) < minimum:
            remaining = deadline - loop.time()
            if remaining <= 0:
                raise Refusal(
                    409,
                    BusyError(
                        f"job {job.name!r} has not reached checkpoint {minimum}: it is at {_slot(job)}; ask again, or wait "
                        "longer with wait=SECONDS"
                    ),
                    RETRY_AFTER,
                )
            change = self._changes.setdefault(job.name, asyncio.Event())
            try:
                await asyncio.wait_for(change.wait(), remaining)
            except TimeoutError:
                continue

    async def _poll(self, job: FollowedJob) -> None:
        healthy = True
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self._refresh(job)
                healthy = True
            except NotFoundError as error:
                _log.warning("job %s is no longer served: %s", job.name, error)
                del self._polls[job.name]
                await self._in_thread(partial(self._jobs.forget, job.name))
                return
            except Exception as error:
                # Logged once, not every second. The job keeps serving the checkpoint it has, so what nobody has foreseen may not
                # end this either: nothing would ask for a newer one again.
                if healthy:
                    _log.warning(
                        "job %s cannot be followed for now: %s",
                        job.name,
                        error,
                        exc_info=not isinstance(error, StateflowError),
                    )
                healthy = False

    async def _refresh(self, job: FollowedJob) -> None:
        """Looks for a newer checkpoint, once for all requests that wait for it."""
        running = self._refreshes.get(job.name)
        if running is None:
            running = self._refreshes[job.name] = asyncio.ensure_future(self._in_thread(job.refresh))
            running.add_done_callback(lambda _: self._refreshes.pop(job.name, None))
        if await asyncio.shield(running) and (change := self._changes.pop(job.name, None)) is not None:
            change.set()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def make_app(service: Service) -> FastAPI:
    """The application. It loads nothing from other servers."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    # FastAPI's pages for browsers load their scripts from the internet, which may be unreachable or not trusted.
    app = FastAPI(**description.ABOUT, lifespan=lifespan, docs_url=None, redoc_url=None)
    routes: list[tuple[str, str, Endpoint, Mapping[str, Any]]] = [
        ("GET", "/healthz", service.health, description.HEALTH),
        ("GET", "/jobs", service.jobs, description.JOBS),
        ("GET", "/jobs/{job}", service.job, description.JOB),
        ("GET", STATE, service.state, description.STATE),
        ("POST", STATE, service.states, description.STATES),
    ]
    for method, path, endpoint, route_description in routes:
        app.add_api_route(
            path, _guarded(endpoint), methods=[method], response_model=None, **route_description
        )

    @app.exception_handler(HTTPException)
    async def unknown_route(request: Request, error: HTTPException) -> Response:
        kind = NotFoundError if error.status_code == 404 else UsageError
        return _refused(
            Refusal(error.status_code, kind(f"{error.detail}: /openapi.json lists what there is"))
        )

    app.openapi = partial(description.openapi_document, app)  # type: ignore[method-assign]
    return app


def _guarded(endpoint: Endpoint) -> Endpoint:
    @wraps(endpoint)
    async def guarded(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Refusal as refusal:
            return _refused(refusal)
        except StateflowError as error:
            return _refused(refusal_of(error))
        except Exception:
            # The error may quote the request, so it goes to the log of the host and not to the client.
            _log.exception("a request failed unexpectedly")
            failure = StateflowError("the server failed unexpectedly: its log says how")
            return _refused(Refusal(500, failure))

    return guarded


def _refused(refusal: Refusal) -> Response:
    body = msgspec.json.encode(document(refusal.error))
    return Response(body, refusal.status, refusal.headers, "application/json")


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _parameters(request: Request, known: Set[str]) -> dict[str, Any]:
    given = [name for name, _ in request.query_params.multi_items()]
    if len(given) > len(set(given)):
        twice = next(name for name in given if given.count(name) > 1)
        raise UsageError(
            f"the parameter {twice!r} is given {given.count(twice)} times: give it once, and ask for many keys with POST"
        )
    parameters = dict(request.query_params)
    if not parameters.keys() <= known:
        unknown = sorted(parameters.keys() - known)[0]
        raise UsageError(f"the parameter {unknown!r} is unknown here: use {', '.join(sorted(known))}")
    return parameters


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BODY:
            raise Refusal(
                413, UsageError(f"the body is larger than {LARGEST_BODY} bytes: ask for fewer keys at once")
            )
    return bytes(body)


def _limit(value: Any) -> int:
    return int(_number("limit", value, least=1, most=MOST_ENTRIES, whole=True))


def _number(
    name: str, value: Any, *, least: float = 0, most: float = float("inf"), whole: bool = False
) -> float:
    try:
        number = int(value) if whole else float(value)
    except ValueError:
        number = -1
    if not least <= number <= most:
        top = f" to {most:g}" if most < float("inf") else " up"
        raise UsageError(f"{name} is {value!r}: use a {'whole ' if whole else ''}number from {least:g}{top}")
    return number


def _slot(job: FollowedJob) -> int:
    record = job.record
    return record.slot if record else 0


__all__ = ["Service", "make_app"]
