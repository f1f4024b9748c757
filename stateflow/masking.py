"""What people may not read: the values of parameters and settings that are called like a secret, and secrets inside values.

There is one list of names. Spark's own redaction, of settings that it logs or shows, is made from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_PARTS = (
    "password", "passwd", "passphrase", "passcode", "pwd", "secret", "token", "api key", "access key", "private key",
    "account key", "shared key", "signing key", "encryption key", "signature", "authorization", "bearer", "credential",
    "jaas", "connection string", "webhook", "fernet", "auth header",
)  # fmt: skip
"""Wherever they stand in a name, with or without something between their words."""
_WORDS = ("conn", "cookie", "cookies", "cred", "creds", "dsn", "pass", "pat", "pw", "sas", "sig")
"""Only as words of a name: as parts of longer words these mean something else."""
_KEYS_OF_ROWS = (
    "bucket", "business", "cache", "candidate", "child", "cluster", "clustering", "composite", "customer", "date", "dedup",
    "dedupe", "delivery", "distribution", "event", "foreign", "group", "grouping", "hash", "idempotency", "index", "item", "join",
    "lookup", "merge", "message", "natural", "object", "order", "ordering", "parent", "partition", "primary", "product", "public",
    "record", "routing", "row", "s3", "shard", "sort", "source", "state", "surrogate", "target", "unique", "user",
)  # fmt: skip
"""Words before `key` in names of columns and paths. Behind any other word, at the end of a name, a key is a secret."""


def _name_pattern() -> str:
    """For Python and for Java."""
    parts = "|".join(part.replace(" ", r"[\W_]*") for part in _PARTS)
    # A word ends where its letters end, or where camelCase begins the next one.
    words = "|".join(
        rf"(?<![A-Za-z]){word}(?![a-z])|{word.capitalize()}(?![a-z])|(?<![A-Z]){word.upper()}(?![a-z]|[A-Z](?![a-z]))"
        for word in _WORDS
    )
    of_rows = "|".join(_KEYS_OF_ROWS)
    key = rf"(?<![A-Za-z0-9])(?!(?i:[a-z0-9]*(?:{of_rows})[_-]?key)\d*$)[A-Za-z0-9]+(?:[_-](?i:key)|(?<=[a-z0-9])Key)\d*$"
    auth = r"(?<![A-Za-z])auth$|Auth$|(?<![A-Z])AUTH$"
    return rf"(?i:{parts})|{words}|{auth}|{key}"


SECRET_NAME = _name_pattern()
"""A regular expression for names of secrets."""
# A password may hold any character that nobody has quoted, but a number and a slash are a port and a path.
_PASSWORD = r'(://[^\s/?#:@"]*:)(?!\d{1,5}(?:[/?#,\]]|$))(?:(?!://)[^\s"])*@'
_ORACLE = r"(\bjdbc:oracle:\w{1,16}:[^/\s@]{1,256}/)(?!/)[^\s@]{1,1024}@"
"""The password's length has a bound, because it is looked for behind every such beginning."""
_WEBHOOK = (
    r"(https://(?:hooks\.(?:slack|zapier)\.com|(?:\w+\.)?discord(?:app)?\.com/api/webhooks|[\w.-]+\.webhook\.office\.com|"
    r"outlook\.office(?:365)?\.com/webhook|api\.telegram\.org(?=/bot))/)[^\s\"'<>]+"
)
"""Who knows such an address may write to it."""
SECRET_URL = f"{_PASSWORD}|{_ORACLE}|{_WEBHOOK}"
"""A regular expression for URLs with a password."""
_SECRET_NAME = re.compile(SECRET_NAME)
# A run of a name's characters is looked at once, from its beginning: a long line without a space would take minutes.
_USER = re.compile(r'(?<![A-Za-z0-9+.-])([A-Za-z0-9+.-]++)://[^\s/?#":]+(?::(?:x-oauth-basic)?)?@')
_NAMES_SOMEBODY = re.compile(
    r"abfss?|wasbs?|adl|az|azure|s3[an]?|gs|(s|web|sweb)?hdfs|(git\+)?ssh|sftp|postgres(ql)?|mysql|mariadb|mongodb(\+srv)?",
    re.IGNORECASE,
)
"""Schemes in which what stands alone before the `@` is the name of a user or a container, and no token."""
_ASSIGNMENT = re.compile(r"""(?<![\w.\-])(?P<name>[\w.\-]++)["']?\s*+[=:]\s*+""")
_VALUE = re.compile(
    r"""
    \*\*\*(?=[\s&;,"'}\])]|\Z)  # it is masked already
    | "(?:[^"\\]|\\.|"")*" | '(?:[^'\\]|\\.|'')*' | ["'][^\n]*  # a quote is escaped or doubled; none at the end of a text that was cut
    | \{\{[^}]*\}\} | \{(?:[^}]|\}\})*\}  # a template, or braces as JDBC has them
    | (?:(?i:bearer|basic|token|digest|negotiate|apikey)\s+)?
      (?:[^\s&;,"'] | ,(?=[^\s&;,"'])(?![\w.\-]+["']?\s*[=:]))+  # a comma ends it if the next name follows
    """,
    re.VERBOSE | re.DOTALL,
)
_UNCLOSED = re.compile(r"\{[^\n]*")
"""Braces of a text that was cut."""
_PROSE = re.compile(r"(?P<words>[A-Za-z]+(?:\s+[A-Za-z]+)?)(?=[\s.,;:)]|$)")
"""Words, as no password is."""
_CLASS = re.compile(r"(?:[A-Z][a-z0-9]+){2,}")
_BEARER = re.compile(r"\b((?i:bearer)\s+)(?=[A-Za-z]*[\d._~+/=-])[\w.~+/=-]{8,}")
"""A token without a name, as in a header. One of letters alone is a word."""


