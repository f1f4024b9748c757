"""What people may not read: the values of parameters and settings that are called like a secret, and secrets inside values.

There is one list of names. Spark's own redaction, of settings that it logs or shows, is made from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_PARTS = (
    "password", "passwd", "passphrase", "passcode", "pwd", "secret", "token", "api key", "access key", "private key",
    "account key", "shared key", "signing key", "encryption key", "signature", "authorization", "bearer", "credential",
    "jaas", "connection string",
)  # fmt: skip
"""Wherever they stand in a name, with or without something between their words."""
_WORDS = ("conn", "dsn", "pass", "sas", "sig")
"""Only as words of a name: as parts of longer words these mean something else."""


def _name_pattern() -> str:
    """For Python and for Java."""
    parts = "|".join(part.replace(" ", r"[\W_]*") for part in _PARTS)
    # A word ends where its letters end, or where camelCase begins the next one.
    words = "|".join(
        rf"(?<![A-Za-z]){word}(?![a-z])|{word.capitalize()}(?![a-z])|(?<![A-Z]){word.upper()}(?![a-z]|[A-Z](?![a-z]))"
        for word in _WORDS
    )
    return rf"(?i:{parts})|{words}"


SECRET_NAME = _name_pattern()
"""A regular expression for names of secrets."""
# A password may hold any character that nobody has quoted, but a number and a slash are a port and a path.
_PASSWORD = r'(://[^\s/?#:@"]*:)(?!\d{1,5}(?:[/?#,\]]|$))(?:(?!://)[^\s"])*@'
_ORACLE = r"(\bjdbc:oracle:\w+:[^/\s@]+/)(?!/)[^\s@]+@"
SECRET_URL = f"{_PASSWORD}|{_ORACLE}"
"""A regular expression for URLs with a password."""
_SECRET_NAME = re.compile(SECRET_NAME)
_USER = re.compile(r'\b([A-Za-z][A-Za-z0-9+.-]*)://[^\s/?#":]+(?::(?:x-oauth-basic)?)?@')
_NAMES_SOMEBODY = re.compile(
    r"abfss?|wasbs?|adl|az|azure|s3[an]?|gs|(s|web|sweb)?hdfs|(git\+)?ssh|sftp|postgres(ql)?|mysql|mariadb|mongodb(\+srv)?",
    re.IGNORECASE,
)
"""Schemes in which what stands alone before the `@` is the name of a user or a container, and no token."""
_ASSIGNMENT = re.compile(r"""(?P<name>[\w.\-]+)["']?\s*[=:]\s*""")
_VALUE = re.compile(r""""[^"]*"|'[^']*'|[^\s&;,"']+""")


def masked(name: str, value: str) -> str:
    """The value for people to read: `***` if the parameter is called like a secret, else without the secrets inside it."""
    return "***" if is_secret(name) else without_secrets(value)


def all_masked(values: Mapping[str, str]) -> dict[str, str]:
    return {name: masked(name, value) for name, value in values.items()}


def is_secret(name: str) -> bool:
    """Whether a parameter or setting is called like a secret."""
    return _SECRET_NAME.search(name) is not None


def without_secrets(text: str) -> str:
    """The text without passwords and tokens of URLs, and without values that a name in it calls secret (`?sig=...`)."""
    text = re.sub(_PASSWORD, r"\1***@", _USER.sub(_without_user, text))
    return _without_assigned(re.sub(_ORACLE, r"\1***@", text))


def _without_user(match: re.Match[str]) -> str:
    return match[0] if _NAMES_SOMEBODY.fullmatch(match[1]) else f"{match[1]}://***@"


def _without_assigned(text: str) -> str:
    parts, at = [], 0
    for assignment in _ASSIGNMENT.finditer(text):
        if assignment.start() < at or not is_secret(assignment["name"]):
            continue
        if value := _VALUE.match(text, assignment.end()):
            parts.append(f"{text[at : assignment.end()]}***")
            at = value.end()
    return "".join(parts) + text[at:]
