"""Which of a pipeline's parameters people may read."""

from __future__ import annotations

import inspect
import re
import time

import pytest

from stateflow.errors import CorruptError, UsageError
from stateflow.masking import is_secret, masked, without_secrets
from stateflow.pipelines.parameters import from_text
from stateflow.spark.session.settings import REDACTION
from stateflow.storage.file_urls import file_folder
from stateflow.storage.roots import open_recorded, open_store
from tests.refusals.refusal import refused

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
        "stripe_key",
        "stripeKey",
        "STRIPE_KEY",
        "sendgrid-key",
        "spark.maps.app_key",
        "ssh_key2",
        "kms_key",
        "orders.webhook",
        "webhookUrl",
        "passcode",
        "fernet_key",
        "session-cookie",
        "basicAuth",
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
        "partition_key",
        "partitionKey",
        "orderKey2",
        "order_keys",
        "spark.x.sort-key",
        "customer_key",
        "date_key",
        "s3_key",
        "public_key",
        "key_id",
        "key_group",
        "monkey",
        "author",
        "cookiecutter",
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
WEBHOOKS = {
    "https://hooks.slack.com/services/T0/B0/hush": "https://hooks.slack.com/***",
    "https://hooks.zapier.com/hooks/catch/1/hush/": "https://hooks.zapier.com/***",
    "https://discord.com/api/webhooks/1/hush": "https://discord.com/api/webhooks/***",
    "https://canary.discord.com/api/webhooks/1/hush": "https://canary.discord.com/api/webhooks/***",
    "https://discordapp.com/api/webhooks/1/hush": "https://discordapp.com/api/webhooks/***",
    "https://acme.webhook.office.com/webhookb2/hush": "https://acme.webhook.office.com/***",
    "https://outlook.office365.com/webhook/hush": "https://outlook.office365.com/webhook/***",
    "https://api.telegram.org/bot1:hush/sendMessage": "https://api.telegram.org/***",
}
HEADERS = {
    "Authorization: Bearer hush.hush1-hush_hu": "Authorization: ***",
    "Authorization: Basic aHVzaDpodXNo": "Authorization: ***",
    "authorization=bearer hushhush": "authorization=***",
    "Bearer eyJhbGciOi.J9eyJzdWIi.OiJodXNo": "Bearer ***",
    "bearer hushhush1": "bearer ***",
    """curl -H "Authorization: Bearer hush1234" https://h""": """curl -H "Authorization: ***" https://h""",
    """curl -H 'X-Api-Key: hush' https://h""": """curl -H 'X-Api-Key: ***' https://h""",
    '{"Authorization": "Bearer hush1234"}': '{"Authorization": ***}',
}
QUOTED = {
    "jdbc:sqlserver://db:1433;user=ann;password={hu;sh};encrypt=true": (
        "jdbc:sqlserver://db:1433;user=ann;password=***;encrypt=true"
    ),
    "jdbc:sqlserver://db:1433;password={hu}}sh;x};encrypt=true": "jdbc:sqlserver://db:1433;password=***;encrypt=true",
    "password={{ var.value.hush }} and more": "password=*** and more",
    "password='hu''sh' x": "password=*** x",
    r"password='hu\'sh' x": "password=*** x",
    r'password="hu\"sh" x': "password=*** x",
    'password="hu""sh", user="ann"': 'password=***, user="ann"',
    r'{"token":"hu\"sh","port":5}': '{"token":***,"port":5}',
    "token=hu,sh, retries=3": "token=***, retries=3",
    "token=hush,retries=3": "token=***,retries=3",
    "sas_token = hush": "sas_token = ***",
    "stripe_key=hush": "stripe_key=***",
    "sendgrid-key: hush": "sendgrid-key: ***",
    "STRIPE_KEY='hush'": "STRIPE_KEY=***",
    "stripeKey=hush": "stripeKey=***",
}
SENTENCES = (
    "key=orders",
    "partition_key=day",
    "partitionKey=day, primary_key=id, sort_key=ts, row_key=5",
    "order_key=5 customer_key=7 shard_key=9 business_key=3 date_key=2026-01-01",
    "s3_key=orders/1.json",
    "key_group=5, keys=['id'], key1=a",
    "the key 5 of state 'total' is unknown: say one of 3 keys",
    "source 'orders': column key: 5 rows have no value",
    "give the user a password with --password, or a token",
    "tokens were read",
    "a bearer of bad news came",
    "bearer tokens are masked",
    "operator 'total': process has the signature (key, rows): give it (key, rows, ctx)",
    "sink 'out': upsert keys=['id'] order_by=ts",
    "source 'rows' has read file:///data/x and reads /data/y now: give another input another uid",
    "the webhook of a channel: see https://discord.com/api/ and https://hooks.example/x",
    "https://host/x?page=2&key=5",
    "spark.sql.shuffle.partitions=200; compass=north; monkey=1; design: dark",
    "12:30:00 user:ann wrote `orders`, {'n': 5} and {{ ds }}",
)
LONG = {
    "one word": "a",
    "names": "a_key",
    "dots": "a.",
    "dashes": "a-",
    "schemes": "a+",
    "assignments": "a=",
    "secret assignments": "password=a,",
    "spaces behind": "password ",
    "addresses": "://a:",
    "users": "http://u:p@h ",
    "at signs": "@",
    "quotes": "password='",
    "escapes": '\\"',
    "braces": "password={",
    "templates": "password={{",
    "open braces": "password={x ",
    "open templates": "password={{x ",
    "open lines": "password={x\n",
    "closed braces": "}}",
    "bearers": "Bearer ",
    "tokens": "Bearer a1_",
    "oracle": "jdbc:oracle:thin:",
    "oracle users": "jdbc:oracle:a:b/",
    "webhooks": "https://hooks.slack.com/",
    "office": "https://a.",
    "underscores": "api_____",
    "words": "abc-",
    "capitals": "PW",
    "digits": "key1",
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
    [
        *WITH_PASSWORDS.items(),
        *WITH_OTHER_SECRETS.items(),
        *WEBHOOKS.items(),
        *HEADERS.items(),
        *QUOTED.items(),
        *zip((*PLAIN, *SENTENCES), (*PLAIN, *SENTENCES), strict=True),
    ],
)
def test_a_secret_inside_a_value_is_masked_whatever_the_parameter_is_called(value: str, shown: str) -> None:
    assert masked("input", value) == shown
    assert masked("input", f"see {value} there") == f"see {shown} there"
    assert masked("input", shown) == shown, "what is masked stays as it is"


