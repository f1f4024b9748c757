"""What the page about Airflow shows is parsed by Airflow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "airflow.md"
BLOCKS = {
    text.count("\n", 0, block.start(1)) + 1: block[1]
    for text in [PAGE.read_text(encoding="utf-8")]
    for block in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
}


def test_the_page_has_examples() -> None:
    assert BLOCKS


@pytest.mark.parametrize("line", list(BLOCKS))
def test_an_example_is_a_dag_file_that_airflow_can_store(line: int, tmp_path: Path) -> None:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.serialization.serialized_objects import DagSerialization

    file = tmp_path / "documented.py"
    # As many empty lines above, so that a failure names the page's own line.
    file.write_text("\n" * (line - 1) + BLOCKS[line], encoding="utf-8")
    bag = DagBag(dag_folder=str(file))
    assert bag.import_errors == {}
    assert bag.dags
    for dag in bag.dags.values():
        assert DagSerialization.from_dict(DagSerialization.to_dict(dag)).dag_id == dag.dag_id
