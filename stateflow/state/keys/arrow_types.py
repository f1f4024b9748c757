"""The Arrow types of scalars, as tables of state have them."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from stateflow.format.scalars import SCALARS

ARROW: Mapping[str, pa.DataType] = {
    scalar.name: getattr(pa, scalar.arrow[0])(*scalar.arrow[1:]) for scalar in SCALARS
}
"""By the names that records have."""
_WIDE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


def wide(kind: pa.DataType) -> pa.DataType:
    """The type of the same values of which a single array may hold more than 2 GiB of texts or bytes."""
    return _WIDE.get(kind, kind)


INSTANT, DECIMAL = ARROW["datetime"], ARROW["decimal"]
