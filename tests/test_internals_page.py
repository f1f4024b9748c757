"""`docs/spark-internals.md` says what the code says."""

from __future__ import annotations

from scripts import internals_page


def test_the_page_has_the_entries_of_the_code() -> None:
    assert internals_page.PAGE.read_text(encoding="utf-8") == internals_page.page(), (
        "run: python scripts/internals_page.py"
    )


def test_every_entry_says_what_it_is_for_and_rests_on_a_name() -> None:
    entries = [entry for found in internals_page.entries().values() for entry in found]
    assert not [entry.function for entry in entries if not entry.purpose or not entry.names]
