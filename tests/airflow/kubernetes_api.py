"""A Kubernetes API server of one test: it speaks the protocol for pods, their logs and secrets, and runs nothing.

What it is sent is held against the published schema: the models of the official client, which are made from it.
"""

from __future__ import annotations

import copy
import json
import re
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes import client
from kubernetes.client import models

KINDS = {
    "pods": "V1Pod", "secrets": "V1Secret", "configmaps": "V1ConfigMap", "services": "V1Service",
    "persistentvolumeclaims": "V1PersistentVolumeClaim", "networkpolicies": "V1NetworkPolicy",
}  # fmt: skip
PATH = re.compile(
    r"/(?:api|apis/networking\.k8s\.io)/v1/namespaces/(?P<ns>[^/]+)/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+))?(?P<sub>/log)?$"
)


class Cluster:
    """What the server has, and what it was asked."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.asked: list[tuple[str, str, Any]] = []
        """Method, path, body."""
        self.problems: list[str] = []
        """What was sent and does not fit the schema."""
        self.logs: dict[str, list[tuple[datetime, str]]] = {}
        self.refuses: int = 0
        """With this status everything is answered, if it is not 0."""
        self.ahead = 0.0
        """Seconds that its clock is ahead of this host's."""
        self.lock = threading.Lock()

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [body for (each, _), body in self.objects.items() if each == kind]

    def add(self, kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
        made = copy.deepcopy(dict(body))
        made["metadata"] = {
            "uid": str(uuid.uuid4()), "creationTimestamp": self.now(), "namespace": "jobs", **made["metadata"],
        }  # fmt: skip
        if kind == "pods":
            made.setdefault("status", {"phase": "Pending"})
        self.objects[kind, made["metadata"]["name"]] = made
        return made

    def driver(self, labels: Mapping[str, str], name: str = "orders-driver") -> dict[str, Any]:
        """The pod that spark-submit makes."""
        return self.add(
            "pods",
            {
                "metadata": {"name": name, "labels": {"spark-role": "driver", **labels}},
                "spec": {"containers": [{"name": "spark-kubernetes-driver", "image": "x"}]},
            },
        )

    def begins(self, name: str = "orders-driver") -> None:
        self.objects["pods", name]["status"] = {"phase": "Running", "startTime": self.now()}

    def ends(self, name: str = "orders-driver", *, code: int = 0, reason: str = "", **status: Any) -> None:
        ended = {"exitCode": code, "reason": reason or ("Error" if code else "Completed")}
        container = {"name": "spark-kubernetes-driver", "state": {"terminated": ended}}
        container |= {"image": "x", "imageID": "x", "ready": False, "restartCount": 0}
        phase = "Failed" if code else "Succeeded"
        self.objects["pods", name]["status"] = {"phase": phase, "containerStatuses": [container], **status}

    def now(self) -> str:
        return now(self.ahead)

    def says(self, text: str, name: str = "orders-driver") -> None:
        self.logs.setdefault(name, []).append((datetime.now(UTC), text))


def now(ahead: float = 0.0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=ahead)).strftime("%Y-%m-%dT%H:%M:%SZ")


def misfits(kind: str, value: Any, where: str) -> Iterator[str]:
    """What of a manifest the schema does not know or has in another type."""
    if kind.startswith("list["):
        if not isinstance(value, list):
            yield f"{where} is no list"
            return
        for at, each in enumerate(value):
            yield from misfits(kind[5:-1], each, f"{where}[{at}]")
    elif kind.startswith("dict("):
        for name, each in value.items():
            yield from misfits(kind[5:-1].partition(", ")[2], each, f"{where}.{name}")
    elif (model := getattr(models, kind, None)) is not None:
        fields = {model.attribute_map[name]: of for name, of in model.openapi_types.items()}
        for name, each in value.items():
            if name not in fields:
                yield f"{where}.{name} is unknown"
            elif each is not None:
                yield from misfits(fields[name], each, f"{where}.{name}")
    elif kind in ("int", "float", "bool"):
        wanted = {"int": int, "float": (int, float), "bool": bool}[kind]
        if not isinstance(value, wanted):
            yield f"{where} is {value!r}, no {kind}"
    elif kind == "str" and not isinstance(value, str):
        yield f"{where} is {value!r}, no text"


