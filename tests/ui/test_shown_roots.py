"""What the pages say of a root: never what may be a secret in its address."""

from __future__ import annotations

import json

import pytest

from stateflow_ui.connections import root_of, shown


@pytest.mark.parametrize(
    ("root", "page"),
    [
        ("s3://bucket/checkpoints", "s3://bucket/checkpoints"),
        ("/data/checkpoints", "/data/checkpoints"),
        ("file:///data/checkpoints", "file:///data/checkpoints"),
        ("file://ann:hush@host/x", "file://host/x"),
        ("s3://ann:hu/sh@bucket/x", "s3://bucket/x"),
        ("s3://bucket/x?sig=hush", "s3://bucket/x"),
        ("file:/data/x?token=hush", "file:/data/x?token=***"),
        ("s3://ann:hu[sh@bucket/x", "s3://bucket/x"),
        ("s3://hu[sh/x", "s3://..."),
    ],
)
def test_a_root_is_shown_without_what_may_be_a_secret(root: str, page: str) -> None:
    assert shown(root) == page


@pytest.mark.parametrize(
    "root", ["file://ann:hush@host/x", "s3://ann:hu/sh@bucket/x", "hdfs://ann:hush@nn/x"]
)
def test_the_problem_of_a_root_does_not_quote_its_password(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = {"conn_type": "stateflow", "extra": json.dumps({"checkpoint_dir": root})}
    monkeypatch.setenv("AIRFLOW_CONN_STRANGE", json.dumps(connection))
    found = root_of("strange")
    assert found.problem
    assert "hu" not in found.problem + repr(found)
