"""From Python 3.11 and make to a checkout that runs: environment, locked packages, Java, Spark's jars.

Every step is skipped when it is done; a stamp holds the hash of what the environment was made from. Needs
nothing but the standard library, and honours the machine's pip configuration.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
PIP: tuple[str | Path, ...] = (PYTHON, "-m", "pip", "--disable-pip-version-check")
STAMP = VENV / "stateflow.stamp"
LOCKS = ("requirements.txt", "requirements-dev.txt")
UV = "requirements-uv.txt"
BUILD = "requirements-build.txt"
"""What builds PySpark, which comes as source, and the project. Isolated builds would fetch the newest of these, without a hash."""
PROJECTS = (ROOT, ROOT / "provider")
"""The library and Airflow's side of it: two distributions."""
# pip's setting -> uv's variable; uv does not read pip's configuration.
_PIP_TO_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
    "trusted-host": "UV_INSECURE_HOST",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
    "no-index": "UV_NO_INDEX",
}


def main() -> None:
    if sys.version_info[:2] != (3, 11):
        stop(f"the lock needs Python 3.11 and this is {sys.version.split()[0]}: run make PYTHON=python3.11")
    changed = False
    if not (STAMP.is_file() and STAMP.read_text() == fingerprint() and PYTHON.exists()):
        STAMP.unlink(missing_ok=True)
        create_environment()
        install_packages()
        install_project()
        STAMP.write_text(fingerprint())
        changed = True
    if not spark_is_ready():
        with step("Java and Spark's jars"):
            run([PYTHON, "-m", "stateflow.spark.session.jars"], "Java or Spark's jars could not be fetched")
    if changed or not any((cache() / "class-data").glob("*.jsa")):
        with step("an archive of Spark's classes, so that drivers start sooner"):
            runs([PYTHON, "-m", "stateflow.spark.session.class_data"], print_output=True)


def fingerprint() -> str:
    """Of everything that the environment is made from, the interpreter included."""
    digest = hashlib.sha256(f"{sys.version} {ROOT} as paths".encode())
    for name in (UV, BUILD, *LOCKS, "pyproject.toml", "provider/pyproject.toml"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def create_environment() -> None:
    if PYTHON.exists() and runs([PYTHON, "-m", "pip", "--version"]):
        return
    shutil.rmtree(VENV, ignore_errors=True)
    with step("virtual environment"):
        # Debian's Python comes without ensurepip; any pip can fill the environment, too.
        if not runs([sys.executable, "-m", "venv", VENV]):
            shutil.rmtree(VENV, ignore_errors=True)
            advice = "install Python's venv and pip modules (Debian: python3.11-venv)"
            run([sys.executable, "-m", "venv", "--without-pip", VENV], advice)
            into = (sys.executable, "-m", "pip", "--python", PYTHON)
            run([*into, "install", "-q", "--require-hashes", "-r", BUILD], advice)


def install_packages() -> None:
    with step(f"locked packages ({', '.join(LOCKS)})"):
        uv: list[str | Path] = [PYTHON, "-m", "uv", "pip"]
        # Whatever index or folder a file comes from, it has a hash that the lock names.
        run(
            [*PIP, "install", "--require-hashes", "-r", BUILD],
            "the locked build tools could not be installed: check pip's configuration",
        )
        ready = runs([*PIP, "install", "--require-hashes", "-r", UV])
        hashed = ("--require-hashes", "--no-build-isolation")
        sync = [*uv, "sync", "--quiet", *hashed, "--python", PYTHON, *LOCKS, BUILD]
        if ready and runs(sync, env=uv_environment(), print_output=True):
            return
        print("   uv did not manage; trying pip", flush=True)
        locks = [argument for lock in LOCKS for argument in ("-r", lock)]
        run(
            [*PIP, "install", *hashed, *locks],
            "the locked packages could not be installed: check pip's configuration",
        )


def install_project() -> None:
    with step("stateflow itself, editable"):
        # As paths, not as an import hook: Spark looks for data sources in folders, and does not see through a hook.
        for project in PROJECTS:
            run(
                [
                    *PIP,
                    "install",
                    "--no-deps",
                    "--no-build-isolation",
                    "--config-settings",
                    "editable_mode=compat",
                    "--editable",
                    project,
                ],
                "the project itself could not be installed",
            )
        packages = next(VENV.glob("lib/python*/site-packages"))
        (packages / "stateflow_plugins.pth").write_text(f"{ROOT / 'plugins'}\n", encoding="utf-8")
        # The build's left-over would make the project be found twice from here: Airflow says so of its plugin.
        for project in PROJECTS:
            for leftover in project.glob("*.egg-info"):
                shutil.rmtree(leftover)


def uv_environment() -> dict[str, str]:
    """The machine's pip configuration in uv's words; uv's own variables win."""
    environment = dict(os.environ)
    listed = subprocess.run(
        [*PIP, "config", "list"], capture_output=True, text=True, check=False, cwd=ROOT
    ).stdout
    settings = [line.partition("=") for line in listed.splitlines()]
    # Like pip: the environment before the section of a command before the global section.
    settings.sort(key=lambda each: (not each[0].startswith(":env:"), each[0].startswith("global.")))
    for key, _, value in settings:
        if variable := _PIP_TO_UV.get(key.rpartition(".")[2]):
            words = value.strip("'\"").replace("\\n", " ").split()
            environment.setdefault(variable, ("," if variable == "UV_FIND_LINKS" else " ").join(words))
    # pip looks for the pinned version in all indexes; uv by default only in the first that knows the name. That an index may
    # have another file of that name does no harm: it does not have the locked hash.
    environment.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    return environment


def cache() -> Path:
    return Path(os.environ.get("STATEFLOW_CACHE_DIR") or ROOT / ".cache").expanduser().absolute()


def spark_is_ready() -> bool:
    """What the library checks before a session, without the cost of importing it."""
    try:
        jars = json.loads((cache() / "jars.json").read_text())["jars"]
    except (OSError, ValueError, KeyError):
        return False
    java = (cache() / "java" / "bin" / "java").exists() or os.environ.get("JAVA_HOME") or shutil.which("java")
    return bool(java) and all((cache() / jar).is_file() for jar in jars)


class step:
    """Says what is being done, and how long it took."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        self._started = time.monotonic()
        print(f"-- {self._what} ...", flush=True)

    def __exit__(self, failed: object, *_: object) -> None:
        if failed is None:
            print(f"   done in {time.monotonic() - self._started:.1f} s", flush=True)


def runs(command: list[str | Path], *, env: dict[str, str] | None = None, print_output: bool = False) -> bool:
    process = subprocess.run(
        command, cwd=ROOT, env=env, check=False, capture_output=not print_output, stdin=subprocess.DEVNULL
    )
    return process.returncode == 0


def run(command: list[str | Path], failure: str) -> None:
    process = subprocess.run(
        command,
        cwd=ROOT,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if process.returncode:
        print(process.stdout.decode(errors="replace")[-4000:], file=sys.stderr)
        stop(failure)


def stop(reason: str) -> NoReturn:
    sys.exit(f"bootstrap: {reason}")


if __name__ == "__main__":
    main()