def checked(kind: str, body: Any) -> list[str]:
    """Unknown fields, wrong types, and what the schema requires and is not there."""
    found = list(misfits(KINDS[kind], body, kind))
    answer = type("Answer", (), {"data": json.dumps(body)})
    try:
        client.ApiClient().deserialize(answer, KINDS[kind])
    except ValueError as error:
        found.append(str(error))
    return found


def merged(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{name: merged(old.get(name), value) for name, value in new.items()}}


def handler(cluster: Cluster) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: Any) -> None: ...

        def date_time_string(self, timestamp: float | None = None) -> str:
            """For the answer's Date."""
            return super().date_time_string(time.time() + cluster.ahead if timestamp is None else timestamp)

        def answer(self, status: int, body: Any) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if isinstance(body, bytes) else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def handle_one(self) -> None:
            url = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(url.query).items()}
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"null") if length else None
            with cluster.lock:
                cluster.asked.append((self.command, url.path, body))
                self.answer(*self.done(url.path, query, body))

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = handle_one

        def done(self, path: str, query: Mapping[str, str], body: Any) -> tuple[int, Any]:
            if cluster.refuses:
                return cluster.refuses, status_of(cluster.refuses, "refused")
            if path == "/version":
                return 200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
            match = PATH.match(path)
            if match is None or match["kind"] not in KINDS:
                return 404, status_of(404, f"no {path}")
            kind, name = match["kind"], match["name"]
            found = cluster.objects.get((kind, name)) if name else None
            if self.command == "POST" and not name:
                cluster.problems += checked(kind, body)
                if (kind, body["metadata"]["name"]) in cluster.objects:
                    return 409, status_of(409, "AlreadyExists")
                return 201, cluster.add(kind, body)
            if self.command == "PATCH" and "apply-patch" in (self.headers.get("Content-Type") or ""):
                cluster.problems += checked(kind, body)
                return 200, cluster.add(kind, body)
            if self.command == "GET" and not name:
                if query.get("watch") == "true":
                    return 200, b""
                return 200, self.listed(kind, query)
            if found is None:
                return 404, status_of(404, f"{kind} {name!r} not found")
            if match["sub"]:
                if int(query.get("sinceSeconds", 1)) < 1:
                    return 422, status_of(422, "sinceSeconds: must be greater than 0")
                return 200, self.log(name, query)
            if self.command == "DELETE":
                del cluster.objects[kind, name]
                return 200, found
            if self.command in ("PATCH", "PUT"):
                cluster.objects[kind, name] = changed = merged(found, body)
                cluster.problems += checked(kind, changed)
                return 200, changed
            return 200, found

        def listed(self, kind: str, query: Mapping[str, str]) -> dict[str, Any]:
            wanted = dict(part.split("=", 1) for part in query.get("labelSelector", "").split(",") if part)
            items = [
                body
                for body in cluster.of(kind)
                if wanted.items() <= (body["metadata"].get("labels") or {}).items()
            ]
            return {
                "kind": "PodList",
                "apiVersion": "v1",
                "metadata": {"resourceVersion": "1"},
                "items": items,
            }

        def log(self, name: str, query: Mapping[str, str]) -> bytes:
            lines = cluster.logs.get(name, [])
            if "sinceSeconds" in query:
                since = datetime.now(UTC) - timedelta(seconds=int(query["sinceSeconds"]))
                lines = [(at, text) for at, text in lines if at >= since]
            if "tailLines" in query:
                lines = lines[-int(query["tailLines"]) :]
            stamped = query.get("timestamps", "").lower() == "true"
            texts = [
                f"{at.isoformat(timespec='microseconds')} {text}" if stamped else text for at, text in lines
            ]
            return "".join(f"{text}\n" for text in texts).encode()

    return Handler


def status_of(code: int, message: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}


@contextmanager
def serving(cluster: Cluster) -> Iterator[str]:
    """The server's address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(cluster))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def kube_config(address: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": address}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
