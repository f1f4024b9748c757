"""What every test of the pages may use: a browser, and a server with made-up answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.ui.browser import browser, visit
from tests.ui.fixture_data import World, full_world
from tests.ui.fixture_server import application, serving

__all__ = ["browser", "served", "visit"]

BASE = "/team/airflow"
"""The path of `[api] base_url`: nothing may lie at the server's root."""


@dataclass(frozen=True)
class Served:
    world: World
    address: str

    @property
    def pages(self) -> str:
        return f"{self.address}{BASE}/stateflow/"

    @property
    def job(self) -> str:
        return f"{self.pages}#/jobs/stateflow_default/orders"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    world = full_world()
    with serving(application(world, BASE)) as address:
        yield Served(world, address)
