"""A cache folder of its own for a test, without what every test would fetch and make anew: jars, Java, Spark's classes."""

from __future__ import annotations

from pathlib import Path

from stateflow.config.options import cache_folder

_LENT = ("jars*.json", "ivy*", "java", "class-data")


def lend(cache: Path) -> Path:
    """Makes the folder. Its jars take over a minute to resolve, and 26 CPU seconds."""
    cache.mkdir(parents=True, exist_ok=True)
    for pattern in _LENT:
        for kept in cache_folder().glob(pattern):
            if not (cache / kept.name).exists():
                (cache / kept.name).symlink_to(kept.absolute())
    return cache
