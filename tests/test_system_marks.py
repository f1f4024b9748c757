"""`make test-system` imports the files alone that say that they have a test for it: a mark from elsewhere would be lost."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
MARKS = re.compile(r"mark\.system|import[^\n]*\b(NEEDS_\w+|AZURE|HDFS)\b")


def test_marks_of_tests_for_servers_stand_where_the_collection_looks_for_them() -> None:
    helpers = [path for path in TESTS.rglob("*.py") if not path.name.startswith(("test_", "conftest"))]
    found = {path.name for path in helpers if MARKS.search(path.read_text(encoding="utf-8"))}
    assert found == {"servers.py"}
    assert not MARKS.search((TESTS / "conftest.py").read_text(encoding="utf-8").replace('"mark.system"', ""))
