"""A schema registry that speaks Confluent's protocol: the schema of an id, asked for once by each process."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from stateflow.connectors import (
    IncompatibleError,
    NotFoundError,
    StateflowError,
    UnavailableError,
    UsageError,
)
from stateflow.connectors.kafka.avro import AvroMisfit, AvroSchema
from stateflow.connectors.kafka.settings import registry_settings
from stateflow.connectors.kafka.topic import KafkaTopic

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

    def register(self, subject: str, schema: str) -> int:
        """The id of a schema of the subject, which it has from now on. IncompatibleError where the registry's rules refuse it."""
        return _registered(self, subject, schema)

    def _get(self, path: str, body: Any = None) -> Any:
        request = Request(self.url.rstrip("/") + path, headers={"Accept": "application/json"})
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        if self.login:
            request.add_header("Authorization", f"Basic {base64.b64encode(self.login.encode()).decode()}")
        try:
            with urlopen(request, timeout=_PATIENCE) as answer:
                return json.load(answer)
        except HTTPError as error:
            if error.code in (409, 422) and body is not None:
                said = json.loads(error.read() or b"{}").get("message", "it says no more")
                raise IncompatibleError(
                    f"the schema registry {self.url} refuses the schema of the columns under {path} ({said}): put out columns that fit its "
                    "newest version, or let the subject's compatibility be another one"
                ) from None
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


@cache
def _registered(registry: SchemaRegistry, subject: str, schema: str) -> int:
    path = f"/subjects/{quote(subject, safe='')}/versions"
    return int(registry._get(path, {"schema": schema, "schemaType": "AVRO"})["id"])


def registry_of(topic: KafkaTopic) -> SchemaRegistry | None:
    """Where the writers' schemas are; None if a file has the schema, or the value has none."""
    if not topic.registry:
        return None
    return SchemaRegistry(topic.registry, registry_settings(topic).get("basic.auth.user.info", ""))


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
