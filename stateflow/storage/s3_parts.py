"""Copies an object inside S3 part by part, for objects that one request may not copy: S3 moves the bytes, this process none.

The store's client has no such copy, and signs no request for others. So these few requests are signed here (AWS Signature Version 4),
with the keys of the storage options or of the environment. Where keys come from elsewhere, such as a role of the machine, or the client has a
proxy or certificates of its own, there is no such way.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Any
from urllib.parse import quote, urlsplit

PART = 256 << 20
"""Bytes of a part. S3 takes 5 MB to 5 GB, and 10,000 parts."""
_MOST_PARTS = 10_000
_THREADS = 8
_PATIENCE = 300
_TRIES = 3
_UNDERSTOOD = {
    "access_key_id", "secret_access_key", "session_token", "token", "region", "default_region", "endpoint", "endpoint_url", "bucket",
    "virtual_hosted_style_request", "conditional_put", "imdsv1_fallback", "unsigned_payload",
}  # fmt: skip
_CLIENT_UNDERSTOOD = {"allow_http", "connect_timeout", "read_timeout", "timeout", "http1_only", "user_agent"}


class PartsRefused(Exception):
    """S3 has not copied the object; nothing of the copy is left."""


@dataclass(frozen=True, slots=True, repr=False)
class S3Keys:
    """Where a bucket is, and with which keys it is reached."""

    url: str
    """Of the bucket."""
    region: str
    access: str
    secret: str
    token: str
    clock: Callable[[], float] = field(default=time.time, compare=False)


def keys_of(
    bucket: str, config: Mapping[str, Any], options: Mapping[str, str], env: Mapping[str, str] = os.environ
) -> S3Keys | None:
    """None where the store's client has settings that these requests would not have."""
    known = {str(name).lower().removeprefix("aws_"): str(value) for name, value in config.items()}
    client = {name for name in options if name.lower().removeprefix("aws_") not in known}
    if known.keys() - _UNDERSTOOD or client - _CLIENT_UNDERSTOOD - {"max_retries", "retry_timeout"}:
        return None
    if bucket.endswith("--x-s3"):
        return None  # S3 Express signs with keys of a session
    if env.get("AWS_ENDPOINT_URL_S3"):
        return None  # which versions of the client heed it differs, and keys go to no server that they are not for

    def of(*names: str) -> str:
        given = [known[name] for name in names if known.get(name)]
        return given[0] if given else next((v for n in names if (v := env.get(f"AWS_{n.upper()}"))), "")

    access, secret = of("access_key_id"), of("secret_access_key")
    if not access or not secret:
        return None
    region = of("region", "default_region") or "us-east-1"
    endpoint = of("endpoint", "endpoint_url").rstrip("/")
    hosted = known.get("virtual_hosted_style_request", "").lower() == "true"
    if not endpoint:
        url = (
            f"https://{bucket}.s3.{region}.amazonaws.com"
            if hosted
            else f"https://s3.{region}.amazonaws.com/{bucket}"
        )
    else:
        url = endpoint if hosted else f"{endpoint}/{bucket}"
    return S3Keys(url, region, access, secret, of("session_token", "token"))


def copy_by_parts(keys: S3Keys, bucket: str, source: str, target: str, size: int) -> None:
    """Copies an object of `size` bytes within its bucket. PartsRefused if S3 does not do it."""
    part = max(PART, -(-size // _MOST_PARTS))
    upload = _found("UploadId", _sent(keys, "POST", target, {"uploads": ""}))
    try:
        ranges = [(at, min(at + part, size) - 1) for at in range(0, size, part)]
        tags: dict[int, str] = {}

        def one(numbered: tuple[int, tuple[int, int]]) -> None:
            number, (first, last) = numbered
            answer = _sent(
                keys,
                "PUT",
                target,
                {"partNumber": str(number), "uploadId": upload},
                {
                    "x-amz-copy-source": quote(f"/{bucket}/{source}"),
                    "x-amz-copy-source-range": f"bytes={first}-{last}",
                },
            )
            tags[number] = _found("ETag", answer)

        with ThreadPoolExecutor(_THREADS, "stateflow-parts") as pool:
            # After a failure it begins no further part.
            list(pool.map(one, enumerate(ranges, 1)))
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{tags[number]}</ETag></Part>"
            for number in sorted(tags)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        _found("ETag", _sent(keys, "POST", target, {"uploadId": upload}, body=body))
    except BaseException:
        # Parts of an upload that nobody completes cost money, and no listing shows them.
        with suppress(PartsRefused):
            _sent(keys, "DELETE", target, {"uploadId": upload})
        raise


def signed(
    keys: S3Keys,
    method: str,
    key: str,
    query: Mapping[str, str],
    headers: Mapping[str, str],
    body: bytes,
    now: datetime,
) -> tuple[str, dict[str, str]]:
    """The URL of a request, and its headers with their signature."""
    address = urlsplit(f"{keys.url}/{quote(key, safe='/~')}")
    digest = hashlib.sha256(body).hexdigest()
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    signed_headers = {**headers, "host": address.netloc, "x-amz-content-sha256": digest, "x-amz-date": stamp}
    if keys.token:
        signed_headers["x-amz-security-token"] = keys.token
    names = ";".join(sorted(signed_headers))
    asked = "&".join(f"{quote(name, safe='~')}={quote(query[name], safe='~')}" for name in sorted(query))
    lines = "".join(f"{name}:{signed_headers[name]}\n" for name in sorted(signed_headers))
    request = "\n".join((method, address.path, asked, lines, names, digest))
    scope = f"{stamp[:8]}/{keys.region}/s3/aws4_request"
    text = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()))
    secret = f"AWS4{keys.secret}".encode()
    for word in scope.split("/"):
        secret = hmac.digest(secret, word.encode(), "sha256")
    signature = hmac.new(secret, text.encode(), "sha256").hexdigest()
    signed_headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.access}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return f"{address.scheme}://{address.netloc}{address.path}?{asked}", signed_headers


def _sent(
    keys: S3Keys,
    method: str,
    key: str,
    query: Mapping[str, str],
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> str:
    """The answer. Each of these requests may be sent again."""
    said = ""
    for _ in range(_TRIES):
        url, signed_headers = signed(
            keys, method, key, query, headers or {}, body, datetime.fromtimestamp(keys.clock(), UTC)
        )
        request = urllib.request.Request(
            url,
            data=body or None,
            method=method,
            headers={**signed_headers, "content-type": "application/xml"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
                text = str(answer.read(), "utf-8", "replace")
        except urllib.error.HTTPError as error:
            said = f"{error.code} {_code(error.read().decode('utf-8', 'replace'))}"
            if error.code < 500 and error.code != 429:
                break
            continue
        except (OSError, HTTPException) as error:
            said = str(error)
            continue
        # S3 begins its answer before a copy has ended, so that an error may stand in it.
        if not _code(text):
            return text
        said = _code(text)
    raise PartsRefused(said)


def _code(text: str) -> str:
    found = re.search(r"<Error>.*?<Code>(\w+)</Code>", text, re.DOTALL)
    return found[1] if found else ""


def _found(name: str, text: str) -> str:
    found = re.search(rf"<{name}>([^<]+)</{name}>", text)
    if found is None:
        raise PartsRefused(f"an answer without {name}")
    return found[1]