def masked(name: str, value: str) -> str:
    """The value for people to read: `***` if the parameter is called like a secret, else without the secrets inside it."""
    return "***" if is_secret(name) else without_secrets(value)


def all_masked(values: Mapping[str, str]) -> dict[str, str]:
    return {name: masked(name, value) for name, value in values.items()}


def is_secret(name: str) -> bool:
    """Whether a parameter or setting is called like a secret."""
    return _SECRET_NAME.search(name) is not None


def hidden(text: str, settings: Mapping[str, str]) -> str:
    """A text of others, such as an error, without the values of settings that are called like secrets."""
    secrets = {value for name, value in settings.items() if value and is_secret(name)}
    # Java's login modules have several in one setting: user="..." password="...".
    secrets |= {each for value in secrets for each in re.findall(r'="((?:[^"\\]|\\.)+)"', value)}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def without_secrets(text: str) -> str:
    """The text without passwords and tokens of URLs, and without values that a name in it calls secret (`?sig=...`)."""
    text = re.sub(_WEBHOOK, r"\1***", text)
    text = re.sub(_PASSWORD, r"\1***@", _USER.sub(_without_user, text))
    return _BEARER.sub(r"\1***", _without_assigned(re.sub(_ORACLE, r"\1***@", text)))


def _without_user(match: re.Match[str]) -> str:
    return match[0] if _NAMES_SOMEBODY.fullmatch(match[1]) else f"{match[1]}://***@"


def _without_assigned(text: str) -> str:
    parts, at, last_brace = [], 0, text.rfind("}")
    for assignment in _ASSIGNMENT.finditer(text):
        if assignment.start() < at or not is_secret(assignment["name"]):
            continue
        begin = assignment.end()
        if _is_prose(assignment, text):
            continue
        # Behind the last brace nothing looks for one: each of many assignments would look through the rest of the text.
        unclosed = _UNCLOSED.match(text, begin) if begin > last_brace else None
        if value := unclosed or _VALUE.match(text, begin):
            parts.append(f"{text[at:begin]}***")
            at = value.end()
    return "".join(parts) + text[at:]


def _is_prose(assignment: re.Match[str], text: str) -> bool:
    """Whether a sentence goes on behind what it is about: a name in quotes, as in `source 'tokens': it has no column`, or the class of an
    error, as in `ExpiredToken: The provided token has expired`."""
    said = _PROSE.match(text, assignment.end())
    if said is None or re.search(r":\s", assignment[0]) is None:
        return False
    name, is_class = assignment["name"], _CLASS.fullmatch(assignment["name"]) is not None
    if " " not in said["words"]:
        return is_class and name.endswith(("Error", "Exception"))
    return is_class or assignment[0].removeprefix(name)[0] in "\"'"
