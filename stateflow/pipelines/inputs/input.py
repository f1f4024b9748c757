"""What a flow reads: how it is opened, and what it says beside its rows. All sources declare it, the library's own and those of packages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stateflow.errors import without_exit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stateflow.pipelines.rows.row_type import RowType


PARTITION = "_sf_partition"
"""The column with the number of a row's partition."""


class Declarable(ABC):
    """What `flow.source` takes."""

    __slots__ = ()

    @abstractmethod
    def declared(self, uid: str, rows: RowType | None) -> Input:
        """With the uid and the row class that a flow gives it. UsageError for a class that does not fit."""


class Input(Declarable):
    """A source as a flow declares it."""

    __slots__ = ()

    def declared(self, uid: str, rows: RowType | None) -> Input:
        return self

    @abstractmethod
    def streaming(self, spark: SparkSession) -> DataFrame:
        """Its rows as a stream."""

    offset_kind = ""
    """Of which kind the offsets of its stream are, as records have them; empty where only Spark knows, once it has opened it."""
    has_partitions = False
    """Whether it tells of each row which partition it is of."""

    def streaming_with_partitions(self, spark: SparkSession) -> DataFrame:
        """Its rows as a stream, each with the number of its partition in the column `PARTITION`."""
        raise NotImplementedError(f"{self.named} has no partitions")

    def partitions(self, position: str) -> Mapping[int, str]:
        """The names of the partitions that a position has, by their numbers."""
        return {}

    @property
    def cuts_batches(self) -> bool:
        """Whether the source itself may end a batch where more follows. What Spark's own streams do, their positions say."""
        return False

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of Kafka that it names; none where it reads something else, or only Spark knows them."""
        return ()

    def kept(self) -> Mapping[tuple[str, int], tuple[int, int]]:
        """By topic and partition of Kafka the first offset that is there and the end, asked without Spark. Empty where nobody can ask, or a
        loss is accepted."""
        return {}

    def columns(self, rows: RowType | None) -> RowType | None:
        """The fields of its rows, where the flow gives it `rows`."""
        return rows

    @property
    def place(self) -> str:
        """Where it reads, in one spelling; empty where that cannot be told."""
        return ""

    def reads(self, place: str) -> bool:
        """Whether it reads what is written to a place."""
        return bool(self.place) and place == self.place

    @property
    def named(self) -> str:
        """What it reads, for messages."""
        return str(self)

    @property
    def jars(self) -> str:
        """The name of the bundle of jars that Spark needs for it; empty for none."""
        return ""

    def require(self) -> None:
        """UsageError for what this process lacks to read it."""
        return

    @property
    def since(self) -> str:
        """Where it begins, for a job that has read nothing; empty for the default."""
        return ""

    def begins_at_end(self, spark: SparkSession, position: str) -> bool:
        """True if it was to begin at a time, and has no row so late."""
        return False

    @property
    def reader_options(self) -> Mapping[str, str]:
        """Options of Spark's reader of its values."""
        return {}

    @property
    def column_of_broken_rows(self) -> str:
        """The column that gets a row which does not fit; empty without one."""
        return ""


@dataclass(frozen=True, slots=True)
class FunctionInput(Input):
    """A function of the user's, from the SparkSession to a streaming DataFrame."""

    function: Callable[[Any], Any]

    def streaming(self, spark: SparkSession) -> DataFrame:
        with without_exit(f"the source's function {self}"):
            return self.function(spark)  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return repr(self.function)
