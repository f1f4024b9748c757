"""Tells templates, which Airflow renders when the task runs, from values that a DAG file gives. Pure."""

from __future__ import annotations


def is_template(text: str) -> bool:
    return "{{" in text or "{%" in text
