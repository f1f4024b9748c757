"""The requests that copy an object by parts: signed as AWS's own client signs them, and not made where it would ask otherwise."""

from __future__ import annotations

from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from stateflow.storage.s3_parts import PartsRefused, S3Keys, copy_by_parts, keys_of, signed

NOW = datetime(2026, 11, 26, 0, 30, 5, tzinfo=UTC)
KEYS = {"access_key_id": "AKIDEXAMPLE", "secret_access_key": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"}


@pytest.mark.parametrize("token", ["", "session+token/=="])
@pytest.mark.parametrize(
    ("method", "key", "query", "headers", "body"),
    [
        ("POST", "state/job/a b+c.sst", {"uploads": ""}, {}, b""),
        (
            "PUT",
            "state/\u00e9~x/1.sst",
            {"partNumber": "12", "uploadId": "Ab/9+=~.-_"},
            {"x-amz-copy-source": "/bucket/a%20b", "x-amz-copy-source-range": "bytes=0-99"},
            b"",
        ),
        ("POST", "x", {"uploadId": "abc"}, {}, b"<CompleteMultipartUpload/>"),
    ],
)
def test_a_request_is_signed_as_awss_own_client_signs_it(
    token: str,
    method: str,
    key: str,
    query: dict[str, str],
    headers: dict[str, str],
    body: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = S3Keys(
        "https://bucket.s3.eu-west-1.amazonaws.com",
        "eu-west-1",
        KEYS["access_key_id"],
        KEYS["secret_access_key"],
        token,
    )
    url, told = signed(keys, method, key, query, headers, body, NOW)
    request = AWSRequest(
        method,
        url,
        data=body,
        headers={name: value for name, value in told.items() if name not in ("authorization", "host")},
    )
    request.context["timestamp"] = "20261126T003005Z"
    credentials = Credentials(keys.access, keys.secret, token or None)
    auth = S3SigV4Auth(credentials, "s3", "eu-west-1")
    canonical = SigV4Auth.canonical_request(auth, request)
    text = SigV4Auth.string_to_sign(auth, request, canonical)
    assert told["authorization"].endswith(f"Signature={SigV4Auth.signature(auth, text, request)}")


def test_where_a_bucket_is() -> None:
    def url(**config: str) -> str:
        found = keys_of("b", {**KEYS, **config}, {}, {})
        assert found is not None
        return found.url

    assert url() == "https://s3.us-east-1.amazonaws.com/b"
    assert (
        url(region="eu-west-1", virtual_hosted_style_request="true") == "https://b.s3.eu-west-1.amazonaws.com"
    )
    assert url(endpoint="http://minio:9000/") == "http://minio:9000/b"
    assert url(endpoint="http://b.minio:9000", virtual_hosted_style_request="true") == "http://b.minio:9000"


def test_keys_may_stand_in_the_environment() -> None:
    env = {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_SESSION_TOKEN": "t",
        "AWS_REGION": "eu-north-1",
    }
    assert keys_of("b", {}, {}, env) == S3Keys(
        "https://s3.eu-north-1.amazonaws.com/b", "eu-north-1", "a", "s", "t"
    )


@pytest.mark.parametrize(
    ("bucket", "config", "options"),
    [
        ("b", {}, {}),  # the machine's role has the keys
        ("b--x-s3", KEYS, {}),
        ("b", {**KEYS, "skip_signature": "true"}, {}),
        ("b", {**KEYS, "server_side_encryption": "aws:kms"}, {}),
        ("b", KEYS, {"proxy_url": "http://proxy:3128"}),
        ("b", KEYS, {"root_certificate": "/etc/ca.pem"}),
    ],
)
def test_where_the_client_would_ask_otherwise_nothing_is_asked(
    bucket: str, config: dict[str, str], options: dict[str, str]
) -> None:
    assert keys_of(bucket, config, options, {}) is None


def test_a_server_that_only_some_clients_know_is_not_asked() -> None:
    assert keys_of("b", KEYS, {}, {"AWS_ENDPOINT_URL_S3": "http://minio:9000"}) is None


def test_keys_are_never_shown() -> None:
    assert "wJalr" not in repr(keys_of("b", KEYS, {}, {}))


def test_an_answer_that_breaks_off_is_a_refusal_and_is_asked_for_again() -> None:
    asked = []

    class Half(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"<Initiate")

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Half)
    serving = Thread(target=server.serve_forever)
    serving.start()
    try:
        keys = S3Keys(f"http://127.0.0.1:{server.server_address[1]}/b", "us-east-1", "a", "s", "")
        with pytest.raises(PartsRefused, match="IncompleteRead"):
            copy_by_parts(keys, "b", "from", "to", 100)
    finally:
        server.shutdown()
        server.server_close()
        serving.join()
    assert asked == ["/b/to?uploads="] * 3
