"""Classes of a pipeline's file arrive whole in a process that cannot import it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from stateflow.errors import UsageError
from stateflow.operators.binding import schemas
from stateflow.spark.session.shipping import by_value, packed, unpacked
from tests.refusals.refusal import refused

FILE = '''
from __future__ import annotations
import enum
from dataclasses import dataclass, field
from typing import NamedTuple
import msgspec

class Kind(enum.Enum):
    A = 1

class Point(msgspec.Struct, frozen=True, order=True):
    """A point."""
    x: int
    y: list[int] = []
    label: str | None = msgspec.field(default=None, name="l")
    def both(self): return Point(self.x + 1).x, self.y
    def __post_init__(self):
        if self.x < 0: raise ValueError("negative")

class Wider(Point, kw_only=True, tag="wide"):
    weight: float = 2.0

@dataclass
class Order:
    user: int
    point: Point | None = None
    many: list[Later] = field(default_factory=list)

@dataclass
class Later:
    kind: Kind = Kind.A

class Pair(NamedTuple):
    a: int
    order: Order | None = None

def made():
    return Order(1, Point(1, [2], "z"), [Later()])
'''


@pytest.fixture(params=[False, True], ids=["fresh", "seen by msgspec"])
def module(request: pytest.FixtureRequest) -> Any:
    module = ModuleType("a_pipeline_of_a_user")
    sys.modules[module.__name__] = module
    exec(compile(FILE, "pipeline.py", "exec"), vars(module))
    by_value([module])
    if request.param:
        for one in ("Order", "Later", "Point", "Wider", "Pair"):
            msgspec.msgpack.Decoder(getattr(module, one))
        assert "__msgspec_cache__" in vars(vars(module)["Order"])
    yield module
    del sys.modules[module.__name__]


def there(value: Any, code: str) -> str:
    """What `code` prints in another process, given `value` as `got`."""
    script = f"import msgspec\nfrom stateflow.spark.session.shipping import unpacked\ngot = unpacked({packed(value)!r})\n{code}"
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_values_of_nested_types_are_read_and_written_there(module: Any) -> None:
    code = """
order, Order, Pair = got
again = msgspec.msgpack.decode(msgspec.msgpack.encode(order), type=Order)
print(again == order, again.point.both(), again.many[0].kind.name, msgspec.msgpack.encode(again.point))
print(msgspec.convert([1, order], Pair).order == order)
"""
    printed = there((module.made(), module.Order, module.Pair), code)
    assert printed == r"True (2, [2]) A b'\x83\xa1x\x01\xa1y\x91\x02\xa1l\xa1z'" + "\nTrue"


def test_structs_keep_their_fields_defaults_order_and_rules(module: Any) -> None:
    code = """
Point, Wider = got
print(Point(1), Point(1, [3]), Wider(1, weight=3.0), Wider.__struct_config__.tag, Point.__struct_config__.frozen)
print(Point.__doc__, Point(1) < Point(2), Point(1).y is not Point(1).y, issubclass(Wider, Point))
for wrong in (lambda: Point(-1), lambda: Wider(1, [], None, 2.0)):
    try:
        wrong()
    except Exception as error:
        print(type(error).__name__)
"""
    assert there((module.Point, module.Wider), code).splitlines() == [
        "Point(x=1, y=[], label=None) Point(x=1, y=[3], label=None) Wider(x=1, y=[], label=None, weight=3.0) wide True",
        "A point. True True True",
        "ValueError",
        "TypeError",
    ]


def test_a_class_that_comes_twice_is_one_class(module: Any) -> None:
    one, other = unpacked(packed(module.Point)), unpacked(packed(module.Point))
    assert one is other


def test_what_cannot_be_sent_and_what_cannot_be_loaded_is_told() -> None:
    with refused(UsageError, "cannot be sent to the workers", "lock", "make it in open"):
        packed(threading.Lock())
    missing = packed(test_what_cannot_be_sent_and_what_cannot_be_loaded_is_told).replace(
        b"test_shipping", b"test_nothings"
    )
    with refused(UsageError, "cannot be loaded in a worker", "test_nothings", "--py-files"):
        unpacked(missing)


RELEASE = """
from __future__ import annotations
from dataclasses import dataclass
import stateflow as sf

@dataclass
class Old:
    n: int

@dataclass
class New:
    text: str

def to_new(old: Old) -> New:
    return New(str(old.n))

class Totals(sf.KeyedProcess[int, dict, dict]):
    total = sf.ValueState(New, migrate=to_new)
    elements = sf.OperatorListState(New, migrate=[to_new])
"""


def test_a_migrate_function_arrives_with_the_types_that_only_its_annotations_name() -> None:
    module = ModuleType("a_release_of_a_user")
    sys.modules[module.__name__] = module
    exec(compile(RELEASE, "pipeline.py", "exec"), vars(module))
    by_value([module])
    try:
        totals = vars(module)["Totals"]
        schemas(totals, "op")  # as every batch asks for them before it sends the operator
        read = (
            "from stateflow.operators.binding import type_of\n"
            "for name in ('total', 'elements'):\n"
            "    print(type_of(got, 'op', name).migrations[0].argument.schema)"
        )
        assert len(set(there(totals, read).splitlines())) == 1
    finally:
        del sys.modules[module.__name__]
