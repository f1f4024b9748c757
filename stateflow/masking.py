"""What people may not read: the values of parameters and settings that are called like a secret, and passwords in URLs."""

from __future__ import annotations

import re
from collections.abc import Mapping


def masked(name: str, value: str) -> str:
    """The value for people to read: `***` if the parameter is called like a secret, else without passwords in URLs."""
    return "***" if is_secret(name) else _PASSWORD.sub(r"\1***@", value)


def all_masked(values: Mapping[str, str]) -> dict[str, str]:
    return {name: masked(name, value) for name, value in values.items()}


def is_secret(name: str) -> bool:
    """Whether a parameter or setting is called like a secret."""
    words = {word.lower() for word in _WORDS.findall(name)}
    joined = re.sub(r"[\W_]", "", name).lower()
    return bool(words & _SECRET_WORDS) or any(part in joined for part in _SECRET)


_SECRET = (
    "password", "passwd", "passphrase", "pwd", "secret", "token", "apikey", "accesskey", "privatekey", "accountkey",
    "authorization", "credential", "jaas", "connectionstring",
)  # fmt: skip
# As parts of longer words these mean something else.
_SECRET_WORDS = frozenset({"conn", "dsn", "pass", "sas"})
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_PASSWORD = re.compile(r"(://[^\s/?#:@]*:)[^\s/?#]*@")
