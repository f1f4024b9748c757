"""Asks a service for many keys: several keys in a call, several calls at once, no faster than allowed, again after a failure.
The keys of a call that fails for good are asked for in halves, down to the keys that the service does not answer: so one such
key does not take its neighbours with it. The halving ends when no call is answered any more, so that a service that is down is
not asked for each key.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from stateflow.errors import UserCodeError
from stateflow.pipelines.ready.enrichment import Asking
from stateflow.quantities import several


class WrongAnswersError(Exception):
    """The result cannot be the answers; to ask the same again would not help."""


class ChangedKeysError(WrongAnswersError):
    """`look_up` has changed its list of keys. Its code is to blame and no key, so the call is not halved."""


class UnreadableAnswerError(UserCodeError):
    """An answer lacks what the output needs. The call did not fail, so it is neither repeated nor halved."""


@dataclass(frozen=True)
class NoAnswer:
    """Why keys have no answer."""

    error: Exception
    keys: Sequence[Any]
    """The keys of the call that failed: a single one, unless the service answered nothing any more."""
    in_a_row: int = 0
    """How many halves in a row had failed, after which these keys were not asked for one by one; zero for a key alone."""


@dataclass
class Asked:
    """The answers and the failures, by the places of the keys."""

    answers: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, NoAnswer] = field(default_factory=dict)


def most_in_a_row(batch: int) -> int:
    """How many halves of a call may fail one after another before the rest is given up.

    With one poisoned key a half is answered each time that a piece is cut. Only where most keys are poisoned, or the service is
    down, all fail from the whole call to a single key: two for each cut on that way.
    """
    return 2 * (batch - 1).bit_length() + 8


class Lookups:
    """One task's way to the service."""

    def __init__(self, asking: Asking, taken: Callable[[Any, Any], Any], *, diverts: bool) -> None:
        """`taken` turns a key and its answer into what is kept. It does so at once, since `look_up` may use the object again in
        its next call. With `diverts` every key is asked for, whatever fails. Without it no call begins once a failure is
        certain."""
        self._asking, self._taken, self._diverts = asking, taken, diverts
        self._is_async = inspect.iscoroutinefunction(asking.look_up) or inspect.iscoroutinefunction(
            getattr(asking.look_up, "__call__", None)  # noqa: B004
        )
        self._next = 0.0
        self._is_down = False
        """Whether the halves of a call were given up, and nothing was answered since."""
        self._most_in_a_row = most_in_a_row(asking.batch)

    def asked(self, keys: Sequence[Any]) -> Asked:
        if not keys:
            return Asked()
        # A thread of its own: whoever runs the harness may have an event loop already.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: asyncio.run(self._all(keys))).result()

    async def _all(self, keys: Sequence[Any]) -> Asked:
        # Instants of one event loop mean nothing to the next.
        self._next = 0.0
        batch = self._asking.batch
        turns = asyncio.Semaphore(self._asking.concurrency)
        with ThreadPoolExecutor(self._asking.concurrency) as threads:
            call = _Call(self, keys, Asked(), threads)
            calls = (range(begin, min(begin + batch, len(keys))) for begin in range(0, len(keys), batch))
            await asyncio.gather(*(self._in_turn(call, places, turns) for places in calls))
        return call.asked

    async def _in_turn(self, call: _Call, places: range, turns: asyncio.Semaphore) -> None:
        async with turns:
            if self._diverts or not call.asked.failures:
                error = await call.error_of(places, self._asking.retries)
                if isinstance(error, ChangedKeysError):
                    call.fail(places, error)
                elif error is not None:
                    await self._in_halves(call, places, error)

    async def _in_halves(self, call: _Call, whole: range, error: Exception) -> None:
        """Finds out which keys of a failed call the service does not answer."""
        failed = [(whole, error)]
        alone: list[tuple[range, Exception]] = []
        is_answered, in_a_row = False, 0
        most = 2 if self._is_down else self._most_in_a_row
        while failed and in_a_row < most:
            if alone and is_answered and not self._diverts:
                break
            piece, why = failed.pop()
            if len(piece) == 1:
                alone.append((piece, why))
                continue
            for half in _halves(piece):
                # A single key is asked for a second time: its neighbours' failures were not its own.
                again = await call.error_of(half, min(1, self._asking.retries) if len(half) == 1 else 0)
                if again is None:
                    is_answered, in_a_row = True, 0
                else:
                    in_a_row += 1
                    failed.append((half, again))
        if in_a_row >= most:
            self._is_down = True
        if self._diverts:
            for piece, why in (*alone, *failed):
                call.fail(piece, why, 0 if len(piece) == 1 else in_a_row)
        elif alone and is_answered:
            call.fail(*alone[0])
        else:
            # No key alone is to blame where none of its call was answered.
            call.fail(whole, error, in_a_row)

    async def answers(self, keys: list[Any], retries: int, threads: ThreadPoolExecutor) -> list[Any]:
        """What was taken from a call's answers. Raises the error of the last repetition."""
        wait = self._asking.backoff / 1e6
        for attempt in range(retries + 1):
            await self._turn()
            try:
                answers = await self._call(keys, threads)
            except UnreadableAnswerError:
                raise
            except Exception as error:
                if attempt == retries or isinstance(error, WrongAnswersError):
                    raise
            else:
                self._is_down = False
                return answers
            await asyncio.sleep(wait)
            wait *= 2
        raise AssertionError("the last attempt has returned or raised")

    async def _call(self, keys: list[Any], threads: ThreadPoolExecutor) -> list[Any]:
        given = list(keys)
        if self._is_async:
            return self._all_taken(keys, given, await self._asking.look_up(given))
        taken: list[Any] = await asyncio.get_running_loop().run_in_executor(
            threads, lambda: self._all_taken(keys, given, self._asking.look_up(given))
        )
        return taken

    def _all_taken(self, keys: list[Any], given: list[Any], answers: Any) -> list[Any]:
        """`given` is the list that `look_up` was given: answers to its keys in another order would be those of other keys."""
        if given != keys:
            raise ChangedKeysError(
                "look_up changed its list of keys, so that nobody knows whose the answers are: use a copy, such as "
                "sorted(keys), and answer in the order of the keys"
            )
        return [self._taken(key, answer) for key, answer in zip(keys, _checked(keys, answers), strict=True)]

    async def _turn(self) -> None:
        """Waits until a call may begin."""
        if self._asking.rate is None:
            return
        now = asyncio.get_running_loop().time()
        begins = max(now, self._next)
        self._next = begins + 1 / self._asking.rate
        await asyncio.sleep(begins - now)


