"""Tokens and the rights that they have."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from stateflow.errors import NotFoundError, UsageError
from stateflow.serve.access import Access, from_file, single
from tests.refusals.refusal import refused

TOKEN = "correct-horse-battery-staple"
HASH = hashlib.sha256(TOKEN.encode()).hexdigest()


def read(tmp_path: Path, text: str) -> Access:
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    return from_file(path)


def test_a_token_is_found_by_its_text_or_its_hash(tmp_path: Path) -> None:
    access = read(
        tmp_path,
        f'[hashed]\nsha256 = "{HASH}"\nrights = ["*/*/*"]\n[plain]\ntoken = "another-long-token"\nrights = ["a/b/c"]\n',
    )
    names = {
        header: (grant.name if (grant := access.grant_of(header)) else None)
        for header in (f"Bearer {TOKEN}", f"bearer  {TOKEN} ", "Bearer another-long-token")
    }
    assert list(names.values()) == ["hashed", "hashed", "plain"]


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Basic {TOKEN}",
        TOKEN,
        f"Bearer {TOKEN}x",
        f"Bearer {HASH}",
        "Bearer \udcff",
    ],
)
def test_nobody_else_has_a_grant(header: str | None) -> None:
    assert single(TOKEN).grant_of(header) is None


def test_rights_are_patterns_of_job_operator_and_state(tmp_path: Path) -> None:
    access = read(tmp_path, f'[t]\nsha256 = "{HASH}"\nrights = ["orders/balance/total", "clicks-*/*/*"]\n')
    grant = access.grant_of(f"Bearer {TOKEN}")
    assert grant is not None
    assert grant.allows("orders", "balance", "total")
    assert grant.allows("clicks-eu", "sessions", "open")
    assert not grant.allows("orders", "balance", "items")
    assert not grant.allows("orders", "other", "total")
    assert not grant.allows("clicks", "sessions", "open")
    assert grant.allows_job("orders")
    assert not grant.allows_job("payments")


def test_hashes_are_not_shown() -> None:
    grant = single(TOKEN).grant_of(f"Bearer {TOKEN}")
    assert HASH not in repr(grant)
    assert bytes.fromhex(HASH).__repr__() not in repr(grant)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no token"),
        ("not toml", "cannot be read as TOML"),
        ("[t]\nnot toml", r"\(TOMLDecodeError, line 2\): it has one table for each token"),
        ('secret-words = "x"', r"\[secret-words\]: this is not a table"),
        (f'[t]\nsha256 = "{HASH}"\n', r"\[t\]: rights is a list"),
        (f'[t]\nsha256 = "{HASH}"\nrights = []\n', "rights is a list"),
        (f'[t]\nsha256 = "{HASH}"\nrights = ["orders/total"]\n', "'orders/total' is not job/operator/state"),
        (f'[t]\nsha256 = "{HASH}"\nrights = ["orders//total"]\n', "is not job/operator/state"),
        ('[t]\nrights = ["*/*/*"]\n', "either sha256 or token"),
        (f'[t]\nsha256 = "{HASH}"\ntoken = "{TOKEN}"\nrights = ["*/*/*"]\n', "either sha256 or token"),
        ('[t]\nsha256 = "abc"\nrights = ["*/*/*"]\n', "64 hexadecimal digits"),
        ('[t]\ntoken = "short"\nrights = ["*/*/*"]\n', "at least 16 characters"),
        (f'[t]\nsha256 = "{HASH}"\nright = ["*/*/*"]\n', "right is unknown here"),
        (
            f'[a]\nsha256 = "{HASH}"\nrights = ["*/*/*"]\n[b]\ntoken = "{TOKEN}"\nrights = ["*/*/*"]\n',
            r"one token twice, the second time as \[b\]",
        ),
    ],
)
def test_a_file_that_is_wrong_is_refused_without_quoting_secrets(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(UsageError, match=says) as error:
        read(tmp_path, text)
    assert TOKEN not in str(error.value)
    assert HASH not in str(error.value)
    assert "short" not in str(error.value)


def test_a_file_that_is_missing_is_not_found(tmp_path: Path) -> None:
    with refused(NotFoundError, "does not exist: check --tokens"):
        from_file(tmp_path / "none.toml")
