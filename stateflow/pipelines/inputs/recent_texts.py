"""What a source may offer beside its rows: the texts that were written to it last."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from stateflow.pipelines.inputs.input import Input

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class RecentTexts(Input):
    """A source whose last rows can be looked at as they were written, such as topics. A run whose rows lack a value everywhere looks for a
    field that is misspelt."""

    __slots__ = ()

    @abstractmethod
    def recent(self, spark: SparkSession, position: str, count: int) -> list[str]:
        """About so many objects of JSON that were written before a position of the source; none where they are written otherwise."""

    def names(self, spark: SparkSession, position: str, count: int) -> frozenset[str]:
        """Where the schemas of what was written say it: the paths of the fields in those of about so many rows before a position. Empty where
        only the texts themselves say it."""
        return frozenset()

    def unnamed(
        self, spark: SparkSession, position: str, count: int, absent: Collection[str]
    ) -> Mapping[str, str]:
        """Where what was written does not say its names: by field, of those without a value, what may have it in about so many rows before a
        position, in words."""
        return {}

    @property
    def beside(self) -> frozenset[str]:
        """Names of fields that do not stand in these texts."""
        return frozenset()

    @property
    def parts(self) -> Mapping[str, str]:
        """What comes beside these texts, by the name that people know it by, with the name of its field."""
        return {}
