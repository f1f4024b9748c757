"""The connection of a checkpoint root, from where Airflow keeps connections."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.sdk.execution_time import secrets_masker

from stateflow.airflow import StateflowHook, StateflowVerifyOperator
from stateflow.errors import NotFoundError, UsageError
from tests.airflow.conftest import Connect
from tests.airflow.tasks import ran
from tests.jobs.made import made_job
from tests.refusals.refusal import refused


def said(monkeypatch: pytest.MonkeyPatch, connection: str | dict[str, Any]) -> StateflowHook:
    text = connection if isinstance(connection, str) else json.dumps(connection)
    monkeypatch.setenv("AIRFLOW_CONN_STATEFLOW_DEFAULT", text)
    return StateflowHook()


@pytest.mark.parametrize(
    ("connection", "root"),
    [
        ({"conn_type": "stateflow", "extra": {"checkpoint_dir": "/data/checkpoints"}}, "/data/checkpoints"),
        ({"conn_type": "stateflow", "host": "s3://bucket/checkpoints"}, "s3://bucket/checkpoints"),
        ({"conn_type": "stateflow", "host": "/data", "extra": {"checkpoint_dir": "/other"}}, "/other"),
        ("stateflow://?checkpoint_dir=%2Fdata%2Fcheckpoints", "/data/checkpoints"),
        ("stateflow://s3://bucket/checkpoints/a", "s3://bucket/checkpoints/a"),
        ("stateflow:///data/checkpoints", "/data/checkpoints"),
    ],
)
def test_the_root_is_in_the_extra_the_host_or_a_uri(
    monkeypatch: pytest.MonkeyPatch, connection: str | dict[str, Any], root: str
) -> None:
    assert said(monkeypatch, connection).root == root


def test_a_missing_connection_says_how_to_add_it() -> None:
    with pytest.raises(NotFoundError) as error:
        _ = StateflowHook().root
    assert str(error.value) == (
        "there is no connection 'stateflow_default': add it with `airflow connections add stateflow_default --conn-type "
        """stateflow --conn-extra '{"checkpoint_dir": "s3://bucket/checkpoints"}'`"""
    )


@pytest.mark.parametrize("conn_type", ["postgres", "aws", "generic"])
def test_a_connection_of_another_type_is_refused_before_anything_of_it_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, conn_type: str
) -> None:
    hook = said(monkeypatch, {"conn_type": conn_type, "host": str(tmp_path), "password": "of-somebody-else"})
    with pytest.raises(UsageError) as error:
        hook.job("orders")
    assert (
        str(error.value)
        == f"connection 'stateflow_default' is of type '{conn_type}': name one of type 'stateflow'"
    )


@pytest.mark.parametrize(
    "connection", [{"conn_type": "stateflow"}, {"conn_type": "stateflow", "extra": {"options": {}}}]
)
def test_a_connection_without_a_root_says_where_it_goes(
    monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any]
) -> None:
    with refused(UsageError, "'stateflow_default'", "no checkpoint root", "put it into its host"):
        _ = said(monkeypatch, connection).root


def test_another_root_needs_no_default_connection_but_every_other_one() -> None:
    hook = StateflowHook(checkpoint_dir="/data")
    assert (hook.root, hook.storage_options, hook.page_conn_id) == ("/data", {}, "")
    with refused(NotFoundError, "there is no connection 'mine'"):
        _ = StateflowHook("mine", checkpoint_dir="/data").storage_options


def test_another_root_takes_the_credentials_of_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = said(
        monkeypatch,
        {
            "conn_type": "stateflow",
            "extra": {"checkpoint_dir": "s3://a", "storage_options": {"secret_access_key": "xyzzy"}},
        },
    )
    other = StateflowHook(checkpoint_dir="s3://b")
    assert other.storage_options == hook.storage_options == {"secret_access_key": "xyzzy"}
    assert (hook.page_conn_id, other.page_conn_id) == ("stateflow_default", "")
    assert StateflowHook(checkpoint_dir="s3://a").page_conn_id == "stateflow_default"


@pytest.mark.parametrize(
    ("root", "written"),
    [
        ("/data/chk", ["/data/chk/", "/data//chk", "file:///data/chk", "file:/data/chk/"]),
        ("file:///data/chk", ["/data/chk"]),
        ("s3://bucket/chk", ["s3a://bucket/chk", "s3://bucket/chk/"]),
    ],
)
def test_a_root_is_that_of_its_connection_however_it_is_written(
    root: str, written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said(monkeypatch, {"conn_type": "stateflow", "extra": {"checkpoint_dir": root}})
    for each in (root, *written):
        assert StateflowHook(checkpoint_dir=each).page_conn_id == "stateflow_default"
    for each in (f"{root}/orders", f"{root}2", root.removesuffix("/chk")):
        assert StateflowHook(checkpoint_dir=each).page_conn_id == ""


def test_options_come_from_the_task_then_the_connection_then_the_environment(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    connect(tmp_path, options={"retained-checkpoints": 7, "parallelism": 2})
    monkeypatch.setenv("STATEFLOW_CHECKPOINT_DIR", "/elsewhere")
    monkeypatch.setenv("STATEFLOW_PARALLELISM", "3")
    monkeypatch.setenv("STATEFLOW_UPLOAD_THREADS", "5")
    options = StateflowHook().options(parallelism=1)
    assert (options.checkpoint_dir, options.parallelism) == (str(tmp_path), 1)
    assert (options.retained_checkpoints, options.upload_threads) == (7, 5)
    assert StateflowHook().options().parallelism == 2
    assert options.origin("retained_checkpoints") == "connection 'stateflow_default' or the task"


def test_a_process_of_its_own_is_given_the_same_in_its_environment(connect: Connect, tmp_path: Path) -> None:
    from stateflow.config.options import load

    connect(
        tmp_path,
        options={"parallelism": 2, "progress": False},
        storage_options={"region": "eu", "allow_http": True},
    )
    environment = StateflowHook().environment()
    assert environment["STATEFLOW_STORAGE_OPTIONS"] == '{"region": "eu", "allow_http": "true"}'
    options = load(env=environment, folder=tmp_path)
    assert (options.checkpoint_dir, options.parallelism, options.progress) == (str(tmp_path), 2, False)
    assert options.storage_options == {"region": "eu", "allow_http": "true"}


def test_credentials_are_masked_and_what_everybody_may_see_is_not(
    monkeypatch: pytest.MonkeyPatch, connect: Connect, tmp_path: Path
) -> None:
    masked: list[str] = []
    monkeypatch.setattr("stateflow.airflow.connections.stateflow.mask_secret", masked.append)
    options = {
        "aws_access_key_id": "AKIA",
        "secret_access_key": "xyzzy",
        "region": "eu-west-1",
        "allow_http": "true",
    }
    connect(tmp_path, storage_options=json.dumps(options))
    assert StateflowHook().storage_options == options
    assert masked == ["AKIA", "xyzzy"]


def test_a_masked_credential_is_no_part_of_what_is_logged(connect: Connect, tmp_path: Path) -> None:
    connect(tmp_path, storage_options={"anything": "plugh-plover-xyzzy"})
    _ = StateflowHook().storage_options
    assert secrets_masker.redact("it is plugh-plover-xyzzy") == "it is ***"


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        (
            {"options": {"paralelism": 2}},
            "option 'paralelism' in the extra of connection 'stateflow_default' does not exist",
        ),
        (
            {"options": {"parallelism": "many"}},
            "option parallelism, set by connection 'stateflow_default' or the task",
        ),
        ({"options": "parallelism"}, "options in the extra of connection 'stateflow_default' is not usable"),
        ({"storage_options": {"key": {"nested": "xyzzy"}}}, "storage_options in the extra of connection"),
    ],
)
def test_nonsense_in_the_extra_is_named_without_repeating_it(
    connect: Connect, tmp_path: Path, extra: dict[str, Any], sentence: str
) -> None:
    connect(tmp_path, **extra)
    with pytest.raises(UsageError, match=sentence) as error:
        StateflowHook().options()
    assert "xyzzy" not in str(error.value)


def test_the_button_that_tests_a_connection_counts_jobs(connect: Connect, tmp_path: Path) -> None:
    from airflow.sdk import Connection

    connect(tmp_path)
    made_job(tmp_path)
    assert StateflowHook().test_connection() == (True, f"{tmp_path} has 1 job")
    assert StateflowHook().jobs() == ["orders"]
    connect(tmp_path / "typo")
    usable, error = StateflowHook().test_connection()
    assert not usable
    assert "typo does not exist where Airflow's API server runs: the first run of a job makes it" in error
    (tmp_path / "typo").write_text("no folder")
    assert StateflowHook().test_connection() == (
        False, f"{tmp_path}/typo is a file: a checkpoint root is a folder",
    )  # fmt: skip
    assert Connection.get("stateflow_default").conn_type == "stateflow"


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        (None, "there is no connection 'stateflow_default': add it with `airflow connections add"),
        ({}, "connection 'stateflow_default' has no checkpoint root"),
        (
            {"checkpoint_dir": "/nowhere/at/all"},
            "the checkpoint root /nowhere/at/all does not exist on this worker",
        ),
        ({"checkpoint_dir": "ftp://host/root"}, "ftp"),
    ],
)
def test_a_task_without_a_root_fails_in_a_sentence_and_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any] | None, sentence: str
) -> None:
    if extra is not None:
        said(monkeypatch, {"conn_type": "stateflow", "extra": extra})
    with pytest.raises(AirflowFailException, match=sentence):
        ran(StateflowVerifyOperator)


