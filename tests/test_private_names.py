"""What has no public name stays in its room: that of other projects in `internals`, the project's own where it is defined."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import delta.tables
import pyspark
import pyspark.sql
import pyspark.sql.datasource
import pyspark.sql.functions
import pyspark.sql.streaming
import pyspark.sql.types
import pytest
from pyspark.sql.conf import RuntimeConfig

from scripts import rooms
from scripts.rooms import PACKAGE
from tests.parsed import nodes, tree

MODULES = rooms.modules()
INTERNALS = {"stateflow.internals", "stateflow.serve.internals"}
PUBLIC = {
    "pyspark",
    "pyspark.errors",
    "pyspark.sql",
    "pyspark.sql.datasource",
    "pyspark.sql.functions",
    "pyspark.sql.streaming",
    "pyspark.sql.types",
    "delta.tables",
}
"""The modules that the references of PySpark and Delta name."""
NAMEDTUPLES = {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}
"""Public in spite of their underscore."""
OWN = {"self", "cls"}


PLUGIN = sorted(Path("plugins").rglob("*.py"))
PUBLIC_AIRFLOW = {"airflow.configuration", "airflow.plugins_manager", "airflow.sdk"}
"""The modules of Airflow's public interface that the plugin needs."""


def outside() -> dict[str, Path]:
    """The modules that may use public names only."""
    return {
        name: path
        for name, path in MODULES.items()
        if name not in INTERNALS and "internals" not in path.relative_to(PACKAGE).parts
    }


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMEDTUPLES


def defined(path: Path) -> set[str]:
    """Private names that a file's classes give to their objects, or that it defines itself."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and of_own(node):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)  # __slots__, and setattr on a frozen dataclass
    return {name for name in found if private(name)}


def of_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in OWN


PYTHONS = {("os", "_exit"), ("atexit", "_run_exitfuncs"), ("threading", "_threading_atexits")}
"""Of Python itself: the first is documented; the others are what it calls at its own end, which a fork has to skip."""


def reads(source: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each private attribute of something else than the object itself, also by `getattr`."""
    for node in ast.walk(source):
        if (
            isinstance(node, ast.Attribute)
            and private(node.attr)
            and not of_own(node)
            and not of_super(node)
            and (getattr(node.value, "id", ""), node.attr) not in PYTHONS
        ):
            yield node.lineno, node.attr
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "hasattr", "setattr")
            and isinstance(node.args[1], ast.Constant)
            and private(str(node.args[1].value))
            and not (isinstance(node.args[0], ast.Name) and node.args[0].id in OWN)
        ):
            yield node.lineno, str(node.args[1].value)


def of_super(node: ast.Attribute) -> bool:
    call = node.value
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "super"
        and not call.args
    )


@cache
def defined_in_room(room: str) -> frozenset[str]:
    return frozenset(
        name
        for module, path in MODULES.items()
        if rooms.room_of(module, path) == room
        for name in defined(path)
    )


def test_private_attributes_are_read_in_their_own_room() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} reads {name}"
        for module, path in outside().items()
        for line, name in reads(tree(path))
        if name not in defined_in_room(rooms.room_of(module, path))
    ]
    assert not wrong


