"""A schema registry that speaks Confluent's protocol: the schema of an id with all that it refers to, asked for once by each process."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from functools import cache
from http.client import HTTPException
from typing import Any, Literal
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from stateflow.connectors import (
    IncompatibleError,
    NotFoundError,
    StateflowError,
    UnavailableError,
    UsageError,
)
from stateflow.connectors.kafka.settings import registry_settings
from stateflow.connectors.kafka.topic import KafkaTopic

SchemaType = Literal["AVRO", "PROTOBUF"]
_WORDS: dict[str, str] = {"AVRO": "Avro", "PROTOBUF": "Protobuf"}
_PATIENCE = 15
"""Seconds that a registry has to answer in."""


class OtherSchemaType(UsageError):
    """A schema is of another type than the one that was asked for."""


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """Where it is, and a login."""

    url: str
    login: str = field(default="", repr=False)
    """`user:password`, or empty."""

    def schema(self, id: int, type: SchemaType) -> RegisteredSchema:
        """The schema that a writer has registered under an id. OtherSchemaType for one of another type."""
        return _schema(self, id, type)

    def newest(self, subject: str, type: SchemaType) -> RegisteredSchema | None:
        """The newest schema of a subject; None if there is no such subject."""
        path = f"/subjects/{quote(subject, safe='')}/versions/latest{_FORMAT[type]}"
        try:
            answer = self._get(path)
        except NotFoundError:
            return None
        return _resolved(
            self, answer, type, f"the newest schema of subject {subject} in the registry {self.url}"
        )

    def check(self) -> None:
        """UnavailableError for one that does not answer, UsageError for one that refuses the login."""
        self._get("/subjects")

    def register(self, subject: str, schema: str, type: SchemaType) -> int:
        """The id of a schema of the subject, which it has from now on. IncompatibleError where the registry's rules refuse it."""
        return _registered(self, subject, schema, type)

    def _get(self, path: str, body: Any = None) -> Any:
        request = Request(self.url.rstrip("/") + path, headers={"Accept": "application/json"})
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        if self.login:
            request.add_header("Authorization", f"Basic {base64.b64encode(self.login.encode()).decode()}")
        try:
            with _OPENER.open(request, timeout=_PATIENCE) as answer:
                return json.load(answer)
        except HTTPError as error:
            if error.code in (409, 422) and body is not None:
                said = _message(error.read())
                raise IncompatibleError(
                    f"the schema registry {self.url} refuses the schema of the columns under {path} ({said}): put out columns that fit its "
                    "newest version, or let the subject's compatibility be another one"
                ) from None
            raise _refused(self.url, path, error.code) from None
        except (URLError, HTTPException, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise UnavailableError(
                f"the schema registry {self.url} does not answer ({reason}): check that it runs and that this is its address"
            ) from None


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema with those that it refers to, directly or through others."""

    what: str
    """Its id or subject, and the registry."""
    text: str
    """Of Protobuf a descriptor in Base64."""
    references: tuple[tuple[str, str], ...] = ()
    """The name and the text of each. One that another refers to stands before it."""


_FORMAT: dict[str, str] = {"AVRO": "", "PROTOBUF": "?format=serialized"}
"""Protobuf's own parser of `.proto` files is a compiler in C++. The registry has one, and gives what it has read."""


@cache
def _schema(registry: SchemaRegistry, id: int, type: SchemaType) -> RegisteredSchema:
    answer = registry._get(f"/schemas/ids/{id}{_FORMAT[type]}")
    return _resolved(registry, answer, type, f"schema {id} of the registry {registry.url}")


def _resolved(registry: SchemaRegistry, answer: Any, type: SchemaType, what: str) -> RegisteredSchema:
    found = answer.get("schemaType", "AVRO")
    if found != type:
        raise OtherSchemaType(
            f"{what} is {_WORDS.get(found, found)}, and the topic is read or written as {_WORDS[type]}: say value={found.lower()!r}, or give "
            "another topic"
        )
    known: dict[tuple[str, int], tuple[str, str]] = {}
    _follow(registry, answer, type, what, (), known)
    return RegisteredSchema(what, answer["schema"], tuple(known.values()))


def _follow(
    registry: SchemaRegistry,
    answer: Any,
    type: SchemaType,
    what: str,
    road: tuple[tuple[str, int], ...],
    known: dict[tuple[str, int], tuple[str, str]],
) -> None:
    """Adds to `known` what a schema refers to; `road` is what leads to it."""
    for each in answer.get("references") or ():
        at = (str(each["subject"]), int(each["version"]))
        if at in road:
            names = " -> ".join(subject for subject, _ in (*road[road.index(at) :], at))
            raise UsageError(
                f"{what} refers to subjects that refer to each other ({names}), which no reader can resolve: register them without the circle"
            )
        if at in known:
            continue
        # A version that somebody has deleted since is still what the schema means.
        path = f"/subjects/{quote(at[0], safe='')}/versions/{at[1]}?deleted=true{_FORMAT[type].replace('?', '&')}"
        try:
            found = registry._get(path)
        except NotFoundError:
            raise UsageError(
                f"{what} refers to version {at[1]} of subject {at[0]!r}, which the registry does not have: register it there"
            ) from None
        _follow(registry, found, type, what, (*road, at), known)
        known[at] = (str(each["name"]), found["schema"])


@cache
def _registered(registry: SchemaRegistry, subject: str, schema: str, type: SchemaType) -> int:
    path = f"/subjects/{quote(subject, safe='')}/versions"
    return int(registry._get(path, {"schema": schema, "schemaType": type})["id"])


def registry_of(topic: KafkaTopic) -> SchemaRegistry | None:
    """Where the writers' schemas are; None if a file has the schema, or the value has none."""
    if not topic.registry:
        return None
    return SchemaRegistry(topic.registry, registry_settings(topic).get("basic.auth.user.info", ""))


def subject_of(topic: str) -> str:
    """The subject of a topic's values, as writers name it unless they are told otherwise."""
    return f"{topic}-value"


class _WithinOneHost(HTTPRedirectHandler):
    """Takes the login to no other host, and to none without TLS after one with it."""

    def redirect_request(self, req: Request, *told: Any) -> Request | None:
        made = super().redirect_request(req, *told)
        if made is not None:
            old, new = urlsplit(req.full_url), urlsplit(made.full_url)
            if old.hostname != new.hostname or (old.scheme == "https" and new.scheme != "https"):
                made.remove_header("Authorization")
        return made


_OPENER = build_opener(_WithinOneHost)


def _message(body: bytes) -> str:
    """What the registry says. A proxy before it may answer with a page."""
    try:
        said = json.loads(body)
    except ValueError:
        said = None
    return str(said["message"]) if isinstance(said, dict) and "message" in said else "it says no more"


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
