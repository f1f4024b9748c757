"""A decision that fails before anything is written, as where the store does not answer."""

from __future__ import annotations

import pytest

from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.writer import CommitPermit, Writer
from stateflow.errors import UnavailableError


def fail_once(monkeypatch: pytest.MonkeyPatch, slot: int) -> list[int]:
    """The first decision of this slot fails. The list then has the slot."""
    decide = Writer.decide
    failed: list[int] = []

    def fails_once(writer: Writer, draft: Draft) -> CommitPermit:
        if writer.next_slot == slot and not failed:
            failed.append(slot)
            raise UnavailableError("the store does not say which epochs there are")
        return decide(writer, draft)

    monkeypatch.setattr(Writer, "decide", fails_once)
    return failed
