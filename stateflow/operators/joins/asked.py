"""Asks a service for many keys: in blocks, several at once, no faster than allowed, again after a failure."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from stateflow.pipelines.enrichment import Asking
from stateflow.quantities import several


class WrongAnswersError(Exception):
    """What came back cannot be the answers; asking again would not help."""


@dataclass(frozen=True)
class Block:
    """A call's keys, and either the answers or the error that its last repetition ended with."""

    keys: Sequence[Any]
    answers: Sequence[Any]
    error: Exception | None = None


def asked(asking: Asking, keys: Sequence[Any]) -> list[Block]:
    """A block for every call, in the order of the keys."""
    if not keys:
        return []
    # A thread of its own: whoever runs the harness may have an event loop already.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(_Calls(asking).all(keys))).result()


class _Calls:
    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._is_async = inspect.iscoroutinefunction(asking.look_up) or inspect.iscoroutinefunction(
            getattr(asking.look_up, "__call__", None)  # noqa: B004
        )
        self._next = 0.0

    async def all(self, keys: Sequence[Any]) -> list[Block]:
        asking = self._asking
        places = asyncio.Semaphore(asking.concurrency)
        with ThreadPoolExecutor(asking.concurrency) as threads:
            blocks = [keys[begin : begin + asking.batch] for begin in range(0, len(keys), asking.batch)]
            return list(await asyncio.gather(*(self._block(block, places, threads) for block in blocks)))

    async def _block(
        self, keys: Sequence[Any], places: asyncio.Semaphore, threads: ThreadPoolExecutor
    ) -> Block:
        async with places:
            wait = self._asking.backoff / 1e6
            for attempt in range(self._asking.retries + 1):
                await self._turn()
                try:
                    return Block(keys, _checked(keys, await self._call(keys, threads)))
                except WrongAnswersError as error:
                    return Block(keys, (), error)
                except Exception as error:
                    if attempt == self._asking.retries:
                        return Block(keys, (), error)
                await asyncio.sleep(wait)
                wait *= 2
        raise AssertionError("the last attempt has returned")

    async def _call(self, keys: Sequence[Any], threads: ThreadPoolExecutor) -> Any:
        if self._is_async:
            return await self._asking.look_up(list(keys))
        return await asyncio.get_running_loop().run_in_executor(threads, self._asking.look_up, list(keys))

    async def _turn(self) -> None:
        """Waits until a call may begin."""
        if self._asking.rate is None:
            return
        now = asyncio.get_running_loop().time()
        begins = max(now, self._next)
        self._next = begins + 1 / self._asking.rate
        await asyncio.sleep(begins - now)


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
