"""How much of its past a job keeps, as one writes it: `all for 1 hour, hourly for 2 days, daily for 30 days`. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

from stateflow.quantities import duration, written_duration

NONE = "none"
EXAMPLE = "all for 1 hour, hourly for 2 days, daily for 30 days"
_MICROSECOND = timedelta(microseconds=1)
_STEPS = {
    "all": timedelta(0),
    "hourly": timedelta(hours=1),
    "daily": timedelta(days=1),
    "weekly": timedelta(weeks=1),
}
_MONDAY = timedelta(days=3) // _MICROSECOND
"""From a Monday to the day that times are counted from, a Thursday."""
_PART = re.compile(r"(\w+)\s+for\s+(.+)", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RulePart:
    """One part of a rule: of each step (an hour, a day) the last checkpoint stays for so long; of `all`, each one."""

    step: str
    length: timedelta

    def __str__(self) -> str:
        return f"{self.step} for {written_duration(self.length)}"

    @property
    def step_length(self) -> timedelta:
        return _STEPS[self.step]

    @property
    def most(self) -> int | None:
        """How many checkpoints the part keeps at most; None: as many as there are."""
        # One more than the whole steps: the length begins in the middle of one.
        return self.length // self.step_length + 1 if self.step_length else None

    def last_of_pieces(self, checkpoints: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
        """Of each hour, day or week, in UTC, the checkpoint with the highest slot; of `all`, each."""
        width = self.step_length // _MICROSECOND
        if not width:
            return checkpoints
        return {(at + _MONDAY) // width: (slot, at) for slot, at in checkpoints}.values()


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """The parts, each with a longer step and a longer reach than the one before."""

    parts: tuple[RulePart, ...] = ()

    def __str__(self) -> str:
        return ", ".join(map(str, self.parts)) or NONE

    def __bool__(self) -> bool:
        return bool(self.parts)

    def beside(self, age: timedelta) -> RetentionRule:
        """The rule that keeps all that are younger than `age`, too."""
        longer = tuple(part for part in self.parts if part.length > age)
        if not age or (longer and not longer[0].step_length):
            return self
        return RetentionRule((RulePart("all", age), *longer))

    def kept(self, checkpoints: Iterable[tuple[int, int]], now: int) -> dict[int, RulePart]:
        """Of checkpoints, given as slot and time, ascending by slot: those that stay, each with the first part that keeps it.

        Of each piece of time the highest slot stays. So what stays now is what would stay if nothing had gone before: the last
        of a day is the last of its hour. A clock that goes back puts later slots into an earlier piece, and one that is behind
        finds that all is young; neither makes a piece of time empty.
        """
        observed = list(checkpoints) if self.parts else []
        found: dict[int, RulePart] = {}
        for part in self.parts:
            oldest = now - part.length // _MICROSECOND
            for slot, at in part.last_of_pieces(observed):
                if at > oldest:
                    found.setdefault(slot, part)
        return found


NO_RULE = RetentionRule()
"""Only the newest checkpoints stay."""


def retention_rule(text: str) -> RetentionRule:
    """The rule that a text says. ValueError says what would be right."""
    if text.strip().lower() == NONE:
        return NO_RULE
    if not text.strip():
        raise ValueError(f"it is empty: write it like {EXAMPLE!r}, or {NONE!r}")
    parts = tuple(_part(each.strip()) for each in text.split(","))
    for before, part in pairwise(parts):
        if part.step_length <= before.step_length or part.length <= before.length:
            raise ValueError(
                f"'{part}' cannot stand behind '{before}': each part takes longer steps (all, hourly, daily, weekly) and reaches "
                "further back than the part before it"
            )
    return RetentionRule(parts)


def _part(text: str) -> RulePart:
    match = _PART.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is no part of a rule: write each like 'hourly for 2 days', with commas between"
        )
    step = match[1].lower()
    if step not in _STEPS:
        near = difflib.get_close_matches(step, _STEPS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(_STEPS)}"
        raise ValueError(f"{match[1]!r} in {text!r} is no step: {hint}")
    try:
        part = RulePart(step, duration(match[2]))
    except OverflowError:
        raise ValueError(
            f"{match[2]!r} in {text!r} is longer than any time there is: write a shorter one"
        ) from None
    if part.length < max(part.step_length, _MICROSECOND):
        least = "more than 0" if step == "all" else f"{written_duration(part.step_length)} or more"
        raise ValueError(f"{text!r} is too short to keep anything for sure: make it {least}")
    return part
