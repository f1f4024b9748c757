"""The jars of Iceberg's own REST catalog for tests, in the cache folder: the fixture that its projects test their clients with.

Spark's resolver knows no classifiers, so Ivy, which is among Spark's jars, fetches them by itself.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from stateflow.config.options import cache_folder
from stateflow.errors import StateflowError, UnavailableError
from stateflow.spark.session.jars import spark_jars
from stateflow.spark.session.java import require_java

LOCK = Path(__file__).parent / "iceberg_rest.lock"
_MODULE = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
<info organisation="stateflow" module="iceberg-rest"/><dependencies>{}</dependencies></ivy-module>"""
_DEPENDENCY = '<dependency org="{}" name="{}" rev="{}" transitive="false" conf="default->*">{}</dependency>'
_PLAIN = '<artifact name="{}" type="jar"/>'
_CLASSIFIED = '<artifact name="{}" type="jar" m:classifier="{}"/>'


def locked(lock: Path = LOCK) -> dict[str, str]:
    """The SHA-256 of each jar, by its coordinates: group, name, version, and a classifier where it has one."""
    lines = [line.split() for line in lock.read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    return {coordinates: digest for digest, coordinates in lines}


def folder_of(cache: Path) -> Path:
    return cache / "iceberg-rest"


def fetched(cache: Path, lock: Path = LOCK) -> tuple[Path, ...]:
    """The jars; one with another hash is refused, and none is kept."""
    wanted, target = locked(lock), folder_of(cache)
    if len(list(target.glob("*.jar"))) != len(wanted):
        shutil.rmtree(target, ignore_errors=True)
        _resolve(cache, target, wanted)
    for coordinates, digest in wanted.items():
        jar = target / file_name(coordinates)
        if not jar.is_file() or hashlib.sha256(jar.read_bytes()).hexdigest() != digest:
            shutil.rmtree(target, ignore_errors=True)
            raise UnavailableError(
                f"{jar.name} is not the file that {lock.name} names, and was not kept: ask who runs the repository that it came from, or take another "
                "repository"
            )
    return tuple(target / file_name(coordinates) for coordinates in wanted)


def file_name(coordinates: str) -> str:
    _, name, version, *classifier = coordinates.split(":")
    return "-".join((name, version, *classifier)) + ".jar"


def _resolve(cache: Path, target: Path, wanted: dict[str, str]) -> None:
    target.mkdir(parents=True)
    module = target / "ivy.xml"
    module.write_text(_MODULE.format("".join(_dependencies(wanted))))
    ivy = next(jar for jar in spark_jars() if jar.name.startswith("ivy-"))
    command = [
        str(require_java(cache) / "bin" / "java"), "-jar", str(ivy), "-ivy", str(module), "-cache", str(target / "ivy"),
        "-retrieve", f"{target}/[artifact]-[revision](-[classifier]).[ext]", "-types", "jar", "bundle", "-warn",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    shutil.rmtree(target / "ivy", ignore_errors=True)
    if done.returncode != 0:
        shutil.rmtree(target)
        raise UnavailableError(
            f"the jars of Iceberg's REST catalog cannot be fetched: {(done.stdout + done.stderr).strip()[-500:]}; check the network, and try again"
        )


def _dependencies(wanted: Iterable[str]) -> Iterator[str]:
    """One per module: Ivy takes the last of several."""
    artifacts: dict[tuple[str, ...], list[str]] = {}
    for coordinates in wanted:
        group, name, version, *classifier = coordinates.split(":")
        artifact = _CLASSIFIED.format(name, *classifier) if classifier else _PLAIN.format(name)
        artifacts.setdefault((group, name, version), []).append(artifact)
    return (_DEPENDENCY.format(*module, "".join(each)) for module, each in artifacts.items())


def main() -> None:
    try:
        fetched(cache_folder())
    except StateflowError as error:
        sys.exit(f"iceberg-rest: {error}")


if __name__ == "__main__":
    main()
