"""Calls that go on side by side, each in a thread that stays for the next ones.

The threads are daemons: an interpreter that ends waits for none of them. They end with the object that they belong to.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class _Beside(Generic[T]):
    """A call in another thread."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._ended = threading.Event()
        self._result: list[T] = []
        self._error: BaseException | None = None

    def go(self) -> None:
        try:
            self._result.append(self._function())
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()

    def wait(self) -> BaseException | None:
        """Its failure, once it has ended."""
        self._ended.wait()
        return self._error

    @property
    def result(self) -> T:
        return self._result[0]


class SideBySide:
    """Its threads come to be when calls need them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queues: list[SimpleQueue[_Beside[object] | None]] = []
        weakref.finalize(self, _end, self._queues)

    def all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """What each call gives, when all of them have ended; raises the failure of the first that has one.

        The first is made in the thread of the caller.
        """
        made = [_Beside(call) for call in calls]
        while len(self._queues) < len(made) - 1:
            queue: SimpleQueue[_Beside[object] | None] = SimpleQueue()
            self._queues.append(queue)
            name = f"{self._name}-{len(self._queues)}"
            threading.Thread(target=_work, args=(queue,), name=name, daemon=True).start()
        for queue, call in zip(self._queues, made[1:], strict=False):
            queue.put(call)  # type: ignore[arg-type]
        if made:
            made[0].go()
        errors = [error for call in made if (error := call.wait()) is not None]
        if errors:
            raise errors[0]
        return [call.result for call in made]


def _work(queue: SimpleQueue[_Beside[object] | None]) -> None:
    while (call := queue.get()) is not None:
        call.go()
        del call  # what it holds is not to live until the next one


def _end(queues: list[SimpleQueue[_Beside[object] | None]]) -> None:
    for queue in queues:
        queue.put(None)