@pytest.mark.parametrize("value", [*WITH_PASSWORDS, *WEBHOOKS, *HEADERS])
def test_spark_hides_a_setting_with_a_password_in_a_url(value: str) -> None:
    assert redacted_by_spark("spark.some.address", value)


@pytest.mark.parametrize("value", PLAIN)
def test_spark_shows_a_setting_without_one(value: str) -> None:
    assert not redacted_by_spark("spark.some.address", value)


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", "password=", "https://", "'"])
@pytest.mark.parametrize("piece", LONG)
def test_a_long_line_is_masked_at_once(before: str, piece: str) -> None:
    """A pattern that looked at each character again from each character took five minutes for 100 kB without a space.

    A third of that takes half a minute with such a pattern.
    """
    line = before + LONG[piece] * (33_000 // len(LONG[piece]))
    began = time.process_time()
    without_secrets(line)
    is_secret(line)
    redacted_by_spark("spark.some.address", line)
    # 0.2 s on a busy machine.
    assert time.process_time() - began < 5


@pytest.mark.parametrize("piece", LONG)
def test_a_text_of_eight_times_the_length_takes_about_eight_times_as_long(piece: str) -> None:
    """With a pattern that looks through the rest of the text again and again it would take 64 times as long: minutes for an error's text."""
    short, long = (LONG[piece] * (size // len(LONG[piece])) for size in (20_000, 160_000))
    assert seconds(long) < 24 * max(seconds(short), 0.01)


def seconds(text: str) -> float:
    began = time.process_time()
    without_secrets(text)
    return time.process_time() - began


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("password={hu sh;", "password=***"),
        ("password={{ var.value.hush", "password=***"),
        ("a={b} password={hu sh\nretries=3", "a={b} password=***\nretries=3"),
        ('"secret": {"hu": "sh"', '"secret": ***'),
        ('"secret": {\n"hu": "sh"\n} and more', '"secret": *** and more'),
    ],
)
def test_a_brace_of_a_text_that_was_cut_hides_the_rest_of_its_line(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


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
    with refused(UsageError, "parameter 'limit'", "'x'", "no int"):
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


@pytest.mark.parametrize(
    "sentence",
    [
        "source 'tokens': it has no column 'user'",
        "column 'password': values are no texts",
        "ExpiredToken: The provided token has expired",
        "TokenError: expired",
    ],
)
def test_a_sentence_about_something_that_is_called_like_a_secret_is_left_whole(sentence: str) -> None:
    assert without_secrets(sentence) == sentence


@pytest.mark.parametrize("text", ["'password': letmein", "AccessToken: abcdef", "password: let me in"])
def test_what_may_be_a_value_is_hidden_all_the_same(text: str) -> None:
    assert "***" in without_secrets(text)
