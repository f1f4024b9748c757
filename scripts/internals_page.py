"""docs/spark-internals.md: what the library uses without a public name, from the entries of the code. `python scripts/internals_page.py`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from stateflow.internals import ENTRIES, SEEN, Internal
from stateflow.spark.internals import words

PROJECT = Path(__file__).resolve().parents[1]
PAGE = PROJECT / "docs" / "spark-internals.md"
FILES = [
    *sorted((PROJECT / "stateflow/spark/internals").glob("[!_]*.py")),
    PROJECT / "stateflow/serve/internals.py",
]
BEGIN, END = "<!-- internals: python scripts/internals_page.py -->", "<!-- end of internals -->"


def entries() -> dict[str, list[Internal]]:
    """By module, in the order of its file."""
    modules = [".".join(file.relative_to(PROJECT).with_suffix("").parts) for file in FILES if file.exists()]
    for module in modules:
        import_module(module)
    return {
        module: [entry for entry in ENTRIES.values() if entry.function.startswith(f"{module}.")]
        for module in modules
    }


def lines() -> Iterator[str]:
    for module, found in entries().items():
        if not found:
            continue
        yield f"## `{module.replace('.', '/')}.py`"
        yield ""
        yield str(import_module(module).__doc__).split("\n\n")[0].strip()
        yield ""
        for entry in found:
            yield f"**`{entry.function.removeprefix(f'{module}.')}`** ({', '.join(entry.owners)})."
            yield f"{entry.purpose}"
            yield ""
            yield from (f"- `{name}`" for name in entry.names)
            if entry.where_missing:
                yield f"- Where one is missing: {entry.where_missing}."
            if entry.seen_in != SEEN:
                yield f"- Seen in {', '.join(entry.seen_in)}."
            yield ""


def understood() -> Iterator[str]:
    yield "## `stateflow/spark/internals/words.py`"
    yield ""
    yield str(words.__doc__)
    yield ""
    for each in words.all_words():
        yield f"{each.purpose}"
        yield ""
        yield from (f"- `{text}`" for text in each.texts)
        yield f"- In other words: {each.where_other}. `{each.held_by}` then fails."
        yield ""


def page() -> str:
    """The page with the entries as they are in the code."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return (
        "\n".join(
            [
                f"{before}{BEGIN}",
                "",
                f"Seen in {', '.join(SEEN)}, if an entry does not say otherwise.",
                "",
                *lines(),
                *understood(),
                END,
            ]
        )
        + rest.partition(END)[2]
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
