"""What a scheduler hands to its driver outside of the command line, which every user of a host can read."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

HANDED_OVER = "STATEFLOW_RUN_SECRETS"
"""The environment variable that holds it, as JSON."""


class RunSecrets(msgspec.Struct, frozen=True, omit_defaults=True):
    """Parameters of the pipeline and settings of Spark that are called like secrets."""

    parameters: dict[str, str] = {}
    conf: dict[str, str] = {}

    def variable(self) -> dict[str, str]:
        """For the environment of the driver; empty when there are none."""
        return {HANDED_OVER: msgspec.json.encode(self).decode()} if self.parameters or self.conf else {}


def handed_over(env: Mapping[str, str] = os.environ) -> RunSecrets:
    """What the process that started this one has handed over."""
    return msgspec.json.decode(env.get(HANDED_OVER) or "{}", type=RunSecrets)
