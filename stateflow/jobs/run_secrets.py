"""Hands secrets from a scheduler to its driver outside of the command line, which every user of a host can read."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

import msgspec

HANDED_OVER = "STATEFLOW_RUN_SECRETS"
"""The environment variable that holds it, as JSON."""
MOUNTED = "STATEFLOW_RUN_SECRETS_FOLDER"
"""The environment variable that names a folder of variables: a file for each, as Kubernetes mounts a secret."""


class RunSecrets(msgspec.Struct, frozen=True, omit_defaults=True):
    """Parameters of the pipeline and settings of Spark that are called like secrets."""

    parameters: dict[str, str] = {}
    conf: dict[str, str] = {}

    def variable(self) -> dict[str, str]:
        """For the environment of the driver; empty when there are none."""
        return {HANDED_OVER: msgspec.json.encode(self).decode()} if self.parameters or self.conf else {}


def take_mounted(env: MutableMapping[str, str] = os.environ) -> None:
    """Sets the variables of that folder. What the environment says itself stays."""
    if folder := env.get(MOUNTED):
        for file in sorted(Path(folder).iterdir()):
            if (
                not file.name.startswith(".") and file.is_file()
            ):  # Kubernetes has hidden folders of its own in there
                env.setdefault(file.name, file.read_text(encoding="utf-8"))


def handed_over(env: Mapping[str, str] = os.environ) -> RunSecrets:
    """What the process that started this one has handed over."""
    return msgspec.json.decode(env.get(HANDED_OVER) or "{}", type=RunSecrets)
