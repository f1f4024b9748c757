"""doctor: is everything there, and where does each setting come from?"""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from stateflow.config.options import load
from stateflow.spark.session.doctor import DoctorFinding, _connectors, examine
from tests.cli.conftest import Command
from tests.jobs.made import made_job


def findings(
    tmp_path: Path, env: dict[str, str] | None = None, mounts: Path = Path(os.devnull), **options: object
) -> dict[str, DoctorFinding]:
    settings = load(code=options, env={}, folder=tmp_path)
    return {f.check: f for f in examine(settings, ids=lambda: "an-id", env=env or {}, mounts=mounts)}


def test_a_machine_that_is_fine_is_told_so(command: Command, root: Path) -> None:
    made_job(root)
    said = command("doctor", "--checkpoint-dir", root, "-o", "json")
    assert said.code == 0
    assert said.json["healthy"] is True
    checks = {c["check"]: c["verdict"] for c in said.json["checks"]}
    assert {"python", "java", "jars", "pyspark", "delta-spark", "rocksdict", "obstore"} <= set(checks)
    assert checks["conditional writes"] == "ok"
    settings = {s["name"]: s for s in said.json["configuration"]}
    assert settings["checkpoint_dir"] == {
        "name": "checkpoint_dir",
        "value": str(root),
        "origin": "the command line (--checkpoint-dir)",
    }
    assert settings["retained_checkpoints"]["origin"] == "default"
    text = command("doctor", "--checkpoint-dir", root).out
    assert "retained_checkpoints" in text
    assert "ok" in text


def test_the_probe_leaves_nothing_behind(command: Command, root: Path) -> None:
    made_job(root)
    before = sorted(root.rglob("*"))
    command("doctor", "--checkpoint-dir", root)
    assert sorted(root.rglob("*")) == before


def test_a_root_that_is_not_there_yet_is_a_warning_and_is_not_made(tmp_path: Path) -> None:
    found = findings(tmp_path, checkpoint_dir=str(tmp_path / "root"))["checkpoint root"]
    assert found.verdict == "warn"
    assert "the first run creates it" in found.next_step
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("kind", "cached", "told"),
    [
        ("nfs4", "rw,relatime,vers=4.2,hard", True),
        ("nfs", "rw,acregmin=0,acregmax=0,acdirmin=0,acdirmax=0,hard", False),
        ("nfs4", "rw,sync,noac", False),
        ("ext4", "rw", False),
    ],
)
def test_a_root_on_nfs_that_caches_folders_is_told(
    tmp_path: Path, kind: str, cached: str, told: bool
) -> None:
    root = tmp_path / "our share" / "root"
    root.mkdir(parents=True)
    mounts = tmp_path / "mounts"
    mount = str(root.parent).replace(" ", "\\040")
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nnas:/x {mount} {kind} {cached} 0 0\nproc /proc proc rw 0 0\n")
    for shared, verdict in ((True, "fail"), (False, "warn")):
        found = findings(tmp_path, mounts=mounts, checkpoint_dir=str(root), shared_filesystem=shared)
        assert ("nfs" in found) == told
        if told:
            assert (found["nfs"].verdict, str(root.parent) in found["nfs"].found) == (verdict, True)
            assert "actimeo=0" in found["nfs"].next_step


@pytest.mark.parametrize("root", ["afile", "afile/below", "dangling", "dangling/below"])
def test_a_root_that_nobody_can_make_a_folder_fails(tmp_path: Path, root: str) -> None:
    (tmp_path / "afile").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    found = findings(tmp_path, checkpoint_dir=str(tmp_path / root))["checkpoint root"]
    assert found.verdict == "fail"
    standing = tmp_path / root.partition("/")[0]
    assert f"{standing} is no folder" in found.found
    assert ("nowhere" in found.found) == (standing.name == "dangling")
    assert "checkpoint_dir" in found.next_step
    assert not (tmp_path / "nowhere").exists()


def test_a_root_above_which_nothing_may_be_written_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    found = findings(tmp_path, checkpoint_dir=str(tmp_path / "new/root"))["checkpoint root"]
    assert (found.verdict, str(tmp_path) in found.next_step) == ("fail", True)


def test_a_store_that_does_not_answer_fails_and_is_exit_code_1(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = "endpoint=http://127.0.0.1:9,region=us-east-1,access_key_id=key,secret_access_key=hidden-word,allow_http=true,max_retries=1"
    monkeypatch.setenv("STATEFLOW_STORAGE_OPTIONS", options)
    said = command("doctor", "--checkpoint-dir", "s3://bucket/root", "-o", "json")
    assert said.code == 1
    checks = {c["check"]: c for c in said.json["checks"]}
    assert checks["checkpoint root"]["verdict"] == "fail"
    assert "secret_access_key" in checks["credentials"]["found"]
    assert "hidden-word" not in said.out + said.err


def test_packages_of_connectors_are_told_and_none_of_them_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "stateflow.spark.session.doctor.installed",
        lambda names: {"psycopg": "3.2"} if "psycopg" in names else {},
    )
    found = {finding.check: finding for finding in _connectors()}
    assert (found["psycopg"].verdict, found["psycopg"].found) == ("ok", "3.2")
    kafka = found["confluent-kafka"]
    assert (kafka.verdict, kafka.found) == ("ok", "not installed, and only sf.kafka as a target needs it")
    assert kafka.next_step == "if a pipeline writes there: pip install 'stateflow-spark[kafka]'"
    assert set(found) <= set(findings(tmp_path, cache_dir=str(tmp_path)))


