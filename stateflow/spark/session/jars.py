"""Spark's extra jars (Delta): resolved once into the library's own folder, then passed to sessions as local files.

Every resolution takes seconds and needs the network; a list of files does not.
`python -m stateflow.spark.session.jars` resolves the jars that are missing, and those of a connector behind it: `... jars kafka`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

from stateflow.config.options import cache_folder
from stateflow.errors import StateflowError, UnavailableError, UsageError
from stateflow.private_folders import make_private
from stateflow.spark.session.java import (
    AUTHORITIES,
    find_java,
    install_java,
    is_installed_here,
    require_java,
    trust_the_machines_authorities,
)
from stateflow.spark.session.versions import minor, tested

LOCK = Path(__file__).parent / "jars.lock"
_KAFKA = "org.apache.spark:spark-sql-kafka-0-10_2.13"
"""It has Spark's own version."""
_AWS_SDK = {"3.4.1": "2.24.5", "3.4.2": "2.29.52", "3.5.0": "2.35.4"}
"""The version of Amazon's SDK that each Hadoop was made with; of 3.4.1 the one before, since parts of its own are not on Maven."""
_OF_AWS_SDK = ("s3", "s3-transfer-manager", "sts")
_WHOLE_SDK = ("software.amazon.awssdk:bundle", "org.wildfly.openssl:wildfly-openssl")
"""What hadoop-aws asks for and does not need: all of Amazon's services, 686 MB in one jar, and a faster TLS that few have."""
_BUNDLES = ("kafka", "s3")
_UNTRUSTED = "PKIX"
"""Of a certificate whose authority Java does not know, its message says this and nothing that people look for."""
_SHORT_LIVED = "-XX:TieredStopAtLevel=1"
"""For the resolver's JVM, which otherwise spends half of its CPU on compiling code that it then hardly uses."""


def packages() -> tuple[str, ...]:
    """The Maven coordinates that fit the installed Spark and Delta."""
    return _coordinates(version("pyspark"), version("delta-spark"), _locked_coordinates())


def _coordinates(spark: str, delta: str, locked: tuple[str, ...]) -> tuple[str, ...]:
    """That of the lock for this Spark, where only the last number of Delta's version is another one.

    A package of Delta may be on the index before its jar is on Maven. The package only names the classes of the jar, and
    they stay what they are within `4.4`.
    """

    group = f"io.delta:delta-spark_{minor(spark)}_2.13:"
    near = [each for each in locked if each.startswith(f"{group}{minor(delta)}.")]
    return tuple(near) or (f"{group}{delta}",)


@dataclass(frozen=True, slots=True)
class Bundle:
    """Jars other than the library's own, in a folder of their own called after `name`."""

    name: str
    packages: tuple[str, ...]
    excluded: tuple[str, ...] = ()
    """Group and name of dependencies to leave out."""
    lacks_spark: bool = False
    """True if the program that uses them runs without Spark's own jars."""
    lock: Path | None = None
    """The file with the hashes of the jars."""


def bundle_of(name: str) -> Bundle:
    """The jars that Spark needs beside Delta's, by the name that topics, tables and folders say: `kafka`, `s3`."""
    packages, excluded = (
        (_s3(hadoop_version()), _WHOLE_SDK) if name == "s3" else ((f"{_KAFKA}:{version('pyspark')}",), ())
    )
    return Bundle(f"-of-{name}", packages, excluded, lock=LOCK.with_name(f"{name}.lock"))


def hadoop_version() -> str:
    """That of Spark's own jars."""
    names = (jar.name.removeprefix("hadoop-client-api-") for jar in spark_jars())
    return next((name.removesuffix(".jar") for name in names if re.match(r"\d.*\.jar$", name)), "")


def _s3(hadoop: str) -> tuple[str, ...]:
    """Hadoop's client of S3, which has to be of Hadoop's own version, and the parts of Amazon's SDK that it uses."""
    sdk = _AWS_SDK.get(hadoop) or _AWS_SDK[max(_AWS_SDK)]
    return (
        f"org.apache.hadoop:hadoop-aws:{hadoop}",
        *(f"software.amazon.awssdk:{part}:{sdk}" for part in _OF_AWS_SDK),
    )


def recorded_bundles(cache: Path) -> list[str]:
    """Names of the bundles that are here already."""
    return [name for name in _BUNDLES if recorded_jars(cache, bundle_of(name))]


