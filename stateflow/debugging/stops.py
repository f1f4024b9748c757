"""A debugger that stops at the first line of user code that gets a key."""

from __future__ import annotations

import pdb
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

from stateflow.debugging.past_key import PastKey
from stateflow.debugging.trial import Run, at_once
from stateflow.pipelines.processes.process import ConnectedProcess, Process


class Stops(pdb.Pdb):
    """Runs what it is given, and stops where these functions begin. Before that nobody is asked."""

    def __init__(self, codes: Iterator[CodeType], **streams: Any) -> None:
        super().__init__(nosigint=True, **streams)
        self._begun = self._left = False
        for code in codes:
            # Once: a first line that begins a loop comes again and again.
            self.set_break(code.co_filename, code.co_firstlineno, temporary=True, funcname=code.co_name)

    def user_line(self, frame: FrameType) -> None:
        if self._begun:
            super().user_line(frame)
        else:
            self._begun = True
            self.set_continue()

    def set_quit(self) -> None:
        self._left = True
        super().set_quit()

    def run_until_done(self, code: Callable[[], Any]) -> bool:
        """False if the user has left before it was done."""
        try:
            self.runcall(code)
        except Exception:
            # To the engine, leaving looks like an error of the code.
            if not self._left:
                raise
        finally:
            self.clear_all_breaks()
        return not self._left


def code_of(process: type[Process[Any]]) -> Iterator[CodeType]:
    """What is called with a key: for its rows, and for its timers."""
    names = ["process_left", "process_right"] if issubclass(process, ConnectedProcess) else ["process"]
    names += [timer.handler for timer in process.declarations().timers.values() if timer.handler]
    for name in names:
        code = getattr(getattr(process, name), "__code__", None)
        if code is not None:
            yield code


def stopping(show: Callable[[PastKey], object]) -> Run:
    """Runs a batch under the debugger, if it is of code that gets the rows of a key; before that, `show` tells what it is about."""

    def run(past: PastKey, code: Callable[[], Any]) -> bool:
        process = past.node.process_type
        if process is None:
            return at_once(past, code)
        show(past)
        return Stops(code_of(process)).run_until_done(code)

    return run
