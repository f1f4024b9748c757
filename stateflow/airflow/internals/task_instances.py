"""What a running task knows of itself beyond Airflow's public protocol of a task instance."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def code_revision(ti: Any, file: Path) -> str:
    """`BUNDLE@VERSION` of the DAG bundle that the file came with; empty where the bundle has no versions, or the file is no
    part of it."""
    bundle: Any = getattr(ti, "bundle_instance", None)
    if bundle is None or not bundle.version:
        return ""
    try:
        inside = file.resolve().is_relative_to(Path(bundle.path).resolve())
    except (AttributeError, OSError, TypeError):
        return ""
    return f"{bundle.name}@{bundle.version}" if inside else ""