def jars_with(cache: Path, bundles: Iterable[str]) -> list[Path]:
    """Delta's jars, and those of these bundles."""
    wanted = (None, *map(bundle_of, bundles))
    return [jar for bundle in wanted for jar in local_jars(cache, bundle)]


def local_jars(cache: Path, bundle: Bundle | None = None) -> tuple[Path, ...]:
    """The jars in `cache`. It resolves them first, unless all of them are there.

    It leaves out jars that Spark itself has: Spark would copy them at every start, to every executor, and never use them.
    """
    return recorded_jars(cache, bundle) or resolve_jars(cache, bundle)


def recorded_jars(cache: Path, bundle: Bundle | None = None) -> tuple[Path, ...]:
    """The jars that an earlier resolution recorded; empty when there is none for these packages, or a file is missing."""
    bundle = bundle or _own()
    try:
        record = json.loads((cache / f"jars{bundle.name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()
    if record.get("packages") != list(bundle.packages):
        return ()
    jars = tuple(cache / name for name in record["jars"])
    if not all(jar.is_file() for jar in jars):
        return ()
    if bundle.lacks_spark:
        return jars
    artifacts = {_artifact(jar.name) for jar in spark_jars()}
    return tuple(jar for jar in jars if _artifact(jar.name.partition("_")[2]) not in artifacts)


def spark_home() -> Path:
    import pyspark

    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)


def spark_jars() -> list[Path]:
    return list((spark_home() / "jars").glob("*.jar"))


def _artifact(jar: str) -> str:
    """A jar's name without its version. (The resolver also puts the group and an underscore before the name.)"""
    return re.sub(r"-\d+(\.\w+)*([.-]\w+)*\.jar$", "", jar)


def resolve_jars(cache: Path, bundle: Bundle | None = None) -> tuple[Path, ...]:
    """Resolves the jars with Spark's own resolver, which honours `spark.jars.repositories` and `spark.jars.ivySettings`."""
    bundle = bundle or _own()
    make_private(cache)
    java = require_java(cache)
    # Also of a Java that was installed before somebody named the authority of a proxy.
    trust_the_machines_authorities(java)
    part = cache / f"ivy{bundle.name}.{os.getpid()}.part"
    target = cache / f"ivy{bundle.name}"
    try:
        failure = _resolve(part, java, {}, bundle)
        if failure:
            # An incomplete ~/.m2 makes every resolution fail. So it tries once more, with a home that has none.
            shutil.rmtree(part, ignore_errors=True)
            failure = _resolve(part, java, {"user.home": str(part)}, bundle)
        names = sorted(jar.name for jar in (part / "jars").glob("*.jar"))
        if failure or not names:
            reason = failure or "no jar arrived"
            advice = "check the network or set spark.jars.repositories in spark-defaults.conf, then try again"
            if _UNTRUSTED in reason:
                advice = _how_to_trust(java)
            elif bundle == _own() and not locked_jars():
                advice = f"install the versions that the library is tested with, `pip install {tested('pyspark', 'delta-spark')}`"
            raise UnavailableError(
                f"Spark could not resolve {', '.join(bundle.packages)} ({reason}) and kept nothing: {advice}"
            )
        if bundle.lock is not None:
            _refuse_others(part / "jars", names, bundle)
        # It holds the resolver's own copies of the same jars.
        shutil.rmtree(part / "cache", ignore_errors=True)
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    record = {"packages": bundle.packages, "jars": [f"{target.name}/jars/{jar}" for jar in names]}
    record_file = cache / f"jars{bundle.name}.json.{os.getpid()}.part"
    record_file.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    record_file.rename(cache / f"jars{bundle.name}.json")
    return recorded_jars(cache, bundle)


def _how_to_trust(java: Path) -> str:
    """A proxy with an authority of its own re-signs what the repository says."""
    unknown = "Java does not trust the certificate that came, as behind a proxy with an authority of its own"
    if is_installed_here(java):
        return f"{unknown}: name the file of that authority in {AUTHORITIES[0]}, then try again"
    return (
        f"{unknown}: have `{java}/bin/keytool -importcert -cacerts -file AUTHORITY` add it to this Java, or try again without JAVA_HOME and without "
        f"Java on the PATH, so that one is installed that takes the file which {AUTHORITIES[0]} names"
    )


def locked_jars(bundle: Bundle | None = None) -> dict[str, str]:
    """Name and SHA-256 of every jar that the locked packages bring, for every Spark; empty for other packages than the lock's."""
    bundle = bundle or _own()
    if bundle.lock is None or not set(bundle.packages) <= set(_locked_coordinates(bundle.lock)):
        return {}
    _, _, *lines = bundle.lock.read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def _locked_coordinates(lock: Path = LOCK) -> tuple[str, ...]:
    """A package for each Spark."""
    return tuple(lock.read_text(encoding="utf-8").splitlines()[1].removeprefix("# ").split())


def _refuse_others(folder: Path, names: Sequence[str], bundle: Bundle) -> None:
    """UnavailableError for a jar that is not the one which the project was tested with. They run inside every driver."""
    assert bundle.lock is not None
    locked = locked_jars(bundle)
    for name in names if locked else ():
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != locked.get(name):
            raise UnavailableError(
                f"{name}, which {' '.join(bundle.packages)} brought, is not the file that {bundle.lock.name} names, and nothing was kept: "
                "ask who runs the repository that it came from (spark.jars.repositories), or take another repository"
            )


def _own() -> Bundle:
    return Bundle("", packages(), lock=LOCK)


def _resolve(ivy: Path, java: Path, properties: Mapping[str, str], bundle: Bundle) -> str:
    """Runs the resolver; returns what went wrong, in its own words, or nothing."""
    import pyspark

    with tempfile.TemporaryDirectory() as scratch:
        nothing = Path(scratch) / "nothing.py"
        nothing.touch()
        command = [
            str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
            *("--master", "local[1]", "--packages", ",".join(bundle.packages)),
            *(("--exclude-packages", ",".join(bundle.excluded)) if bundle.excluded else ()),
            *("--conf", f"spark.jars.ivy={ivy}", "--conf", "spark.ui.enabled=false"),
            str(nothing),
        ]
        options = {**_proxy(os.environ), **properties}
        flags = " ".join(f"-D{name}={value}" for name, value in options.items())
        environment = {
            **{name: value for name, value in os.environ.items() if name != "SPARK_HOME"},
            "JAVA_HOME": str(java),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_SUBMIT_OPTS": f"{_SHORT_LIVED} {os.environ.get('SPARK_SUBMIT_OPTS', '')} {flags}".strip(),
        }
        process = subprocess.run(
            command, cwd=scratch, env=environment, capture_output=True, text=True, check=False
        )
    if process.returncode == 0:
        return ""
    lines = [line.strip() for line in process.stderr.splitlines()]
    problems = [line for line in lines if "not found" in line or "failed" in line or "Exception" in line]
    # The resolver goes on behind it, and ends with a jar that is not found anywhere.
    untrusted = [line for line in lines if _UNTRUSTED in line]
    return (untrusted or problems or lines or [f"exit code {process.returncode}"])[-1].lstrip(": ")


def _proxy(env: Mapping[str, str]) -> dict[str, str]:
    """The proxy variables as Java properties: Java does not read the variables, as other tools do."""
    options: dict[str, str] = {}
    for scheme in ("http", "https"):
        proxy = urlsplit(env.get(f"{scheme}_proxy") or env.get(f"{scheme}_proxy".upper()) or "")
        if proxy.hostname:
            options[f"{scheme}.proxyHost"] = proxy.hostname
            options[f"{scheme}.proxyPort"] = str(proxy.port or (443 if proxy.scheme == "https" else 80))
    excluded = env.get("no_proxy") or env.get("NO_PROXY") or ""
    hosts = [
        f"*{host}" if host.startswith(".") else host for host in excluded.replace(" ", "").split(",") if host
    ]
    if options and hosts:
        options["http.nonProxyHosts"] = "|".join(hosts)
    return options


def _main(connectors: list[str]) -> None:
    """Makes sure that Java and the jars are there, also those of these connectors."""
    for name in connectors:
        if name not in _BUNDLES:
            raise UsageError(f"no connector is called {name!r}: say {', '.join(_BUNDLES)}")
    folder = cache_folder()
    if not find_java(folder):
        install_java(folder)
    print(f"{len(local_jars(folder))} jars in {folder / 'ivy' / 'jars'}")
    for name in connectors:
        print(f"{len(local_jars(folder, bundle_of(name)))} jars in {folder / f'ivy-of-{name}' / 'jars'}")


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(f"python -m stateflow.spark.session.jars [{'|'.join(_BUNDLES)}]: {_main.__doc__}")
        sys.exit()
    try:
        _main(sys.argv[1:])
    except StateflowError as error:
        sys.exit(f"stateflow: {error}")
