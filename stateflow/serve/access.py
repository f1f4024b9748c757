"""Who may read what: bearer tokens, and the states that each token may read.

A tokens file is TOML with one table per token. The name of the table is for people and logs:

    [dashboard]
    sha256 = "5994471abb01112afcc18159f6cc74b4f511b99806da59b3caf5a9c173cacfc5"   # or token = "..."
    rights = ["orders/balance/total", "orders/*/*"]                                # job/operator/state
"""

from __future__ import annotations

import hashlib
import hmac
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from stateflow.errors import NotFoundError, UsageError

_SHORTEST = 16
_HASH = re.compile(r"[0-9a-fA-F]{64}\Z")


@dataclass(frozen=True, slots=True)
class Right:
    """Three patterns. Each may have `*` and `?`."""

    job: str
    operator: str
    state: str

    def allows(self, job: str, operator: str, state: str) -> bool:
        return (
            fnmatchcase(job, self.job)
            and fnmatchcase(operator, self.operator)
            and fnmatchcase(state, self.state)
        )


@dataclass(frozen=True, slots=True)
class Grant:
    """One token and its rights. Only the token's hash is in memory."""

    name: str
    digest: bytes = field(repr=False)
    rights: tuple[Right, ...]

    def allows(self, job: str, operator: str, state: str) -> bool:
        return any(right.allows(job, operator, state) for right in self.rights)

    def allows_job(self, job: str) -> bool:
        """Whether a right names the job. It may have no state that the right names."""
        return any(fnmatchcase(job, right.job) for right in self.rights)


class Access:
    """All tokens of a server."""

    def __init__(self, grants: Sequence[Grant]) -> None:
        self._grants = tuple(grants)

    def grant_of(self, authorization: str | None) -> Grant | None:
        """The grant of the token in an `Authorization` header; None for an unknown token."""
        scheme, _, token = (authorization or "").partition(" ")
        digest = _digest(token.strip())
        match = None
        # Compares with every token, so that the time it takes does not tell how close a guess came.
        for grant in self._grants:
            if hmac.compare_digest(grant.digest, digest):
                match = grant
        return match if scheme.lower() == "bearer" else None


def single(token: str) -> Access:
    """One token that may read every queryable state."""
    return Access([Grant("generated", _digest(token), (Right("*", "*", "*"),))])


def from_file(path: Path) -> Access:
    """The tokens and rights in a tokens file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotFoundError(f"the tokens file {path} does not exist: check --tokens") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        # The message does not repeat the parser's error, which may quote a line with a token.
        raise UsageError(
            f"the tokens file {path} cannot be read as TOML ({type(error).__name__}{_line(error)}): it has one table for each "
            "token, [name] with sha256 and rights under it"
        ) from None
    if not content:
        raise UsageError(f"the tokens file {path} has no token: write one table for each")
    grants = [_grant(path, name, entry) for name, entry in content.items()]
    digests = [grant.digest for grant in grants]
    for number, grant in enumerate(grants):
        if grant.digest in digests[:number]:
            raise UsageError(
                f"the tokens file {path} has one token twice, the second time as [{grant.name}]: remove one"
            )
    return Access(grants)


def _line(error: Exception) -> str:
    found = re.search(r"at line (\d+)", str(error))
    return f", line {found[1]}" if found else ""


def _grant(path: Path, name: str, entry: Any) -> Grant:
    def wrong(what: str) -> UsageError:
        return UsageError(f"the tokens file {path}, [{name}]: {what}")

    if not isinstance(entry, dict):
        raise wrong("this is not a table: write [name], then sha256 (or token) and rights under it")
    unknown = sorted(set(entry) - {"sha256", "token", "rights"})
    if unknown:
        raise wrong(f"{unknown[0]} is unknown here: use sha256 (or token) and rights")
    digest, token, rights = entry.get("sha256"), entry.get("token"), entry.get("rights")
    if (digest is None) == (token is None):
        raise wrong("give either sha256 or token")
    if token is not None and (not isinstance(token, str) or len(token) < _SHORTEST or token != token.strip()):
        raise wrong(f"a token has at least {_SHORTEST} characters, none of them a space at its ends")
    if digest is not None and (not isinstance(digest, str) or not _HASH.match(digest)):
        raise wrong("sha256 is the token's hash, 64 hexadecimal digits")
    if not isinstance(rights, list) or not rights:
        raise wrong('rights is a list of job/operator/state, such as ["orders/*/*"]')
    return Grant(
        name,
        bytes.fromhex(digest) if digest is not None else _digest(str(token)),
        tuple(_right(right, wrong) for right in rights),
    )


def _right(text: Any, wrong: Any) -> Right:
    parts = text.split("/") if isinstance(text, str) else []
    if len(parts) != 3 or not all(parts):
        raise wrong(f"the right {text!r} is not job/operator/state, such as orders/balance/* or orders/*/*")
    return Right(*parts)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


__all__ = ["Access", "Grant", "Right", "from_file", "single"]
