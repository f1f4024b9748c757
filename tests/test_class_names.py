"""A class name stands once in the library, so that a reader who meets it knows which class it is."""

from __future__ import annotations

import ast
from collections import defaultdict

from scripts import rooms
from scripts.rooms import PACKAGE
from tests.parsed import nodes

TWICE = {
    "Batch": "of a run, and the body of a request, which names a schema of the server's API",
    "OperatorState": "users declare it, and records keep it: a name of the API, and one of the format",
    "OperatorListState": "the same",
    "_Run": "private: of a job, and of sorted rows",
}
"""Names that stand twice, and why."""


def test_no_class_name_stands_twice() -> None:
    places = defaultdict(list)
    for path in rooms.modules().values():
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: found for name, found in places.items() if len(found) > 1 and name not in TWICE} == {}
    assert [name for name in TWICE if len(places[name]) != 2] == []
