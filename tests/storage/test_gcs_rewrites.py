"""Tokens for Google's rewrites, and what becomes of a rewrite that Google does not carry out."""

from __future__ import annotations

import base64
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from stateflow.storage.gcs_rewrites import (
    GoogleAccess,
    RewriteRefused,
    access_of,
    copy_by_rewrites,
    signed_token,
)

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem(form: serialization.PrivateFormat) -> str:
    return KEY.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def account(**more: object) -> dict[str, object]:
    return {
        "type": "service_account",
        "client_email": "jobs@project.example",
        "private_key_id": "k1",
        "private_key": pem(serialization.PrivateFormat.PKCS8),
        **more,
    }


@pytest.mark.parametrize(
    "form", [serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL]
)
def test_a_service_accounts_key_signs_a_token_that_its_public_key_verifies(
    form: serialization.PrivateFormat,
) -> None:
    text, _, signature = signed_token(account(private_key=pem(form)), 1000).rpartition(".")
    KEY.public_key().verify(
        base64.urlsafe_b64decode(signature + "=="), text.encode(), padding.PKCS1v15(), hashes.SHA256()
    )
    head, claims = (json.loads(base64.urlsafe_b64decode(part + "==")) for part in text.split("."))
    assert head == {"alg": "RS256", "typ": "JWT", "kid": "k1"}
    assert (claims["iss"], claims["iat"], claims["exp"]) == ("jobs@project.example", 1000, 4600)


def test_where_credentials_are_found(tmp_path: Path) -> None:
    file, home = tmp_path / "key.json", {"HOME": str(tmp_path)}
    file.write_text(json.dumps(account()))
    for config, env in (
        ({"service_account_key": file.read_text()}, {}),
        ({"google_service_account": str(file)}, {}),
        ({}, {"GOOGLE_APPLICATION_CREDENTIALS": str(file)}),
    ):
        access = access_of(config, config, {**home, **env}, lambda: 1000.0)
        assert access is not None
        assert access.token().count(".") == 2
        assert "PRIVATE" not in repr(access)


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({"service_account_key": json.dumps({"type": "authorized_user", "refresh_token": "x"})}, {}),
        ({"service_account_key": "no json"}, {}),
        ({"service_account": "/nowhere/key.json"}, {}),
        ({"skip_signature": "true"}, {}),
        ({}, {"proxy_url": "http://proxy:3128"}),
    ],
)
def test_where_the_client_would_ask_otherwise_nothing_is_asked(
    config: dict[str, str], options: dict[str, str], tmp_path: Path
) -> None:
    assert access_of(config, {**config, **options}, {"HOME": str(tmp_path)}) is None


def test_a_machine_of_google_is_asked_for_its_token_and_a_failed_call_is_sent_again(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []
    answers = [
        (503, {}),
        (200, {"done": False, "rewriteToken": "t/1"}),
        (200, {"done": True}),
        (404, {}),
        (302, {}),
    ]

    class Google(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.headers["Metadata-Flavor"] == "Google"
            self._say(200, {"access_token": "of-the-machine"})

        def do_POST(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            self._say(*answers.pop(0))

        def _say(self, status: int, answer: dict[str, object]) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Location", "/elsewhere")  # counts with 302 only
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Google)
    serving = Thread(target=server.serve_forever)
    serving.start()
    try:
        here = f"127.0.0.1:{server.server_address[1]}"
        found = access_of({}, {}, {"HOME": str(tmp_path), "GCE_METADATA_HOST": here})
        assert found is not None
        access = GoogleAccess(f"http://{here}", found.token)
        pauses: list[float] = []
        copy_by_rewrites(access, "b", "job/a b", "job/c", pauses.append)
        path = "/storage/v1/b/b/o/job%2Fa%20b/rewriteTo/b/b/o/job%2Fc"
        bearer = "Bearer of-the-machine"
        assert asked == [(path, bearer), (path, bearer), (f"{path}?rewriteToken=t%2F1", bearer)]
        assert pauses == [1.0]
        for status in ("404", "302"):  # whoever is named there does not get the token
            with pytest.raises(RewriteRefused, match=status):
                copy_by_rewrites(access, "b", "job/a b", "job/c", pauses.append)
        assert len(asked) == 5
    finally:
        server.shutdown()
        server.server_close()
        serving.join()
