"""What the body of an action may be: it is read no further than a form can be long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import HTTPException

from stateflow_ui.actions import MOST_BYTES, ActionForm, action_form


def sent(*chunks: bytes) -> tuple[Any, list[int]]:
    """A request that arrives in chunks, and the sizes of those that were asked for."""
    taken: list[int] = []

    async def stream() -> AsyncIterator[bytes]:
        for chunk in chunks:
            taken.append(len(chunk))
            yield chunk

    return SimpleNamespace(stream=stream), taken


def test_a_form_is_read_however_it_is_cut() -> None:
    request, _ = sent(b'{"conf": {"job": ', b'"orders"}, "note": "x"}')
    assert asyncio.run(action_form(request)) == ActionForm({"job": "orders"}, "x")


def test_a_body_that_no_form_has_is_refused_before_it_has_come() -> None:
    request, taken = sent(*[b"x" * 32_768] * 1000)
    with pytest.raises(HTTPException) as refused:
        asyncio.run(action_form(request))
    assert refused.value.status_code == 413
    assert sum(taken) <= MOST_BYTES + 32_768


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 60_000,
        b"\xff",
        b"{",
        b"[]",
        b'{"note": "\\ud800"}',
        b'{"conf": {"job": "\\udc00"}}',
        b'{"conf": {"\\ud800": {}}}',
        b'{"conf": {"retained": NaN}}',
        b'{"conf": {"retained": 1e999}}',
        b'{"conf": {"conn_id": 7}}',
        b'{"conf": {"conn_id": ["lake"]}}',
    ],
)
def test_what_is_no_form_is_refused(body: bytes) -> None:
    request, _ = sent(body)
    with pytest.raises(HTTPException) as refused:
        asyncio.run(action_form(request))
    assert refused.value.status_code == 422