def at_run_time(source: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that are for types only."""
    yield source
    for child in ast.iter_child_nodes(source):
        if not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield from at_run_time(child)


def modules_imported(source: ast.AST) -> Iterator[tuple[int, str]]:
    for node in at_run_time(source):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                # `from pyspark import daemon` names a module, too.
                inner = f"{node.module}.{alias.name}"
                yield node.lineno, inner if _is_module(inner) else node.module


@cache
def _is_module(name: str) -> bool:
    base = Path(pyspark.__file__).parents[1].joinpath(*name.split("."))
    return name.startswith("pyspark.") and (base.with_suffix(".py").is_file() or base.is_dir())


def test_private_modules_of_spark_and_py4j_are_imported_in_internals_only() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} imports {module}"
        for path in outside().values()
        for line, module in modules_imported(tree(path))
        if module.split(".")[0] in ("pyspark", "py4j", "delta") and module not in PUBLIC
    ]
    assert not wrong


def test_the_plugin_takes_airflow_s_other_modules_from_its_internals() -> None:
    others = [path for path in PLUGIN if path.name != "internals.py"]
    assert len(others) > 10
    assert not [
        f"{path}:{line} imports {module}"
        for path in others
        for line, module in modules_imported(tree(path))
        if module.split(".")[0] == "airflow" and module not in PUBLIC_AIRFLOW
    ]


def test_the_plugin_reads_private_attributes_of_its_own_only() -> None:
    own = {name for path in PLUGIN for name in defined(path)}
    assert not [
        f"{path}:{line} reads {name}"
        for path in PLUGIN
        if path.name != "internals.py"
        for line, name in reads(tree(path))
        if name not in own
    ]


def java_like(source: ast.AST) -> Iterator[tuple[int, str]]:
    """Calls of methods that are named as in Java: what is no method of PySpark is one of an object of the JVM."""
    for node in ast.walk(source):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if (
                name != name.lower()
                and name[0].islower()
                and "_" not in name
                and name not in names_of_pyspark()
            ):
                yield node.lineno, name


@cache
def names_of_pyspark() -> frozenset[str]:
    """Every attribute of the classes in the public modules, and the standard library's few in this style."""
    public = (
        pyspark, pyspark.sql, pyspark.sql.datasource, pyspark.sql.functions, pyspark.sql.streaming, pyspark.sql.types,
        delta.tables,
    )  # fmt: skip
    found = {"getLogger", *(name for module in public for name in dir(module))}
    for module in public:
        for name in dir(module):
            if isinstance(kind := getattr(module, name), type):
                found |= set(dir(kind))
    found |= set(dir(pyspark.sql.SparkSession.Builder)) | set(dir(RuntimeConfig))
    return frozenset(found)


def test_objects_of_the_jvm_are_called_in_internals_only() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} calls {name}"
        for path in outside().values()
        if path.relative_to(PACKAGE).parts[0] == "spark"
        for line, name in java_like(tree(path))
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("frame._jdf.queryExecution()", "_jdf"),
        ("getattr(spark, '_jvm').java", "_jvm"),
        ("def f(engine): return engine._handlers", "_handlers"),
    ],
)
def test_a_private_read_would_be_noticed(text: str, name: str) -> None:
    assert [found for _, found in reads(ast.parse(text))] == [name]


@pytest.mark.parametrize("text", ["self._jdf", "super()._close()", "row._asdict()", "cls.__name__"])
def test_an_objects_own_attributes_may_be_read(text: str) -> None:
    assert not list(reads(ast.parse(text)))


def test_a_private_module_would_be_noticed() -> None:
    source = "from pyspark import daemon\nimport py4j.protocol\nfrom pyspark.sql.pandas.types import to_arrow_schema\n"
    found = {module for _, module in modules_imported(ast.parse(source))}
    assert found == {"pyspark.daemon", "py4j.protocol", "pyspark.sql.pandas.types"}
    assert not found & PUBLIC


def test_a_module_of_airflow_would_be_noticed() -> None:
    source = (
        "from airflow.models.dag import DagModel\nimport airflow.utils.session\nfrom airflow.sdk import DAG\n"
    )
    found = {module for _, module in modules_imported(ast.parse(source))}
    assert found - PUBLIC_AIRFLOW == {"airflow.models.dag", "airflow.utils.session"}


def test_a_call_of_a_java_object_would_be_noticed() -> None:
    source = ast.parse(
        "leaf.relation.v1Relation().createSource(path)\nframe.mapInArrow(f, s).withColumn('a', b)"
    )
    assert sorted(name for _, name in java_like(source)) == ["createSource", "v1Relation"]


INSIDES = re.compile(r"\borg\.apache\.spark\.sql\.(catalyst|execution|classic|connect)\b")
"""Packages of Spark that promise nothing."""


def named_insides(path: Path) -> list[str]:
    return [
        f"{path.relative_to(PACKAGE)}:{node.lineno} names {node.value}"
        for node in nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and INSIDES.search(node.value)
    ]


def test_no_text_outside_internals_names_a_class_of_the_insides_of_spark() -> None:
    """An option may name a class: its version has to be looked at, too."""
    assert not [named for path in outside().values() for named in named_insides(path)]
    assert named_insides(PACKAGE / "spark" / "internals" / "plans.py")
