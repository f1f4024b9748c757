"""What the library uses of other projects without a public name: an entry for each function that rests on it.

The functions are in the rooms `internals` (`spark/internals/`, `serve/internals.py`). docs/spark-internals.md is their table, made by
`python scripts/internals_page.py`.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from stateflow.errors import IncompatibleError

SEEN = ("pyspark 4.0.5", "pyspark 4.1.4", "pyspark 4.2.0")
"""The versions of PySpark in which all names are, unless an entry says otherwise."""
DELTA_SEEN = "delta-spark 4.4.0"
"""The version of Delta, with its jar for each of them."""
_OWNERS = {
    "org.apache.spark.sql.delta.": "Delta", "io.delta.": "Delta", "org.apache.spark.sql.kafka010.": "Spark's Kafka source", "org.apache.spark.": "Spark",
    "org.apache.hadoop.": "Hadoop", "org.apache.datasketches.": "DataSketches", "org.apache.parquet.": "Parquet", "org.apache.orc.": "ORC", "org.codehaus.janino.": "Janino", "pyspark.": "PySpark",
    "py4j.": "Py4J", "scala.": "Scala", "java.": "Java", "sun.": "Java", "spark.": "Spark", "uvicorn.": "uvicorn",
}  # fmt: skip
_ABSENT = {
    "AttributeError": r"has no attribute '([\w$]+)'",
    "ImportError": r"cannot import name '(\w+)'",
    "ModuleNotFoundError": r"No module named '([\w.]+)'",
    "Py4JError": r"(?:Method |Constructor )?([\w.$]+)(?:\([^()]*\))? does not exist|ClassNotFoundException: ([\w.$]+)",
}
"""By the class of the error, how Python, Py4J and Java say that a name is missing: the name, with or without its path."""


class MissingNameError(IncompatibleError):
    """A function without another way of its own lacks a name. Its caller may have one."""


F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Internal:
    """A function, and the names without a promise that it rests on."""

    function: str
    """With its module."""
    purpose: str
    names: tuple[str, ...]
    """Python's as `pyspark.sql.DataFrame._jdf`. Java's methods and constructors have the types of their parameters. What is in brackets
    some versions have and some do not: `streaming[.runtime].StreamExecution`."""
    seen_in: tuple[str, ...]
    where_missing: str
    """What the function does instead in a version that lacks one of the names; empty: it refuses."""

    @property
    def owners(self) -> list[str]:
        return sorted({owner_of(name) for name in self.names})

    def refusal(self, name: str) -> str:
        # Delta has one version for every Spark: who has updated it alone has the right Spark.
        seen = (DELTA_SEEN,) if owner_of(name) == "Delta" else self.seen_in
        return (
            f"{owner_of(name)} has no {name} in the version that is installed, and {self.function} needs it: "
            f"install {' or '.join(seen)}, in which it was seen"
        )

    def missing(self, error: BaseException) -> str:
        """The name that the error says is not there; empty for any other error."""
        # What follows is Java's stack.
        text = " ".join(f"{error}".splitlines()[:3])
        said = re.search(_ABSENT.get(type(error).__name__, "(?!)"), text)
        if said is None:
            return ""
        path = next(filter(None, said.groups()))
        *inside, last = path.split(".")
        for is_it in (
            lambda name: member_of(name) == last,
            lambda name: _lacks_class(name, path),
            lambda name: member_of(name) in inside,
        ):
            if found := next(filter(is_it, self.names), ""):
                return found
        return ""


_log = logging.getLogger(__name__)
_noted: set[str] = set()
"""Functions whose other way was logged."""
ENTRIES: dict[str, Internal] = {}
"""By function: the entries of the modules that are imported."""


def internal(
    *names: str,
    where_missing: str = "",
    otherwise: Callable[[], Any] | None = None,
    seen_in: tuple[str, ...] = SEEN,
) -> Callable[[F], F]:
    """Makes an entry of a function or class.

    Where one of the names is missing a call gives what `otherwise` makes; without it, it refuses. A function that has another way of
    its own says in `where_missing` which.
    """

    def entered(function: F) -> F:
        at = f"{function.__module__}.{function.__qualname__}"
        purpose = (function.__doc__ or "").strip().split("\n\n")[0]
        entry = ENTRIES[at] = Internal(at, " ".join(purpose.split()), names, seen_in, where_missing)
        if isinstance(function, type) or (where_missing and otherwise is None):
            return function

        @functools.wraps(function)
        def guarded(*arguments: Any, **options: Any) -> Any:
            try:
                return function(*arguments, **options)
            except Exception as error:
                if not (name := entry.missing(error)):
                    raise
                if otherwise is None:
                    raise MissingNameError(entry.refusal(name)) from error
                if at not in _noted:
                    _noted.add(at)
                    _log.info(
                        "%s has no %s in the version that is installed: %s",
                        owner_of(name),
                        name,
                        where_missing,
                    )
                return otherwise()

        return cast(F, guarded)

    return entered


def owner_of(name: str) -> str:
    return next(owner for prefix, owner in _OWNERS.items() if name.startswith(prefix))


def member_of(name: str) -> str:
    """The last part, such as `ofRows` of `org.apache.spark.sql.classic.Dataset.ofRows(SparkSession, LogicalPlan)`."""
    return spellings(name)[0].partition("(")[0].rpartition(".")[2]


def _lacks_class(name: str, path: str) -> bool:
    """Whether not even the class is there, or the module, such as one that moved to another package."""
    owners = (spelling.partition("(")[0].rpartition(".")[0] for spelling in spellings(name))
    return any(f"{owner}.".startswith(f"{path}.") for owner in owners)


def spellings(name: str) -> list[str]:
    """The name with what is in brackets, and without it."""
    return [re.sub(r"\[([^\]]+)\]", r"\1", name), re.sub(r"\[[^\]]+\]", "", name)]
