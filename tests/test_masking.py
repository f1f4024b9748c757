"""Which of a pipeline's parameters people may read."""

from __future__ import annotations

import inspect
import re

import pytest

from stateflow.errors import CorruptError, UsageError
from stateflow.masking import masked
from stateflow.pipelines.parameters import from_text
from stateflow.spark.session.settings import REDACTION
from stateflow.storage.file_urls import file_folder
from stateflow.storage.roots import open_recorded, open_store

SECRETS = (
    *(
        "dsn",
        "orders_dsn",
        "ordersDsn",
        "pwd",
        "dbpwd",
        "PWD",
        "pass_",
        "sas",
        "sas_url",
        "blobSAS",
        "SASUrl",
        "DSN2",
    ),
    *(
        "jaas",
        "sasl.jaas.config",
        "credential",
        "credentials",
        "conn",
        "orders-conn",
        "connString",
        "ConnString",
    ),
    *(
        "connection_string",
        "connectionString",
        "connection-string",
        "CONNECTIONSTRING",
        "password",
        "DB_PASSWORD",
    ),
    *(
        "api_key",
        "apiKey",
        "api.key",
        "API KEY",
        "x-api-key",
        "sig",
        "sharedAccessSignature",
        "x-amz-signature",
    ),
    *(
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.azure.account.key.x",
        "fs.azure.sas.c.a",
        "signing_key",
    ),
    *(
        "passphrase",
        "private_key",
        "SharedAccessKey",
        "bearer",
        "authorization",
        "client-secret",
        "aws.session.token",
    ),
)
OTHERS = (
    *(
        "output",
        "disaster",
        "connector",
        "goodsname",
        "compass",
        "bypass_cache",
        "signal",
        "design",
        "DSNs",
        "sass",
    ),
    *(
        "spark.sql.session.timeZone",
        "spark.driver.memory",
        "key",
        "keys",
        "primary_key",
        "reconnects",
        "CONNECT",
    ),
)
# A value, and what people see of it.
WITH_PASSWORDS = {
    "postgres://ann:hush@db:5432/orders": "postgres://ann:***@db:5432/orders",
    "postgres://ann:p/w@db": "postgres://ann:***@db",
    "postgres://ann:p?w#x@db/orders": "postgres://ann:***@db/orders",
    "jdbc:mysql://ann:hu@sh@db": "jdbc:mysql://ann:***@db",
    "jdbc:oracle:thin:ann/hush@//db:1521/orders": "jdbc:oracle:thin:ann/***@//db:1521/orders",
    "amqp://:hush@queue": "amqp://:***@queue",
    '["http://a:hush@one", "http://b:hush@two/x"]': '["http://a:***@one", "http://b:***@two/x"]',
    "http://a:hush@one,http://b:hu/sh@two": "http://a:***@one,http://b:***@two",
    "file://ann:hush@host/x": "file://ann:***@host/x",
}
WITH_OTHER_SECRETS = {
    "https://hush@host/x": "https://***@host/x",
    "https://hush:@host": "https://***@host",
    "https://hush:x-oauth-basic@github.com/a": "https://***@github.com/a",
    "redis://hush@host": "redis://***@host",
    "https://a.blob.core.windows.net/c?sv=2024&sig=hu%2Fsh%3D&se=1": "https://a.blob.core.windows.net/c?sv=2024&sig=***&se=1",
    "https://api.example/v1?api_key=hush": "https://api.example/v1?api_key=***",
    "https://b.s3.amazonaws.com/x?X-Amz-Credential=hush/s3&X-Amz-Signature=hush": (
        "https://b.s3.amazonaws.com/x?X-Amz-Credential=***&X-Amz-Signature=***"
    ),
    "Endpoint=sb://ns.example/;SharedAccessKeyName=k;SharedAccessKey=hush=": (
        "Endpoint=sb://ns.example/;SharedAccessKeyName=***;SharedAccessKey=***"
    ),
    "jdbc:sqlserver://db:1433;user=ann;password=hush;encrypt=true": (
        "jdbc:sqlserver://db:1433;user=ann;password=***;encrypt=true"
    ),
    "host=db user=ann password='hu sh' dbname=x": "host=db user=ann password=*** dbname=x",
    '{"user": "ann", "password": "hu sh", "port": 5}': '{"user": "ann", "password": ***, "port": 5}',
    'username="ann" password="hush";': 'username="ann" password=***;',
}
PLAIN = (
    *(
        "abfss://lake@account.dfs.core.windows.net/a",
        "http://one:8080/people@home",
        "ann:bob@home",
        "/data/orders",
    ),
    *(
        "hdfs://namenode:8020/user/ann@home",
        "kafka1:9092,kafka2:9092",
        "postgres://ann@db",
        "ssh://git@host/x",
    ),
    *(
        "https://host/x?page=2&size=3",
        "12:30",
        "a=b,c=d",
        "s3://bucket/x",
        "jdbc:postgresql://db:5432/orders",
    ),
)


@pytest.mark.parametrize("name", SECRETS)
def test_what_is_called_like_a_secret_is_masked_for_people_and_by_spark(name: str) -> None:
    assert masked(name, "hush") == "***"
    assert redacted_by_spark(name, "hush")


@pytest.mark.parametrize("name", OTHERS)
def test_a_name_that_only_holds_the_letters_of_one_is_not(name: str) -> None:
    assert masked(name, "plain") == "plain"
    assert not redacted_by_spark(name, "plain")


@pytest.mark.parametrize(
    ("value", "shown"),
    [*WITH_PASSWORDS.items(), *WITH_OTHER_SECRETS.items(), *zip(PLAIN, PLAIN, strict=True)],
)
def test_a_secret_inside_a_value_is_masked_whatever_the_parameter_is_called(value: str, shown: str) -> None:
    assert masked("input", value) == shown
    assert masked("input", f"see {value} there") == f"see {shown} there"
    assert masked("input", shown) == shown, "what is masked stays as it is"


@pytest.mark.parametrize("value", WITH_PASSWORDS)
def test_spark_hides_a_setting_with_a_password_in_a_url(value: str) -> None:
    assert redacted_by_spark("spark.some.address", value)


@pytest.mark.parametrize("value", PLAIN)
def test_spark_shows_a_setting_without_one(value: str) -> None:
    assert not redacted_by_spark("spark.some.address", value)


def redacted_by_spark(name: str, value: str) -> bool:
    """Spark looks for its expression in the name, and then in the value."""
    expression = re.compile(REDACTION["spark.redaction.regex"])
    return any(expression.search(text) for text in (name, value))


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


@pytest.mark.parametrize("url", ["file://ann:hush@host/x", "hdfs://ann:hu/sh@", "s3://ann:hu[sh@bucket"])
def test_no_error_of_a_root_quotes_its_password(url: str) -> None:
    with pytest.raises(UsageError) as error:
        file_folder(url) if url.startswith("file") else open_store(url)
    assert "hu" not in str(error.value).replace("such", "")
