"""A schema registry that speaks Confluent's protocol: the schema of an id, asked for once by each process."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from stateflow.connectors import NotFoundError, StateflowError, UnavailableError, UsageError
from stateflow.connectors.kafka.avro import AvroMisfit, AvroSchema

_PATIENCE = 15
"""Seconds that a registry has to answer in."""


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """Where it is, and a login."""

    url: str
    login: str = field(default="", repr=False)
    """`user:password`, or empty."""

    def schema(self, id: int) -> AvroSchema:
        """The schema that a writer has registered under an id."""
        return _schema(self, id)

    def check(self) -> None:
        """UnavailableError for one that does not answer, UsageError for one that refuses the login."""
        self._get("/subjects")

    def _get(self, path: str) -> Any:
        request = Request(self.url.rstrip("/") + path, headers={"Accept": "application/json"})
        if self.login:
            request.add_header("Authorization", f"Basic {base64.b64encode(self.login.encode()).decode()}")
        try:
            with urlopen(request, timeout=_PATIENCE) as answer:
                return json.load(answer)
        except HTTPError as error:
            raise _refused(self.url, path, error.code) from None
        except (URLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise UnavailableError(
                f"the schema registry {self.url} does not answer ({reason}): check that it runs and that this is its address"
            ) from None


@cache
def _schema(registry: SchemaRegistry, id: int) -> AvroSchema:
    answer = registry._get(f"/schemas/ids/{id}")
    if answer.get("schemaType", "AVRO") != "AVRO":
        raise UsageError(
            f"schema {id} of the registry {registry.url} is {answer['schemaType']}, and the topic is read as Avro"
        )
    if answer.get("references"):
        raise UsageError(
            f"schema {id} of the registry {registry.url} has references to other subjects, which are not followed: register it as one schema"
        )
    try:
        return AvroSchema(answer["schema"])
    except (AvroMisfit, KeyError, TypeError) as error:
        raise UsageError(
            f"schema {id} of the registry {registry.url} cannot be read ({error}): register it anew"
        ) from error


def _refused(url: str, path: str, code: int) -> StateflowError:
    if code in (401, 403):
        return UsageError(
            f"the schema registry {url} refuses the login: correct schema.registry.basic.auth.user.info in the connection"
        )
    if code == 404:
        return NotFoundError(
            f"the schema registry {url} has no {path}: is it the registry that the topic's writers use?"
        )
    return UnavailableError(
        f"the schema registry {url} answers {code} to {path}: try again, or look into its log"
    )