def test_no_java_fails_with_what_to_do(tmp_path: Path) -> None:
    found = findings(tmp_path, cache_dir=str(tmp_path), checkpoint_dir="")["java"]
    assert found.verdict == "fail"
    assert "python -m stateflow.spark.session.java" in found.next_step


def test_jars_that_are_missing_are_a_warning(tmp_path: Path) -> None:
    assert findings(tmp_path, cache_dir=str(tmp_path))["jars"].verdict == "warn"


@pytest.mark.parametrize(("free", "verdict"), [(100 << 20, "fail"), (2 << 30, "warn"), (50 << 30, "ok")])
def test_a_full_disk_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, verdict: str
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(free * 2, free, free))
    assert findings(tmp_path, cache_dir=str(tmp_path))["scratch folder"].verdict == verdict


def test_a_setting_that_does_not_exist_is_a_usage_error(command: Command, tmp_path: Path) -> None:
    (tmp_path / "here" / "stateflow.toml").write_text("paralelism = 3\n")
    said = command("doctor")
    assert said.code == 2
    assert "did you mean parallelism?" in said.err


STRANGE = 'checkpoint_dir = "r"\ncache_dir = "c"\nparallelism = 7\n'


def test_an_untrusted_file_is_named_and_its_places_are_left_out(command: Command, tmp_path: Path) -> None:
    here = tmp_path / "here"
    (here / "stateflow.toml").write_text(STRANGE)
    java = here / "c" / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    java.chmod(0o755)
    said = command("doctor", "-o", "json")
    found = next(c for c in said.json["checks"] if c["check"] == "configuration file")
    assert found["verdict"] == "warn"
    assert "sets checkpoint_dir and cache_dir, and is not trusted; doctor leaves that out" in found["found"]
    assert found["next_step"].startswith("read it and run `stateflow trust` there, or name it with")
    options = {each["name"]: (each["value"], each["origin"]) for each in said.json["configuration"]}
    assert options["cache_dir"][1] == options["checkpoint_dir"][1] == "default"
    assert options["parallelism"] == ("7", f"{here}/stateflow.toml")
    assert not (tmp_path / "ran").exists()


def test_a_trusted_file_is_told_with_what_it_names(command: Command, tmp_path: Path) -> None:
    (tmp_path / "here" / "stateflow.toml").write_text(STRANGE)
    trusted = command("trust")
    assert f"r ({tmp_path}/here/r)" in trusted.out
    assert f"{tmp_path}/here/stateflow.toml is trusted, until one of these values changes" in trusted.err
    said = command("doctor", "-o", "json")
    found = next(c for c in said.json["checks"] if c["check"] == "configuration file")
    assert (found["verdict"], found["found"]) == (
        "ok",
        f"{tmp_path}/here/stateflow.toml, trusted for its checkpoint_dir, cache_dir",
    )
    assert command("trust", "--remove").out == f"{tmp_path}/here/stateflow.toml is no longer trusted\n"
    refused = command("jobs")
    assert refused.code == 2
    assert "sets checkpoint_dir and cache_dir, and is not trusted" in refused.err


def test_trust_shows_the_endpoint_and_no_secret(command: Command, tmp_path: Path) -> None:
    options = '[storage_options]\nendpoint = "https://theirs.example"\nsecret_access_key = "hush"\n'
    (tmp_path / "here" / "stateflow.toml").write_text(options)
    said = command("trust", tmp_path / "here")
    assert "endpoint=https://theirs.example, secret_access_key=***" in said.out


def test_trust_refuses_what_is_never_found(command: Command, tmp_path: Path) -> None:
    assert "there is no" in command("trust").err
    (tmp_path / "here" / "other.toml").write_text(STRANGE)
    said = command("trust", "other.toml")
    assert (said.code, "is not called stateflow.toml" in said.err) == (2, True)


def test_the_folders_of_a_run_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found = findings(tmp_path, cache_dir="~/mine", scratch_dir="~/fast")
    assert f"{tmp_path}/mine, " in found["cache folder"].found
    assert f"{tmp_path}/fast, " in found["scratch folder"].found
    below = findings(tmp_path, env={"STATEFLOW_CACHE_DIR": "~/of-the-user"})
    assert f"{tmp_path}/of-the-user/scratch, " in below["scratch folder"].found
