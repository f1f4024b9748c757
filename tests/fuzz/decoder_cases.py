"""Inputs of the decoders as Hypothesis makes them: bytes, texts, and whole values with a stretch of them replaced."""

from __future__ import annotations

from hypothesis import strategies as st

from stateflow.state.values.schema import schema_of
from tests.fuzz.case import Case
from tests.fuzz.decoders import BODIES, COLUMNS, MIXED, VALUES
from tests.fuzz.generated import TEXTS, cases
from tests.fuzz.scene import base

SEEDS = st.integers(0, 1 << 16)
SCHEMAS = (*(schema_of(hint) for hint, _ in VALUES), COLUMNS, MIXED, "custom:x:1")
PARTS = (
    *"<>{}:,?= ", "list<", "tuple<", "optional<", "map<", "union<", "struct A{", "namedtuple A{", "enum E<", "literal<",
    "int", "str", "null", "a:", "a?:", "class:", "1", "'a'", "columns{", ",...>", "b'\\xff'", "A=1", "struct A", "__init__:",
)  # fmt: skip
OFFSETS = (
    '{"sourceVersion":1,"reservoirId":"r","reservoirVersion":3,"index":-1,"isStartingVersion":false}',
    '{"logOffset":7}',
    '{"topic":{"0":12,"1":7}}',
)


@st.composite
def changed(draw: st.DrawFn, texts: tuple[str, ...]) -> str:
    """One of the texts, with a stretch of it replaced."""
    text = draw(st.sampled_from(texts))
    at = draw(st.integers(0, len(text)))
    end = draw(st.integers(at, min(len(text), at + 12)))
    put = draw(st.one_of(st.sampled_from(TEXTS), st.sampled_from(PARTS), st.text(max_size=8)))
    return text[:at] + put + text[end:]


SCHEMA_TEXTS = st.one_of(
    changed(SCHEMAS),
    st.lists(st.sampled_from(PARTS), max_size=12).map("".join),
    st.tuples(st.sampled_from(PARTS), st.integers(1, 2_000)).map(lambda made: made[0] * made[1]),
    st.sampled_from(SCHEMAS),
)
RAW = st.binary(max_size=60).map(bytes.hex)
FLIPS = st.lists(
    st.tuples(st.integers(0, 200), st.sampled_from((1, 1, 2, 8)), st.integers(0, 255)).map(
        lambda f: {"flip": list(f)}
    ),
    max_size=3,
)
LINE = b'{"id":7,"kind":"checkpoint","status":"COMPLETED","state_size":12,"metrics":{}}\n'
STRATEGIES: dict[str, st.SearchStrategy[Case]] = {
    "bodies": cases(
        base().objects, ["bodies"], chosen=lambda path: path in [name for name, _ in BODIES], at_most=3
    ).flatmap(
        lambda case: st.integers(0, len(BODIES) - 1).map(
            lambda seed: Case(
                "bodies", case.changes, next((n for n, (p, _) in enumerate(BODIES) if case.changes and p == case.changes[0]["of"]), seed)
            )
        )
    ),
    "segments": st.builds(
        lambda text, raw: Case("segments", text=text, raw=raw),
        st.sampled_from(("c00000001-3-0ab0d78ef24c5b6e.jsonl", "c1.jsonl", "x")),
        st.one_of(RAW, changed((LINE.decode() * 2,)).map(lambda text: text.encode(errors="replace").hex())),
    ),
    "offsets": st.builds(lambda text: Case("offsets", text=text), st.one_of(st.sampled_from(TEXTS), changed(OFFSETS))),
    "paths": st.builds(
        lambda text: Case("paths", text=text),
        st.one_of(st.text(max_size=30), st.sampled_from(TEXTS), changed(tuple(base().objects))),
    ),
    "entries": st.builds(lambda seed, raw: Case("entries", seed=seed, raw=raw), SEEDS, RAW),
    "keys": st.builds(
        lambda seed, raw, text: Case("keys", seed=seed, raw=raw, text=text),
        SEEDS, RAW, st.one_of(st.sampled_from(TEXTS), st.text(max_size=12), changed(('[1,"a"]', "2026-01-01", "1,a", "1.5"))),
    ),
    "values": st.builds(lambda seed, flips, raw: Case("values", flips, seed, raw=raw), SEEDS, FLIPS, RAW),
    "schemas": st.builds(lambda seed, text, raw: Case("schemas", seed=seed, text=text, raw=raw), SEEDS, SCHEMA_TEXTS, RAW),
}  # fmt: skip
