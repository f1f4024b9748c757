"""The Arrow types of scalars, as tables of state have them."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from stateflow.format.scalars import SCALARS

ARROW: Mapping[str, pa.DataType] = {
    scalar.name: getattr(pa, scalar.arrow[0])(*scalar.arrow[1:]) for scalar in SCALARS
}
"""By the names that records have."""
INSTANT, DECIMAL = ARROW["datetime"], ARROW["decimal"]
