"""Texts in statements of SQL."""

from __future__ import annotations


def text_in_quotes(text: str) -> str:
    r"""A text where a statement takes no expression, or where people read it. Spark 4.0 would read a quote that is written as two as the
    end of one text and the start of another."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
