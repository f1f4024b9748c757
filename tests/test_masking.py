"""Which of a pipeline's parameters people may read."""

from __future__ import annotations

import inspect

import pytest

from stateflow.errors import CorruptError, UsageError
from stateflow.masking import masked
from stateflow.pipelines.parameters import from_text
from stateflow.storage.roots import open_recorded


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


def test_no_error_quotes_a_value_that_is_called_like_a_secret() -> None:
    def pipeline(flow: object, *, api_key: int, limit: int) -> None: ...

    parameters = inspect.signature(pipeline, eval_str=True).parameters
    with pytest.raises(UsageError) as error:
        from_text("orders", parameters["api_key"], "hush")
    assert "parameter 'api_key' is '***', which is no int" in str(error.value)
    with pytest.raises(UsageError, match="parameter 'limit' is 'x', which is no int"):
        from_text("orders", parameters["limit"], "x")


def test_no_error_quotes_the_password_in_a_url() -> None:
    with pytest.raises(CorruptError) as error:
        open_recorded("s3://ann:hush@bucket/x", root="s3://bucket/root")
    assert "'s3://ann:***@bucket/x'" in str(error.value)
    assert "hush" not in str(error.value)
