"""Features of the newest supported Spark that an older one lacks, as far as a pipeline may notice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from packaging.version import Version

from stateflow.spark.session.versions import minor


@dataclass(frozen=True, slots=True)
class Lack:
    """A feature that Spark has from a version on."""

    since: str
    what: str
    instead: str
    """What happens, or what to do, where the feature is missing."""
    is_felt: bool = False
    """True if a pipeline may behave in another way, or is refused."""


LACKS = (
    Lack(
        since="4.1",
        what="checksums of shuffles",
        instead="on a cluster nobody notices a `transform` that gives other rows when a lost executor's part is computed anew: write "
        "transforms that are deterministic, or read the rows from a table",
        is_felt=True,
    ),
    Lack(
        since="4.1",
        what="`repartitionById`",
        instead="rows come to their task by a number whose hash leads there, with the same result",
    ),
    Lack(
        since="4.1",
        what="conditions pushed down into sources in Python",
        instead="`where` on a state table opens all of its shards, with the same result: name the key by `key=`, which opens one",
    ),
    Lack(
        since="4.1",
        what="a quote written as two (`'it''s'`) in Spark's own SQL",
        instead="Spark 4.0 reads two texts side by side, `its`. A `where=` of a pipeline means the quote in every Spark; in a "
        r"""`filter("...")`, which is Spark's, write `'it\'s'`""",
        is_felt=True,
    ),
    Lack(
        since="4.1",
        what="conditional writes of Hadoop's S3 client",
        instead="exactly-once output into Delta tables on S3 is refused, unless DynamoDB decides: Spark 4.0 brings Hadoop 3.4.1, "
        "whose client knows no condition",
        is_felt=True,
    ),
    Lack(
        since="4.2",
        what="an aggregate of the highest value of each key",
        instead="`sf.per_partition` is refused when its run starts",
        is_felt=True,
    ),
    Lack(
        since="4.2",
        what="sources in Python that hear where a batch begins",
        instead="a source of a package is refused when its run starts",
        is_felt=True,
    ),
)


def lacking(spark: str) -> Iterator[Lack]:
    """The features that this version of Spark lacks."""
    here = Version(minor(spark))
    return (lack for lack in LACKS if here < Version(lack.since))


def felt(spark: str) -> list[Lack]:
    """What a pipeline may miss in this version of Spark."""
    return [lack for lack in lacking(spark) if lack.is_felt]
