"""Which of a pipeline's parameters people may read."""

from __future__ import annotations

import pytest

from stateflow.masking import masked


@pytest.mark.parametrize(
    "name",
    [
        *("dsn", "orders_dsn", "ordersDsn", "pwd", "dbpwd", "PWD", "pass_", "sas", "sas_url", "blobSAS"),
        *("jaas", "sasl.jaas.config", "credential", "credentials", "conn", "orders-conn", "connString"),
        *("connection_string", "connectionString", "connection-string", "password", "api_key", "apiKey"),
    ],
)
def test_a_parameter_that_is_called_like_a_secret_is_masked(name: str) -> None:
    assert masked(name, "hush") == "***"


@pytest.mark.parametrize("name", ["output", "disaster", "connector", "goodsname", "compass", "bypass_cache"])
def test_a_name_that_only_holds_the_letters_of_one_is_not(name: str) -> None:
    assert masked(name, "plain") == "plain"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("postgres://ann:hush@db:5432/orders", "postgres://ann:***@db:5432/orders"),
        ("jdbc:mysql://ann:hu@sh@db", "jdbc:mysql://ann:***@db"),
        ("amqp://:hush@queue", "amqp://:***@queue"),
        ('["http://a:hush@one", "http://b:hush@two/x"]', '["http://a:***@one", "http://b:***@two/x"]'),
        ("abfss://lake@account.dfs.core.windows.net/a", "abfss://lake@account.dfs.core.windows.net/a"),
        ("http://one:8080/people@home", "http://one:8080/people@home"),
        ("ann:bob@home", "ann:bob@home"),
    ],
)
def test_a_password_inside_a_url_is_masked_whatever_the_parameter_is_called(value: str, shown: str) -> None:
    assert masked("input", value) == shown