def test_a_store_that_cannot_be_reached_may_be_back_when_the_task_is_tried_again(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        connect(
            "s3://bucket/checkpoints",
            storage_options={
                "endpoint": endpoint, "region": "us-east-1", "allow_http": "true", "access_key_id": "plugh-key",
                "secret_access_key": "xyzzy-secret", "max_retries": "0", "retry_timeout": "0.1",
            },
        )  # fmt: skip
        with refused(AirflowException, "s3://bucket/checkpoints") as error:
            ran(StateflowVerifyOperator)
    assert not isinstance(error.value, AirflowFailException)
    assert "xyzzy-secret" not in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_secrets_backend_gives_the_connection_and_wins_over_the_environment(tmp_path: Path) -> None:
    """As docs/platform.md writes it."""
    stored = {
        "stateflow_default": {"conn_type": "stateflow", "extra": {"checkpoint_dir": "/mnt/of-the-backend"}}
    }
    (tmp_path / "connections.json").write_text(json.dumps(stored))
    surroundings = {
        **os.environ,
        "AIRFLOW__SECRETS__BACKEND": "airflow.secrets.local_filesystem.LocalFilesystemBackend",
        "AIRFLOW__SECRETS__BACKEND_KWARGS": json.dumps(
            {"connections_file_path": str(tmp_path / "connections.json")}
        ),
        "AIRFLOW_CONN_STATEFLOW_DEFAULT": json.dumps(
            {"conn_type": "stateflow", "extra": {"checkpoint_dir": "/mnt/of-the-environment"}}
        ),
    }
    code = "from stateflow.airflow import StateflowHook; print(StateflowHook().root)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=surroundings, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "/mnt/of-the-backend"
