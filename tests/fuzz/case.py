"""One fuzzed input: a few changes of objects that are whole. As JSON it is a file of the corpus.

A change names its object (`of`) and says what to do with it:

- `at` and `put`: sets a node of its JSON. `at` and `drop`: removes it. The header gets the checksum of the new text.
- `cut`: the body ends after so many bytes. `flip`: so many of its bytes, from a place on, become others.
- `gone`: there is no such object. `twin`: it has the body of another one.
- `link`: on a disk, a symbolic link to a place beside the root takes its place.

With `sealed`, whatever names a changed file gets its new size and checksums, as whoever forges a savepoint would do.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

CORPUS = Path(__file__).parent / "corpus"
Change = dict[str, Any]
HUGE = {
    "!deep": lambda n: "[" * n + "]" * n,
    "!open": lambda n: "[" * n,
    "!digits": lambda n: "9" * n,
    "!long": lambda n: json.dumps("x" * n),
    "!many": lambda n: "[" + ",".join(["0"] * n) + "]",
    "!keys": lambda n: "{" + ",".join(f'"{i}":{i}' for i in range(n)) + "}",
    "!half": lambda n: '"\\ud800"',
    "!nan": lambda n: "NaN",
}
"""Values that a corpus names, and does not spell out: a list of such a word and a number."""


@dataclass(frozen=True)
class Case:
    """What is done (`verb`) with which input."""

    verb: str
    changes: list[Change] = field(default_factory=list)
    seed: int = 0
    """What the verb chooses by."""
    text: str = ""
    """What a decoder of texts is given."""
    raw: str = ""
    """What a decoder of bytes is given, in hex."""

    def dump(self) -> str:
        return json.dumps(vars(self), sort_keys=True) + "\n"

    @classmethod
    def load(cls, text: str) -> Case:
        return cls(**json.loads(text))


def corpus(verbs: Mapping[str, Any]) -> list[Path]:
    """The kept inputs of these verbs: each once broke something, or reaches what few inputs reach."""
    return [path for path in sorted(CORPUS.glob("*.json")) if json.loads(path.read_text())["verb"] in verbs]


def document(body: bytes) -> Any:
    """The JSON of a record's body; None when it is no record."""
    if not body.startswith(b"stateflow "):
        return None
    try:
        return json.loads(body.partition(b"\n")[2])
    except (ValueError, RecursionError):
        return None


def nodes(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all nodes of a document."""
    yield at
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from nodes(inner, (*at, name))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from nodes(inner, (*at, number))


def framed(text: bytes) -> bytes:
    return b"stateflow 1 %s %d\n%s\n" % (xxhash.xxh3_64_hexdigest(text).encode(), len(text), text)


def text_of(value: Any) -> bytes:
    """The document as JSON, with its named values spelled out."""
    huge: list[str] = []

    def plain(node: Any) -> Any:
        if isinstance(node, list):
            if len(node) == 2 and isinstance(node[0], str) and node[0] in HUGE and isinstance(node[1], int):
                huge.append(HUGE[node[0]](node[1]))
                return f"!huge{len(huge) - 1}!"
            return [plain(each) for each in node]
        if isinstance(node, dict):
            return {name: plain(each) for name, each in node.items()}
        return node

    text = json.dumps(plain(value), separators=(",", ":"))
    for number, spelled in enumerate(huge):
        text = text.replace(f'"!huge{number}!"', spelled)
    return text.encode(errors="replace")


def applied(objects: Mapping[str, bytes], changes: list[Change]) -> tuple[dict[str, bytes], dict[str, str]]:
    """The objects with these changes, and the symbolic links among them. A change that does not apply changes nothing."""
    result = dict(objects)
    documents: dict[str, Any] = {}
    links: dict[str, str] = {}
    resealed: list[str] = []
    for change in changes:
        path = change["of"]
        if "link" in change:
            links[path] = change["link"]
            continue
        if path not in result:
            if "body" in change:
                result[path] = bytes.fromhex(change["body"])
            continue
        if "at" in change:
            known = documents.get(path) if path in documents else document(result[path])
            if known is not None:
                documents[path] = edited(known, change["at"], change)
            continue
        result[path] = changed_body(result, path, change)
        documents.pop(path, None)
        if change.get("gone"):
            del result[path]
        elif change.get("sealed"):
            resealed.append(path)
    for path in set(resealed) & result.keys():
        for name, body in result.items():
            known = documents[name] if name in documents else document(body) if names(body, path) else None
            if known is not None:
                documents[name] = sealed(known, path.partition("/")[2], result[path])
    for path, known in documents.items():
        if path in result:
            result[path] = framed(text_of(known))
    return result, links


def names(body: bytes, path: str) -> bool:
    return body.startswith(b"stateflow ") and path.partition("/")[2].encode() in body


def changed_body(objects: Mapping[str, bytes], path: str, change: Change) -> bytes:
    body = objects[path]
    if "body" in change:
        return bytes.fromhex(change["body"])
    if "twin" in change:
        return objects.get(change["twin"], body)
    if "cut" in change:
        return body[: change["cut"]]
    if "flip" in change and body:
        at, length, value = change["flip"]
        at %= len(body)
        return body[:at] + bytes([value % 256]) * min(length, len(body) - at) + body[at + length :]
    return body


def edited(value: Any, at: list[str | int], change: Change) -> Any:
    """The document with one node put or dropped; it shares what did not change."""
    if not at:
        return change.get("put")
    first, rest = at[0], at[1:]
    if isinstance(value, dict) and isinstance(first, str):
        result = dict(value)
        if not rest and "drop" in change:
            result.pop(first, None)
        elif rest and first not in value:
            return value
        else:
            result[first] = edited(value.get(first), rest, change)
        return result
    if isinstance(value, list) and isinstance(first, int) and value:
        items = list(value)
        first %= len(items)
        if not rest and "drop" in change:
            del items[first]
        else:
            items[first] = edited(items[first], rest, change)
        return items
    return value


def sealed(value: Any, path: str, body: bytes) -> Any:
    """The document in which every reference to a file says what the file is now; files in the record (`data`) too."""
    if isinstance(value, list):
        return [sealed(each, path, body) for each in value]
    if not isinstance(value, dict):
        return value
    result = {name: sealed(each, path, body) for name, each in value.items()}
    if result.get("path") == path and "offset" not in result and "xxh3" in result:
        result |= {"size": len(body), "xxh3": xxhash.xxh3_64_hexdigest(body)}
        if "sha256" in result:
            result["sha256"] = base64.b64encode(hashlib.sha256(body).digest()).decode()
    return result