@dataclass(frozen=True)
class _Call:
    """The calls for one list of keys, and what became of these."""

    service: Lookups
    keys: Sequence[Any]
    asked: Asked
    threads: ThreadPoolExecutor

    async def error_of(self, places: range, retries: int) -> Exception | None:
        """Asks for the keys at these places. None: they have their answers."""
        try:
            answers = await self.service.answers(
                [self.keys[place] for place in places], retries, self.threads
            )
        except UnreadableAnswerError:
            raise
        except Exception as error:
            return error
        self.asked.answers.update(zip(places, answers, strict=True))
        return None

    def fail(self, places: range, error: Exception, in_a_row: int = 0) -> None:
        failure = NoAnswer(error, [self.keys[place] for place in places], in_a_row)
        self.asked.failures.update(dict.fromkeys(places, failure))


def _halves(places: range) -> tuple[range, range]:
    """Every other place: poisoned keys may be neighbours."""
    return places[::2], places[1::2]


def _checked(keys: Sequence[Any], answers: Any) -> Sequence[Any]:
    if not isinstance(answers, list | tuple) or len(answers) != len(keys):
        what = (
            f"{several(len(answers), 'answer')}"
            if isinstance(answers, list | tuple)
            else type(answers).__name__
        )
        raise WrongAnswersError(
            f"look_up gave {what} for {several(len(keys), 'key')}: give a list with an answer for each, None where there is none"
        )
    return answers
