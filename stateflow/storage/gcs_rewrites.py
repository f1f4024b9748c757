"""Copies an object inside Google Cloud Storage that one request does not copy: Google moves the bytes, call by call.

A copy takes one request as long as it only has to name the bytes anew. Where they have to move, as after a change of the bucket's
storage class, Google refuses a large object and asks for its method `rewriteTo`, which the store's client does not have. It takes a
token in place of a signature. Made here are those of a service account's key and asked for those of a machine on Google's cloud;
for other credentials, a proxy or certificates of the client there is no such way.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

_GOOGLE = "https://storage.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_MACHINE = "metadata.google.internal"
_MACHINE_TOKEN = "/computeMetadata/v1/instance/service-accounts/default/token"
_VALID = 3600
_PATIENCE = 120
_TRIES = 3
_PAUSE = 1.0
_KEYS = ("service_account_key",)
_KEY_FILES = ("service_account", "service_account_path", "application_credentials")
_UNDERSTOOD = {*_KEYS, *_KEY_FILES, "bucket", "bucket_name"}
_CLIENT_UNDERSTOOD = {
    "allow_http", "connect_timeout", "timeout", "http1_only", "user_agent", "max_retries", "retry_timeout",
}  # fmt: skip
_SHA256_OF = bytes.fromhex("3031300d060960864801650304020105000420")
"""What stands before a SHA-256 in an RSA signature (RFC 8017, 9.2)."""


class _StaysThere(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the token would go along, to whatever host the answer names."""

    def redirect_request(self, *_: Any) -> None:
        return None


_opener = urllib.request.build_opener(_StaysThere)


class RewriteRefused(Exception):
    """Google has not copied the object; the target is not there."""


@dataclass(frozen=True, slots=True, repr=False)
class GoogleAccess:
    """Where the service is, and how a token for it is made: a new one for each request, as it needs no request itself on a key."""

    url: str
    token: Callable[[], str]


def access_of(
    config: Mapping[str, Any],
    options: Mapping[str, str],
    env: Mapping[str, str] = os.environ,
    clock: Callable[[], float] = time.time,
) -> GoogleAccess | None:
    """None where the store's client has settings or credentials that these requests would not have."""
    known = {_short(str(name)): str(value) for name, value in config.items()}
    if known.keys() - _UNDERSTOOD or {_short(name) for name in options} - known.keys() - _CLIENT_UNDERSTOOD:
        return None
    try:
        key = _key(known, env)
    except (OSError, ValueError):
        return None
    if key is None:
        host = env.get("GCE_METADATA_HOST") or _MACHINE
        return GoogleAccess(_GOOGLE, lambda: _token_of_machine(host))
    url = str(key.get("gcs_base_url") or _GOOGLE)
    if key.get("disable_oauth"):
        return GoogleAccess(url, str)
    if not key.get("private_key"):
        return None  # a user's own credentials, or those of another cloud
    return GoogleAccess(url, lambda: signed_token(key, int(clock())))


def copy_by_rewrites(
    access: GoogleAccess,
    bucket: str,
    source: str,
    target: str,
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """Copies an object within its bucket. RewriteRefused if Google does not do it."""
    there = f"/b/{quote(bucket, safe='')}/o/"
    method = (
        f"{access.url}/storage/v1{there}{quote(source, safe='')}/rewriteTo{there}{quote(target, safe='')}"
    )
    told: dict[str, str] = {}
    while True:
        answer = _asked(access, method, told, pause)
        if answer.get("done"):
            return
        token = answer.get("rewriteToken")
        if not isinstance(token, str):
            raise RewriteRefused("an answer without a token")
        told = {"rewriteToken": token}


def signed_token(key: Mapping[str, Any], now: int) -> str:
    """A token that a service account has signed itself, as Google takes it (RFC 7519, RS256)."""
    head = {"alg": "RS256", "typ": "JWT", "kid": key.get("private_key_id", "")}
    who = str(key["client_email"])
    claims = {"iss": who, "sub": who, "scope": _SCOPE, "iat": now, "exp": now + _VALID}
    text = ".".join(_base64(json.dumps(part).encode()) for part in (head, claims))
    return f"{text}.{_base64(_signature(str(key['private_key']), text.encode()))}"


def _asked(
    access: GoogleAccess, method: str, told: Mapping[str, str], pause: Callable[[float], object]
) -> dict[str, Any]:
    """The answer. Each of these requests may be sent again: the token says how far the copy is."""
    said = ""
    for turn in range(_TRIES):
        if turn:
            pause(_PAUSE)
        try:
            request = urllib.request.Request(
                f"{method}?{urlencode(told)}" if told else method,
                data=b"",
                method="POST",
                headers={"authorization": f"Bearer {access.token()}", "content-type": "application/json"},
            )
            with _opener.open(request, timeout=_PATIENCE) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            said = f"{error.code} {error.reason}"
            if error.code < 500 and error.code not in (408, 429):
                break
            continue
        except (OSError, HTTPException, ValueError, KeyError) as error:
            said = str(error)
            continue
        return found if isinstance(found, dict) else {}
    raise RewriteRefused(said)


def _key(known: Mapping[str, str], env: Mapping[str, str]) -> dict[str, Any] | None:
    """The credentials' JSON, as the store's client finds it; None for those of the machine."""
    for name in _KEYS:
        if text := known.get(name) or env.get(f"GOOGLE_{name.upper()}"):
            return _read(text)
    for name in _KEY_FILES:
        if file := known.get(name) or env.get(f"GOOGLE_{name.upper()}"):
            return _read(Path(file).read_text(encoding="utf-8"))
    of_user = Path(env.get("HOME", "/"), ".config/gcloud/application_default_credentials.json")
    return _read(of_user.read_text(encoding="utf-8")) if of_user.is_file() else None


def _read(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    return found


def _short(name: str) -> str:
    return name.lower().removeprefix("google_")


def _token_of_machine(host: str) -> str:
    request = urllib.request.Request(f"http://{host}{_MACHINE_TOKEN}", headers={"Metadata-Flavor": "Google"})
    with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
        return str(json.load(answer)["access_token"])


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _signature(pem: str, text: bytes) -> bytes:
    """RSASSA-PKCS1-v1_5 with SHA-256 (RFC 8017, 8.2.1). Python's library has no RSA, and this signs one text of our own."""
    lines = [line for line in pem.strip().splitlines() if not line.startswith("-----")]
    numbers = _elements(_elements(base64.b64decode("".join(lines)))[0][1])
    if numbers[1][0] == 0x30:  # PKCS #8 has the key's numbers in an envelope
        numbers = _elements(_elements(numbers[2][1])[0][1])
    modulus, exponent = (int.from_bytes(numbers[at][1], "big") for at in (1, 3))
    length = (modulus.bit_length() + 7) // 8
    digest = _SHA256_OF + hashlib.sha256(text).digest()
    padded = b"\0\1" + b"\xff" * (length - len(digest) - 3) + b"\0" + digest
    return pow(int.from_bytes(padded, "big"), exponent, modulus).to_bytes(length, "big")


def _elements(data: bytes) -> list[tuple[int, bytes]]:
    """The elements of a DER sequence: their tags and contents."""
    found, at = [], 0
    while at < len(data):
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            count = length & 0x7F
            length = int.from_bytes(data[at : at + count], "big")
            at += count
        found.append((tag, data[at : at + length]))
        at += length
    return found
