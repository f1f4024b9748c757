"""A Kubernetes of one test: its API server, which Spark's own scheduler talks to, and a node whose pods are processes of this machine.

There is no container: the node does what the entry point of Spark's image does for `executor`, with the environment, the volumes and the
addresses that the pod's description asks for. What is sent is held against Kubernetes' published schema. Whoever has not the token is refused.
"""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from stateflow.config.options import cache_folder
from stateflow.spark.session.jars import spark_home
from stateflow.spark.session.java import require_java
from tests.airflow.kubernetes_api import checked, merged, now, status_of
from tests.spark.standalone import end_process

_PATH = re.compile(
    r"/api/v1/namespaces/jobs/(?P<kind>pods|configmaps|services|persistentvolumeclaims)(?:/(?P<name>[^/]+))?"
)
_KINDS = {
    "pods": "Pod", "configmaps": "ConfigMap", "services": "Service", "persistentvolumeclaims": "PersistentVolumeClaim",
}  # fmt: skip
_TERM = re.compile(r"(?P<name>[^=!, ]+)\s*(?:(?P<sign>!=|==?)(?P<value>[^,]*)|in \((?P<values>[^)]*)\))")
GRACE = 10.0
"""Seconds that a pod has to end when it is deleted."""


class Kubernetes:
    """What the API server has. Its folder has a log of all requests, and a folder of each pod."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""
        self.token = secrets.token_hex(16)
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.problems: list[str] = []
        """What was sent and does not fit the schema, or was asked and is unknown here."""
        self.verbs: dict[str, set[str]] = {}
        """What an account needs, by kind: a role of Kubernetes says it so."""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        """Of pods, also of those that are gone."""
        self._events: list[tuple[str, str, dict[str, Any]]] = []
        """Type, kind and object, the oldest first: its version is its place in this list."""
        self._changed = threading.Condition()
        self._closing = False
        self._pods = 0
        """How many it has made. Each has an address of its own."""

    def add_running(self, name: str) -> str:
        """A pod of somebody else's, which runs; returns its uid."""
        state: dict[str, Any] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        meta = {"name": name, "namespace": "jobs", "uid": str(uuid.uuid4()), "creationTimestamp": now()}
        with self._changed:
            self._put(
                "ADDED",
                "pods",
                {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "status": state, "spec": {}},
            )
        return meta["uid"]

    def executors(self) -> list[dict[str, Any]]:
        """The pods of Spark's executors."""
        return self.chosen("pods", {"labelSelector": "spark-role=executor"})

    def of(self, kind: str) -> list[dict[str, Any]]:
        with self._changed:
            return [each for (of, _), each in self.objects.items() if of == kind]

    def seen(self) -> dict[str, list[str]]:
        """The phases that watchers were told of each pod, in their order."""
        told: dict[str, list[str]] = {}
        with self._changed:
            for event, kind, each in self._events:
                if kind == "pods":
                    said = told.setdefault(each["metadata"]["name"], [])
                    phase = "deleted" if event == "DELETED" else each["status"]["phase"]
                    said += [phase] * (said[-1:] != [phase])
        return told

    def create(self, kind: str, body: dict[str, Any]) -> tuple[int, Any]:
        name = body["metadata"]["name"]
        self.problems += checked(kind, body)
        with self._changed:
            if (kind, name) in self.objects:
                return 409, status_of(409, "AlreadyExists")
            own = {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "namespace": "jobs"}
            made = {"apiVersion": "v1", "kind": _KINDS[kind], **body, "metadata": {**body["metadata"], **own}}
            if kind == "pods":
                self._pods += 1
                made["status"] = {"phase": "Pending", "podIP": f"127.0.0.{self._pods + 1}"}
            made = self._put("ADDED", kind, made)
        if kind == "pods":
            threading.Thread(target=self._carry_out, args=[made], daemon=True).start()
        return 201, made

    def change(self, kind: str, name: str, changes: dict[str, Any]) -> tuple[int, Any]:
        with self._changed:
            if (kind, name) not in self.objects:
                return 404, status_of(404, f"{kind} {name!r} not found")
            return 200, self._put("MODIFIED", kind, merged(self.objects[kind, name], changes))

    def delete(self, kind: str, name: str) -> tuple[int, Any]:
        """A pod that runs is told to end, and is gone when it has ended."""
        with self._changed:
            found = self.objects.get((kind, name))
            if found is None:
                return 404, status_of(404, f"{kind} {name!r} not found")
            process = self.processes.get(name)
            if kind == "pods" and process is not None and process.poll() is None:
                found = self._put("MODIFIED", kind, merged(found, {"metadata": {"deletionTimestamp": now()}}))
                threading.Thread(target=end_process, args=[process, GRACE], daemon=True).start()
            else:
                self._remove(kind, name)
            return 200, found

    def chosen(self, kind: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
        return [each for each in self.of(kind) if _fits(each, query)]

    def note(self, request: str) -> None:
        with self._changed, (self.folder / "requests.log").open("a", encoding="utf-8") as log:
            log.write(f"{request}\n")

    def version(self) -> int:
        with self._changed:
            return len(self._events)

    def events(self, kind: str, query: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """What changes after the version that a watcher knows, until this ends."""
        at = int(query.get("resourceVersion") or 0)
        while not self._closing:
            with self._changed:
                while len(self._events) == at and not self._closing:
                    self._changed.wait()
                news, at = self._events[at:], len(self._events)
            yield from ((event, each) for event, of, each in news if of == kind and _fits(each, query))

    def close(self) -> None:
        """Ends whatever it has started, with the Python workers of executors."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            left = list(self.processes.values())
        for process in left:
            end_process(process, GRACE)

    def _put(self, event: str, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        version = {"metadata": {"resourceVersion": str(len(self._events) + 1)}}
        self.objects[kind, body["metadata"]["name"]] = made = merged(body, version)
        self._events.append((event, kind, made))
        self._changed.notify_all()
        return made

    def _remove(self, kind: str, name: str) -> None:
        if found := self.objects.pop((kind, name), None):
            version = {"metadata": {"resourceVersion": str(len(self._events) + 1)}}
            self._events.append(("DELETED", kind, merged(found, version)))
            self._changed.notify_all()

    def _carry_out(self, pod: dict[str, Any]) -> None:
        """A node's work: from the pod's description to the end of its process."""
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]
        folder = self.folder / name
        folder.mkdir()
        mounts = self._mount(pod, container, folder)
        environ = _environment(pod, container, mounts)
        if container.get("args") != ["executor"] or not container.get("image"):
            self.problems.append(f"{name} has {container.get('args')} and no image of Spark's")
            return
        with self._changed:
            if self._closing or ("pods", name) not in self.objects:
                return
            with (folder / "log").open("wb") as log:
                process = subprocess.Popen(
                    _executor(environ), env=environ, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,
                )  # fmt: skip
            self.processes[name] = process
            state = {"running": {"startedAt": now()}}
            self.change("pods", name, {"status": _status("Running", container, state)})
        code = process.wait()
        end_process(process, GRACE)  # its Python workers
        with self._changed:
            going = "deletionTimestamp" in self.objects.get(("pods", name), pod)["metadata"]
            # As a container's runtime says it of a process that a signal has ended.
            exit_code = 128 - code if code < 0 else code
            state = {"terminated": {"exitCode": exit_code, "reason": "Error" if code else "Completed"}}
            state["terminated"]["finishedAt"] = now()
            phase = "Failed" if code else "Succeeded"
            self.change("pods", name, {"status": _status(phase, container, state)})
            if going:
                self._remove("pods", name)

    def _mount(self, pod: dict[str, Any], container: dict[str, Any], folder: Path) -> dict[str, str]:
        """The folders of this machine that stand for those in the container. Without its config map a pod waits, as on a node."""
        volumes = {each["name"]: each for each in pod["spec"].get("volumes", ())}
        mounts = {}
        for mount in container.get("volumeMounts", ()):
            volume = volumes[mount["name"]]
            here = folder / "volumes" / mount["name"]
            here.mkdir(parents=True)
            mounts[mount["mountPath"]] = str(here)
            if "configMap" in volume:
                wanted = ("configmaps", volume["configMap"]["name"])
                with self._changed:
                    self._changed.wait_for(lambda key=wanted: key in self.objects or self._closing, 60)  # type: ignore[misc]
                    data = self.objects.get(wanted, {}).get("data", {})
                for item in volume["configMap"].get("items") or [{"key": key, "path": key} for key in data]:
                    (here / item["path"]).write_text(data[item["key"]], encoding="utf-8")
            elif "emptyDir" not in volume:
                self.problems.append(f"a volume is of a kind that is unknown here: {sorted(volume)}")
        return mounts


def _status(phase: str, container: Mapping[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    said = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
    return {"phase": phase, "containerStatuses": [{**said, "ready": "running" in state, "state": state}]}


def _environment(
    pod: dict[str, Any], container: Mapping[str, Any], mounts: Mapping[str, str]
) -> dict[str, str]:
    """The image's, then the description's."""
    environ = {"PATH": "/usr/bin:/bin", "SPARK_HOME": str(spark_home()), "HOME": "/tmp"}
    environ["JAVA_HOME"] = str(require_java(cache_folder()))
    fields = {"status.podIP": pod["status"]["podIP"], "metadata.name": pod["metadata"]["name"]}
    for each in container.get("env", ()):
        source = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        value = fields[source] if source else each.get("value") or ""
        for there, here in mounts.items():
            value = value.replace(there, here)
        environ[each["name"]] = value
    return environ


def _executor(environ: Mapping[str, str]) -> list[str]:
    """The command of the entry point of Spark's image."""
    options = {name: value for name, value in environ.items() if name.startswith("SPARK_JAVA_OPT_")}
    paths = [environ["SPARK_CONF_DIR"], environ.get("SPARK_CLASSPATH", ""), f"{environ['SPARK_HOME']}/jars/*"]
    return [
        f"{environ['JAVA_HOME']}/bin/java",
        *(options[name] for name in sorted(options, key=lambda name: int(name.rpartition("_")[2]))),
        *(f"-Xms{environ['SPARK_EXECUTOR_MEMORY']}", f"-Xmx{environ['SPARK_EXECUTOR_MEMORY']}"),
        *("-cp", ":".join(filter(None, paths))),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", environ["SPARK_DRIVER_URL"]),
        *("--executor-id", environ["SPARK_EXECUTOR_ID"]),
        *("--cores", environ["SPARK_EXECUTOR_CORES"]),
        *("--app-id", environ["SPARK_APPLICATION_ID"]),
        *("--hostname", environ["SPARK_EXECUTOR_POD_IP"]),
        *("--resourceProfileId", environ["SPARK_RESOURCE_PROFILE_ID"]),
        *("--podName", environ["SPARK_EXECUTOR_POD_NAME"]),
    ]


def _fits(body: dict[str, Any], query: Mapping[str, str]) -> bool:
    labels = body["metadata"].get("labels") or {}
    fields = {
        "status.phase": body.get("status", {}).get("phase"),
        "metadata.name": body["metadata"]["name"],
    }
    return all(
        _holds(term, values)
        for selector, values in (("labelSelector", labels), ("fieldSelector", fields))
        for term in _TERM.finditer(query.get(selector, ""))
    )


def _holds(term: re.Match[str], values: Mapping[str, Any]) -> bool:
    value = values.get(term["name"])
    if term["values"] is not None:
        return value in [each.strip() for each in term["values"].split(",")]
    return (value == term["value"]) is (term["sign"] != "!=")


def _verb(method: str, name: str | None, query: Mapping[str, str]) -> str:
    """What Kubernetes asks a role for."""
    if method == "GET":
        return "watch" if query.get("watch") == "true" else "get" if name else "list"
    if method == "DELETE":
        return "delete" if name else "deletecollection"
    return {"POST": "create", "PUT": "update", "PATCH": "patch"}[method]


def _handler(kubernetes: Kubernetes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: Any) -> None: ...

        def handle_one(self) -> None:
            url = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(url.query).items()}
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, answer = self.done(url.path, query, body)
            # No header and no body, where secrets are.
            kubernetes.note(f"{self.command} {self.path} {status}")
            if answer is None:
                self.watch(_PATH.fullmatch(url.path)["kind"], query)  # type: ignore[index]
                return
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = handle_one

        def done(self, path: str, query: Mapping[str, str], body: Any) -> tuple[int, Any]:
            """No answer stands for a watch, which has none that ends."""
            if self.headers.get("Authorization") != f"Bearer {kubernetes.token}":
                return 401, status_of(401, "Unauthorized")
            if path == "/version":
                return 200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
            match = _PATH.fullmatch(path)
            if match is None:
                kubernetes.problems.append(f"{self.command} {path} is unknown")
                return 404, status_of(404, f"no {path}")
            kind, name = match["kind"], match["name"]
            kubernetes.verbs.setdefault(kind, set()).add(_verb(self.command, name, query))
            if self.command == "GET" and query.get("watch") == "true":
                # As kubectl's proxy does: whoever asks for a web socket is answered without, and asks again for a stream.
                return 200, {} if self.headers.get("Upgrade") else None
            if self.command == "GET" and name is None:
                items = kubernetes.chosen(kind, query)
                listed = {"resourceVersion": str(kubernetes.version())}
                return 200, {
                    "kind": f"{_KINDS[kind]}List",
                    "apiVersion": "v1",
                    "metadata": listed,
                    "items": items,
                }
            if self.command == "GET":
                found = kubernetes.objects.get((kind, name or ""))
                return (200, found) if found else (404, status_of(404, f"{kind} {name!r} not found"))
            if self.command == "POST":
                return kubernetes.create(kind, body)
            if self.command == "DELETE" and name:
                return kubernetes.delete(kind, name)
            if self.command == "DELETE":
                for each in kubernetes.chosen(kind, query):
                    kubernetes.delete(kind, each["metadata"]["name"])
                return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
            if isinstance(body, dict) and name:
                return kubernetes.change(kind, name, body)
            kubernetes.problems.append(
                f"{self.command} {path} with {self.headers.get('Content-Type')} is unknown"
            )
            return 415, status_of(415, "UnsupportedMediaType")

        def watch(self, kind: str, query: Mapping[str, str]) -> None:
            self.close_connection = True
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Connection", "close")
            self.end_headers()
            with suppress(OSError):
                for event, body in kubernetes.events(kind, query):
                    self.wfile.write(json.dumps({"type": event, "object": body}).encode() + b"\n")
                    self.wfile.flush()

    return Handler


@contextmanager
def kubernetes_server(folder: Path) -> Iterator[Kubernetes]:
    """A Kubernetes with the namespace `jobs`."""
    folder.mkdir()
    kubernetes = Kubernetes(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(kubernetes))
    server.daemon_threads = True
    kubernetes.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield kubernetes
    finally:
        kubernetes.close()
        server.shutdown()
        server.server_close()
        thread.join(10)
