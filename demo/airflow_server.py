"""A real Airflow on loopback: four processes, two users, SQLite by default, in a folder of its own.

What `airflow standalone` does, with every process at hand: each can be ended and started again alone, and what they
leave behind (drivers that outlive their tasks among it) is found by the folder's name in its environment and ended, too.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from demo.airflow_client import AirflowClient, UnreachableError
from stateflow.config.options import cache_folder
from stateflow.errors import StateflowError, UnavailableError, UsageError
from stateflow.spark.session.java import require_java

PROJECT = Path(__file__).resolve().parents[1]
COMMANDS = {
    # Logs lie in the folder that the API server reads: nobody has to serve them, on all interfaces at that.
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "api-server": ("api-server",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
_REPORTED = {"scheduler": "scheduler", "dag-processor": "dag_processor", "triggerer": "triggerer"}
"""The health page's name for each component. The API server itself serves the page."""
_MEMORY = 1_500_000_000
"""What Airflow (1.1 GB) and one Spark driver need at the least."""


class AirflowFailedError(StateflowError):
    """A process of Airflow ended, or did not come up in time. The message ends with the process's last lines."""


@dataclass
class AirflowServer:
    """`with AirflowServer(folder, checkpoint_dir=...) as server: server.client().trigger("stateflow_orders")`"""

    home: Path
    checkpoint_dir: str
    dags: Sequence[Path] = (PROJECT / "dags",)
    plugins: Path | None = PROJECT / "plugins"
    connections: Mapping[str, str] = field(default_factory=dict)
    """Further connections, by id, as JSON or URIs."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that override those set here."""
    database: str = ""
    """A SQLAlchemy URL. By default a SQLite file in the folder."""
    port: int = 0
    """Zero takes any free port."""
    patience: float = 180
    """Seconds for Airflow to come up."""
    users: Mapping[str, str] = field(default_factory=lambda: {"admin": "admin", "viewer": "viewer"})
    """The role of each user, by name."""
    goes_on: bool = False
    """Whether drivers that an earlier server of this folder has left go on; else they are ended at the start."""
    passwords: dict[str, str] = field(init=False)
    _processes: dict[str, subprocess.Popen[bytes]] = field(init=False, default_factory=dict)
    _sessions: set[int] = field(init=False, default_factory=set)
    """The session of every process ever started here: the children of a killed process are still in it."""

    def __post_init__(self) -> None:
        self.home = self.home.absolute()
        self.passwords = {user: secrets.token_urlsafe(9) for user in self.users}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, user: str = "admin") -> AirflowClient:
        return AirflowClient(self.url, user, self.passwords[user])

    def __enter__(self) -> AirflowServer:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()

    def start(self, say: Callable[[str], object] = lambda what: None) -> None:
        """Starts everything and waits until it is healthy. An error says what is not."""
        require_java(cache_folder())
        if (free := psutil.virtual_memory().available) < _MEMORY:
            raise UnavailableError(
                f"{free / 1e9:.1f} GB of memory are free, and Airflow with a Spark driver needs {_MEMORY / 1e9:.1f} GB: "
                "close something and try again"
            )
        self.port = free_port(self.port)
        # A server of this folder that was killed itself could not end what it had started.
        if not self.goes_on:
            _end(self.belongings())
        self._write_settings()
        say("its database")
        self._migrate()
        for component in COMMANDS:
            self._spawn(component)
        say("its four processes")
        self._await_health(COMMANDS, since=0.0)

    def stop(self) -> None:
        """Ends the processes, and then everything that they have started."""
        self.halt()
        # Twice: what is being started while the first list is made is in the second.
        for _ in range(2):
            _end(self.belongings())

    def halt(self) -> None:
        """Ends Airflow's own processes; a driver that is a process of its own goes on."""
        running = [p for p in self._processes.values() if p.poll() is None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + 8
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in running:
            process.kill()
        for process in self._processes.values():
            process.wait()
        self._processes.clear()

    def pid(self, component: str) -> int:
        return self._processes[component].pid

    def restart(self, component: str, *, kill: bool = False) -> None:
        """Ends one component, by SIGTERM or SIGKILL, and waits until its successor works."""
        process = self._processes[component]
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        began = time.time()
        self._spawn(component)
        self._await_health([component], since=began)

    def belongings(self) -> list[psutil.Process]:
        """Every process that descends from this server, even when its parent is dead."""
        processes = []
        for process in psutil.process_iter():
            if process.pid == os.getpid():
                continue
            with suppress(psutil.Error, OSError):
                if self._is_ours(process):
                    processes.append(process)
        return processes

    def log_tail(self, component: str, lines: int = 25) -> str:
        try:
            text = self._log(component).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def _is_ours(self, process: psutil.Process) -> bool:
        """Whether the process descends from this server. A worker overwrites its environment, and a driver has its own session."""
        if os.getsid(process.pid) in self._sessions:
            return True
        with suppress(psutil.Error, OSError):
            if process.cwd().removesuffix(" (deleted)") == str(self.home):
                return True
        return bool(process.environ().get("AIRFLOW_HOME") == str(self.home))

    def _log(self, component: str) -> Path:
        return self.home / "components" / f"{component}.log"

    def _write_settings(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.home / "components").mkdir(exist_ok=True)
        (self.home / "no_plugins").mkdir(exist_ok=True)
        passwords = self.home / "passwords.json"
        passwords.touch(mode=0o600)
        passwords.write_text(json.dumps(self.passwords), encoding="utf-8")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
        self._variables = {**inherited, **self._settings(), **self.environment}

    def _settings(self) -> dict[str, str]:
        bundles = [
            {
                "name": "dags-folder" if number == 0 else f"dags-{number}",
                "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
                "kwargs": {"path": str(folder)},
            }
            for number, folder in enumerate(self.dags)
        ]
        sections = {
            "core": {
                "load_examples": "False",
                "dags_folder": str(self.dags[0]),
                "plugins_folder": str(self.plugins or self.home / "no_plugins"),
                "executor": "LocalExecutor",
                "parallelism": "6",
                "fernet_key": base64.urlsafe_b64encode(os.urandom(32)).decode(),
                "simple_auth_manager_users": ",".join(f"{user}:{role}" for user, role in self.users.items()),
                "simple_auth_manager_passwords_file": str(self.home / "passwords.json"),
                "execution_api_server_url": f"{self.url}/execution/",
            },
            "database": {"sql_alchemy_conn": self.database or f"sqlite:///{self.home / 'airflow.db'}"},
            "api": {
                "host": "127.0.0.1",
                "port": str(self.port),
                "base_url": self.url,
                "workers": "1",
                "secret_key": secrets.token_hex(16),
            },
            "api_auth": {"jwt_secret": secrets.token_hex(32)},
            "dag_processor": {
                "dag_bundle_config_list": json.dumps(bundles),
                "refresh_interval": "5",
                "min_file_process_interval": "30",
                "parsing_processes": "1",
            },
            # A demo and a test are about what happens, not about how soon a dead process is believed to be dead. Lower values
            # make a scheduler that is starved by its machine take its own tasks for orphans.
            "scheduler": {
                "scheduler_heartbeat_sec": "1",
                "scheduler_health_check_threshold": "30",
                "orphaned_tasks_check_interval": "15",
                "task_instance_heartbeat_timeout": "30",
                "task_instance_heartbeat_timeout_detection_interval": "5",
            },
            "workers": {"min_heartbeat_interval": "2"},
            "usage_data_collection": {"enabled": "False"},
        }
        connections = {
            "stateflow_default": json.dumps(
                {"conn_type": "stateflow", "extra": {"checkpoint_dir": self.checkpoint_dir}}
            ),
            "spark_default": json.dumps({"conn_type": "spark", "host": "local[2]"}),
            **self.connections,
        }
        return {
            "AIRFLOW_HOME": str(self.home),
            # Beside this interpreter lie spark-submit and airflow, also when its environment is not activated.
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "JAVA_HOME": str(require_java(cache_folder())),
            "NO_COLOR": "1",
            **{
                f"AIRFLOW__{section.upper()}__{name.upper()}": value
                for section, values in sections.items()
                for name, value in values.items()
            },
            **{f"AIRFLOW_CONN_{name.upper()}": value for name, value in connections.items()},
        }

    def _migrate(self) -> None:
        log = self._log("database")
        with log.open("wb") as output:
            try:
                code = subprocess.run(
                    [sys.executable, "-m", "airflow", "db", "migrate"],
                    env=self._variables, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                    timeout=self.patience, check=False, cwd=self.home,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                code = -1
        if code:
            raise AirflowFailedError(f"Airflow's database could not be made:\n{self.log_tail('database')}")

    def _spawn(self, component: str) -> None:
        with self._log(component).open("ab") as output:
            # A session of its own, so that Ctrl-C reaches this process alone and everything below is found again.
            self._processes[component] = subprocess.Popen(
                [sys.executable, "-m", "airflow", *COMMANDS[component]],
                env=self._variables, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, cwd=self.home,
            )  # fmt: skip
        self._sessions.add(self._processes[component].pid)

    def _await_health(self, components: Iterable[str], *, since: float) -> None:
        """Waits until each component has a heartbeat after `since` (seconds since 1970)."""
        deadline = time.monotonic() + self.patience
        waiting = list(components)
        client = AirflowClient(self.url)
        while waiting:
            for component in waiting:
                if (code := self._processes[component].poll()) is not None:
                    raise AirflowFailedError(
                        f"Airflow's {component} ended with exit code {code}:\n{self.log_tail(component)}"
                    )
            with suppress(UnreachableError):
                alive = client.alive_since(since)
                waiting = [c for c in waiting if c != "api-server" and _REPORTED[c] not in alive]
                if not waiting:
                    return
            if time.monotonic() > deadline:
                raise AirflowFailedError(
                    f"Airflow's {waiting[0]} is not up after {self.patience:g} s:\n{self.log_tail(waiting[0])}"
                )
            time.sleep(0.5)


def free_port(port: int = 0) -> int:
    """`port` on loopback if nobody listens there; for 0 any free port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise UsageError(f"port {port} is in use: end what listens there or choose another one") from None
        return int(probe.getsockname()[1])


def _end(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=10)
