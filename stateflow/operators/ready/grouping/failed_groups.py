"""Groups of rows that an aggregate could not take: what went wrong for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


class OverflowedSum(Exception):
    """A sum has more digits than its type; `groups` are the indices of the groups."""

    def __init__(self, groups: Sequence[int]) -> None:
        super().__init__(groups)
        self.groups = groups


class OverflowedMean(OverflowedSum):
    """A mean has more digits before the point than the decimal type that it comes out in."""


class FailedCode(Exception):
    """Functions that users wrote raised: by the index of the group, the function and its error."""

    def __init__(self, failures: Mapping[int, tuple[str, Exception]]) -> None:
        super().__init__(failures)
        self.failures = failures


@dataclass(frozen=True)
class Failure:
    what: str
    """What failed, for people: `add() of 'basket'`."""
    error: Exception
    """What user code raised, or an error that says it all."""


class FailedGroups(Exception):
    """The groups that cannot be aggregated, by their index. All other groups can be."""

    def __init__(self, failures: Mapping[int, Failure]) -> None:
        super().__init__(failures)
        self.failures = failures

    def renumbered(self, groups: Any) -> FailedGroups:
        """`groups` has the numbers of the groups elsewhere, where two groups may share a number."""
        return FailedGroups({int(groups[group]): failure for group, failure in self.failures.items()})

    def among(self, ids: Any) -> Any:
        """For each number of a group whether the group failed."""
        return np.isin(ids, list(self.failures))

    def items(self) -> Iterable[tuple[int, Failure]]:
        return self.failures.items()
