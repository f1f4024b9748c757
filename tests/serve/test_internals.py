"""What is used of uvicorn without a public name: each is held against the uvicorn that is installed."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from stateflow.internals import ENTRIES
from stateflow.serve.connections import ConnectionLimits
from stateflow.serve.internals import limited

NAMES = ENTRIES["stateflow.serve.internals.limited"].names


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    """An application."""


def made(kind: Any) -> Any:
    config = Config(nothing)
    config.load()
    return kind(config, ServerState(), {}, asyncio.new_event_loop())


@pytest.mark.parametrize("name", NAMES)
def test_the_installed_uvicorn_has_the_name(name: str) -> None:
    path, _, member = name.removesuffix("()").rpartition(".")
    module, _, owner = path.rpartition(".")
    kind = getattr(importlib.import_module(module), owner)
    if owner == "RequestResponseCycle":
        assert f"self.{member}" in inspect.getsource(kind.__init__)
    else:
        assert hasattr(made(kind), member)


@pytest.mark.parametrize("module", ["h11_impl", "httptools_impl"])
def test_each_of_its_parsers_takes_the_limits(module: str) -> None:
    inner = importlib.import_module(f"uvicorn.protocols.http.{module}")
    kind = inner.H11Protocol if module == "h11_impl" else inner.HttpToolsProtocol
    protocol = made(limited(kind, ConnectionLimits(connections=3)))
    assert isinstance(protocol, kind)
    assert protocol.access_log is False
