"""Inputs as Hypothesis makes them: it knows which objects there are, which nodes they have, and which values hurt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.case import Case, Change, document, nodes

NUMBERS = (
    -(1 << 63), -(10**19), -1, 0, 1, 2, 127, 128, 255, 256, 32_767, 32_768, (1 << 31) - 1, 1 << 31, 1 << 53,
    (1 << 53) + 1, (1 << 63) - 1, 1 << 63, 1 << 64, 10**30, -0.0, 0.5, 1e308, -1e308,
)  # fmt: skip
TEXTS = (
    "", ".", "..", "../x", "../../canary/secret", "/etc/passwd", "/canary", "a/../b", "a//b", "x\n", "\0", "a\0b", "-",
    "{}", "[]", "null", "0", "-1", "9" * 5000, "*", "`x`", "| a | b |", "[x](http://x)", "\x1b[2J", "\u202e", "ä", "💥",
    "memory://canary", "memory://fuzz", "memory://", "file:///canary", "s3://", "s3://b/x", "az://c@other/x",
    "abfs://c@other.dfs.core.windows.net/x", "http://127.0.0.1:9/x", "://", "s3://user:pw@b/x?y#z", "file:", "gs://[::1",
    "int", "float", "str", "bytes", "list[int]", "dict[str,int]", "list[list[list[int]]]", "tuple[int,str]", "custom:x:1",
    "struct X{}", "union[int,str]", "literal[1]", "enum", "rocksdb", "memory", "value", "map", "list", "timer", "columns",
    "reducing", "aggregating", "broadcast", "union", "canonical", "native", "restore", "fence", "erase", "rescale",
    "delta", "file", "kafka", "other", "event", "processing", "abandoned", "committed", "delta_append", "memory_sink",
    '{"logOffset":"x"}', '{"logOffset":1e999}', '{"reservoirId":1}', '{"t":{"0":1,"-1":2}}', '{"t":{"²":1}}',
    '{"t":{"0":' + "9" * 5000 + "}}", "-", "orders", "balance", "total", "CURRENT", "MANIFEST-000004", "000007.sst",
    "OPTIONS-000007", "entries.bin", "latest", "checkpoint:4", "tag:v1",
)  # fmt: skip
SHAPES: tuple[Any, ...] = (
    None, True, False, [], {}, [[]], [{}], {"a": 1}, [None], ["!deep", 500], ["!deep", 100_000], ["!open", 100_000],
    ["!digits", 400], ["!digits", 5000], ["!long", 100_000], ["!many", 30_000], ["!keys", 5_000], ["!half", 1], ["!nan", 1],
)  # fmt: skip

WORDS = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(TEXTS),
    st.sampled_from(SHAPES),
    st.integers(-(1 << 65), 1 << 65),
    st.text(max_size=30),
    st.floats(allow_nan=False, allow_infinity=False),
)


def cases(
    objects: Mapping[str, bytes],
    verbs: Sequence[str],
    *,
    chosen: Callable[[str], bool] = lambda path: True,
    links: bool = False,
    at_most: int = 4,
) -> st.SearchStrategy[Case]:
    """Up to so many changes of the objects that are `chosen`, and what to do with the result."""
    paths = [path for path in objects if chosen(path)]
    documents = {path: known for path in paths if (known := document(objects[path])) is not None}
    places = {path: [list(at) for at in nodes(known)] for path, known in documents.items()}
    known_values = st.sampled_from(
        [
            value
            for path, known in documents.items()
            for at in places[path]
            if _small(value := _node(known, at))
        ]
        or [None]
    )

    @st.composite
    def json_change(draw: st.DrawFn) -> Change:
        path = draw(st.sampled_from(list(documents)))
        at = draw(st.sampled_from(places[path]))
        if at and draw(st.integers(0, 9)) == 0:
            return {"of": path, "at": at, "drop": True}
        return {"of": path, "at": at, "put": draw(st.one_of(WORDS, known_values))}

    @st.composite
    def body_change(draw: st.DrawFn) -> Change:
        path = draw(st.sampled_from(paths))
        size = len(objects[path])
        kind = draw(st.sampled_from(("flip", "flip", "cut", "gone", "twin", "body")))
        if kind == "flip":
            flip = [
                draw(st.integers(0, max(0, size - 1))),
                draw(st.sampled_from((1, 1, 4, 64))),
                draw(st.integers(0, 255)),
            ]
            return {"of": path, "flip": flip, "sealed": draw(st.booleans())}
        if kind == "cut":
            return {"of": path, "cut": draw(st.integers(0, size)), "sealed": draw(st.booleans())}
        if kind == "twin":
            return {"of": path, "twin": draw(st.sampled_from(paths)), "sealed": draw(st.booleans())}
        if kind == "body":
            body = draw(st.one_of(st.binary(max_size=40), st.sampled_from(HEADS)))
            return {"of": path, "body": body.hex(), "sealed": draw(st.booleans())}
        return {"of": path, "gone": True}

    @st.composite
    def link(draw: st.DrawFn) -> Change:
        path = draw(st.sampled_from(paths))
        depth = draw(st.integers(0, path.count("/")))
        place = path if depth == 0 else path.rsplit("/", depth)[0]
        target = draw(
            st.sampled_from(("canary", "canary/secret", "canary/folder", "nowhere", "root", "savepoint"))
        )
        return {"of": place, "link": target}

    kinds = [json_change(), json_change(), json_change()] if documents else []
    if paths:
        kinds.append(body_change())
    if links:
        kinds.append(link())
    changes = st.lists(st.one_of(*kinds), max_size=at_most)
    return st.builds(Case, st.sampled_from(verbs), changes, st.integers(0, 1 << 16))


HEADS = (
    b"", b"\n", b"stateflow", b"stateflow 1 0 0\n", b"stateflow 2 x 3\n{}\n", b"stateflow 1 x " + b"9" * 14 + b"\n",
    b"stateflow 999999999999999 x 1\nx", b"\xff" * 40, b"PAR1" * 4,
)  # fmt: skip


def _node(value: Any, at: Sequence[str | int]) -> Any:
    for step in at:
        value = value[step]
    return value


def _small(value: Any) -> bool:
    return len(repr(value)) < 2_000
