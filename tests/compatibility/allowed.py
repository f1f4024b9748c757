"""Flows whose caller lets go of state."""

from __future__ import annotations

from stateflow.pipelines.flow import Flow


def allowing(flow: Flow, allowed: bool = True) -> Flow:
    """What `--allow-non-restored-state` makes of a flow."""
    flow.allow_non_restored_state = allowed
    return flow
