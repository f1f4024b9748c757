"""From the URL of a root in HDFS, and its storage options, to the NameNodes to ask and who asks."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from stateflow.errors import UsageError
from stateflow.masking import without_secrets
from stateflow.storage.store import checked_path
from stateflow.storage.webhdfs import HdfsAccess, HdfsEndpoint

SCHEMES = ("hdfs", "webhdfs", "swebhdfs")
PREFIX = "hdfs_"
"""Of every option that is meant for HDFS. Other options are for other stores, such as that of a savepoint."""
_OPTIONS = (
    "endpoint",
    "nameservice",
    "user",
    "delegation_token",
    "kerberos",
    "ca_file",
    "connect_timeout",
    "timeout",
)
_HTTP, _HTTPS = 9870, 9871
"""The ports of a NameNode that nobody has changed."""
_HOST = re.compile(r"[A-Za-z0-9._-]+\Z|\[[0-9A-Fa-f:.]+\]\Z")


@dataclass(frozen=True, slots=True)
class HdfsRoot:
    url: str
    folder: str
    """The path in HDFS, with a `/` at both ends."""
    endpoints: tuple[HdfsEndpoint, ...]
    access: HdfsAccess


def hdfs_root(url: str, options: Mapping[str, str], env: Mapping[str, str] = os.environ) -> HdfsRoot:
    """UsageError when URL or options are none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise UsageError(f"{without_secrets(url)!r} is not a root: write hdfs://namenode/path") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UsageError(
            f"the root {parts.scheme}://... has more than a host and a path: give user and token as storage options"
        )
    if not host or not _HOST.match(host) or re.search(r"[\s\x00-\x1f]", url):
        raise UsageError(
            f"{without_secrets(url)!r} is not a root: write hdfs://namenode/path, or webhdfs://namenode:9870/path"
        )
    folder = parts.path.strip("/")
    if folder:
        checked_path(folder)
    known = {name.removeprefix(PREFIX): value for name, value in options.items() if name.startswith(PREFIX)}
    if unknown := sorted(known.keys() - set(_OPTIONS)):
        raise UsageError(
            f"{PREFIX}{unknown[0]} is no storage option of {url}: there are {', '.join(PREFIX + name for name in _OPTIONS)}"
        )
    endpoints = _endpoints(url, known, parts.scheme, host, port)
    return HdfsRoot(url.rstrip("/"), f"/{folder}/" if folder else "/", endpoints, _access(url, known, env))


def _endpoints(
    url: str, options: Mapping[str, str], scheme: str, host: str, port: int | None
) -> tuple[HdfsEndpoint, ...]:
    """Whom to ask. The addresses of the options count only for their own HDFS: a savepoint may be in another one than the root."""
    given = options.get("endpoint", "")
    secure = scheme == "swebhdfs"
    # The port of an hdfs:// URL is not the one of HTTP.
    named = None if scheme == "hdfs" else port
    own = HdfsEndpoint(host, named or (_HTTPS if secure else _HTTP), secure)
    found = _addresses(url, given) if given else (own,)
    if scheme == "hdfs":
        if host not in (options.get("nameservice", "").lower(), *(each.host for each in found)):
            raise UsageError(
                f"{PREFIX}endpoint is not known to be that of {host!r}, which {url} is in: if it is, set {PREFIX}nameservice to {host}, else name the "
                "NameNode, as in swebhdfs://namenode:9871/path"
            )
        return found
    if own not in found:
        return (own,)
    if secure and not all(endpoint.secure for endpoint in found):
        raise UsageError(
            f"{PREFIX}endpoint of {url} has an address without TLS: write https://, or webhdfs:// as root"
        )
    return found


def _addresses(url: str, given: str) -> tuple[HdfsEndpoint, ...]:
    found = []
    for each in given.split(","):
        try:
            parts = urlsplit(each.strip())
            secure, named = parts.scheme == "https", parts.port
        except ValueError:
            parts, named = urlsplit(""), None
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.path.strip("/")
            or "@" in parts.netloc
        ):
            raise UsageError(
                f"{PREFIX}endpoint of {url} is no list of addresses: write https://namenode:9871, or several with commas"
            )
        found.append(HdfsEndpoint(parts.hostname, named or (443 if secure else 80), secure))
    return tuple(found)


def _access(url: str, options: Mapping[str, str], env: Mapping[str, str]) -> HdfsAccess:
    kerberos = options.get("kerberos", "false").lower()
    if kerberos not in ("true", "false"):
        raise UsageError(f"{PREFIX}kerberos of {url} is neither true nor false")
    token = options.get("delegation_token", "")
    if token and kerberos == "true":
        raise UsageError(
            f"{PREFIX}delegation_token and {PREFIX}kerberos of {url} exclude each other: give one of them"
        )
    user = options.get("user") or env.get("HADOOP_USER_NAME") or _user()
    seconds = {
        name: _seconds(url, name, options[name]) for name in ("connect_timeout", "timeout") if name in options
    }
    return HdfsAccess(user, token, kerberos == "true", options.get("ca_file", ""), **seconds)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return ""


def _seconds(url: str, name: str, value: str) -> float:
    match = re.fullmatch(r"(\d{1,6}(?:\.\d+)?) ?s?", value.strip())
    if not match or not float(match[1]):
        raise UsageError(f"{PREFIX}{name} of {url} is no number of seconds: write 30s")
    return float(match[1])
