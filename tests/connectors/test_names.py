"""What connectors are written with: a frozen list, and all that the library's own import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import stateflow.connectors
from stateflow.connectors import UsageError, required
from tests.refusals.refusal import refused

ROOM = Path(stateflow.connectors.__file__).parent
OWN = sorted(path for path in ROOM.glob("*/") if path.name != "__pycache__")
FROZEN = """
BatchFunction Committed CommitRequest CorruptError DELETE Declarable DeliveryMode DisagreementError FencedError Field FileRef Files GETS_NEW_ROWS
IncompatibleError Misfits NotFoundError PARTITION Position Prepared READERS Reading RecentTexts RowType Sink SinkKind SinkSlot Source Staged Stager
StateflowError Store TaskWriter UPSERT UnavailableError UpsertOptions UsageError arrow_type as_json as_of_today canonical check_as_json check_connection check_reader_options check_upsert columns_to_read
create_once fields_of first_duplicate for_reading former_names from_json hidden inside_of is_secret names_of
open_store parts_of_schema properties_of quoted require_columns required row_type staged_schema suggestion task_error text_in_sql trying_again upsert_kind value_as_json
"""


def test_the_names_are_these_and_each_is_there() -> None:
    assert sorted(stateflow.connectors.__all__) == sorted(FROZEN.split())
    for name in stateflow.connectors.__all__:
        assert getattr(stateflow.connectors, name) is not None
    assert not hasattr(stateflow.connectors, "Flow")


def test_type_checkers_see_the_very_same_names() -> None:
    source = (ROOM / "__init__.py").read_text(encoding="utf-8")
    imported = {
        alias.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stateflow")
        for alias in node.names
    }
    assert imported == set(stateflow.connectors.__all__)


@pytest.mark.parametrize("folder", OWN, ids=lambda path: path.name)
def test_a_connector_of_the_library_imports_nothing_else_of_it(folder: Path) -> None:
    own = f"stateflow.connectors.{folder.name}"
    wrong = []
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else []
            )
            wrong += [
                f"{file.name}:{node.lineno} imports {name}"
                for name in names
                if name.split(".")[0] == "stateflow"
                and name != "stateflow.connectors"
                and not f"{name}.".startswith(f"{own}.")
            ]
    assert not wrong


def test_importing_them_loads_nothing_heavy() -> None:
    heavy = "{'pyspark', 'pyarrow', 'numpy', 'psycopg', 'pyiceberg', 'confluent_kafka', 'obstore'}"
    script = (
        "import sys\nfrom stateflow.pipelines import offers, sink_kinds\n"
        "[offers.loaded(value) for value in sink_kinds.OURS.values()]\n"
        f"from stateflow.connectors import SinkKind\nprint(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_package_that_is_not_there_is_named_with_the_command_that_installs_it() -> None:
    with refused(UsageError, "sink 'x'", "the package nowhere", "pip install 'stateflow-spark[postgres]'"):
        required("nowhere.at_all", "postgres", "sink 'x'")
