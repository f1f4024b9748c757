"""What a pipeline function may declare; nothing here opens Spark."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pytest

import stateflow as sf
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import KeyedNode
from stateflow.pipelines.parameters import as_texts
from stateflow.pipelines.pipeline import Pipeline
from tests.refusals.refusal import refused


@dataclass
class Order:
    user: int
    amount: float
    ts: datetime


@dataclass
class Name:
    user: int
    first: str
    last: str


@dataclass
class Total:
    user: int
    total: float


class Sum(sf.KeyedProcess[int, Order, Total]):
    total = sf.ValueState(float, default=0.0)


class Joined(sf.ConnectedProcess[int, Name, Order, Total]):
    total = sf.ValueState(float, default=0.0)


LARGE = sf.output("large", Order)
LATE = sf.output("late", Order)
SOURCE = sf.delta("/somewhere")
NOWHERE = sf.delta("/nowhere")


def built(declare: Callable[[Flow], Any], **parameters: Any) -> Flow:
    return Pipeline("test", declare).build(parameters)


def unbuilt(declare: Callable[[Flow], Any], *named: str) -> None:
    with refused(sf.UsageError, *named) as caught:
        built(declare)
    assert "\n" not in str(caught.value)


def source(flow: Flow, uid: str = "in", **options: Any) -> sf.Stream:
    return flow.source(uid, SOURCE, Order, **options)


def test_a_pipeline_is_declared_without_opening_anything() -> None:
    def declare(flow: Flow) -> None:
        orders = source(flow, event_time="ts", watermark="10 minutes", late=LATE)
        totals = orders.key_by("user", order_by=["ts", "-amount"]).process("sum", Sum, outputs=[LARGE])
        totals.append("totals", NOWHERE)
        totals.side(LARGE).append("large", sf.delta("/nowhere_large"))
        orders.side(LATE).append("late", sf.delta("/nowhere_late"))

    flow = built(declare)
    assert [n.uid for n in flow.sources] == ["in"]
    assert [n.uid for n in flow.operators] == ["sum"]
    assert [n.uid for n in flow.sinks] == ["totals", "large", "late"]
    assert flow.sources[0].watermark == 600_000_000
    [operator] = flow.operators
    assert operator.output is not None
    assert operator.output.names == ("user", "total")
    assert {stream.output for _, stream in flow.consumers(operator)} == {"", "large"}


@pytest.mark.parametrize("kind", ["source", "operator", "sink"])
def test_two_uids_alike_of_one_kind_are_refused(kind: str) -> None:
    def declare(flow: Flow) -> None:
        orders = source(flow)
        totals = orders.key_by("user").process("total", Sum)
        for _ in range(2):
            if kind == "source":
                source(flow, "same")
            elif kind == "operator":
                orders.key_by("user").process("same", Sum)
            else:
                totals.append("same", NOWHERE)

    unbuilt(declare, f"{kind} uid 'same' is taken", "such as 'same-2'")


def test_a_source_an_operator_and_a_sink_may_have_one_name() -> None:
    flow = built(
        lambda f: source(f, "orders").key_by("user").process("orders", Sum).append("orders", NOWHERE)
    )
    assert [node.named for node in flow.nodes] == ["source 'orders'", "operator 'orders'", "sink 'orders'"]


@pytest.mark.parametrize("uid", ["", "a/b", "..", "a b", "é", "x" * 500])
def test_a_uid_that_could_not_be_a_name_is_refused(uid: str) -> None:
    with pytest.raises(sf.UsageError):
        built(lambda flow: source(flow, uid).append("out", NOWHERE))


def test_two_states_alike_are_refused() -> None:
    class Base(sf.KeyedProcess[int, Order, Total]):
        total = sf.ValueState(float)

    class Derived(Base):
        total = sf.ValueState(int)  # type: ignore[assignment]

    unbuilt(
        lambda f: source(f).key_by("user").process("x", Derived), "state 'total'", "both Base and Derived"
    )

    one = sf.ValueState(float)
    with pytest.raises((sf.UsageError, RuntimeError)) as caught:
        type("Twice", (sf.KeyedProcess,), {"a": one, "b": one})
    told = caught.value.__cause__ or caught.value
    assert "is the same declaration as 'a'" in str(told)


def test_an_alias_that_is_a_state_itself_is_refused() -> None:
    class Aliased(sf.KeyedProcess[int, Order, Total]):
        old = sf.ValueState(float)
        new = sf.ValueState(float, aliases=["old"])

    unbuilt(lambda f: source(f).key_by("user").process("x", Aliased), "alias 'old', which is a state itself")


def test_a_timer_without_a_handler_is_refused() -> None:
    class Timed(sf.KeyedProcess[int, Order, Total]):
        idle = sf.Timer("event")

    unbuilt(
        lambda f: source(f).key_by("user").process("x", Timed),
        "timer 'idle' of Timed has no handler",
        "@idle.fires",
    )
    with refused(sf.UsageError, "'event' or 'processing'", "'lunch'"):
        sf.Timer("lunch")


@pytest.mark.parametrize("default", [[], {}, set(), bytearray()])
def test_a_mutable_default_is_a_factory(default: Any) -> None:
    with refused(sf.UsageError, "shared by all keys", "a factory, such as default="):
        sf.ValueState(list[int], default=default)


SHARED: list[int] = []
NESTED = {"seen": SHARED}
ONE = Total(1, 1.0)


@pytest.mark.parametrize(
    ("factory", "shared"),
    [
        (lambda: SHARED, "the same list every time"),
        (lambda: ONE, "the same Total every time"),
        (lambda: (1, SHARED), "the same list inside of each tuple"),
        (NESTED.copy, "the same list inside of each dict"),
    ],
)
def test_a_factory_that_gives_all_keys_one_object_is_refused(factory: Any, shared: str) -> None:
    class Default(sf.KeyedProcess[int, Order, Total]):
        held = sf.ValueState(Any, default=factory)

    class Create(sf.KeyedProcess[int, Order, Total]):
        held = sf.AggregatingState(Any, create=factory, add=lambda held, value: held, result=len)

    for made in (Default, Create):
        unbuilt(
            lambda f, made=made: source(f).key_by("user").process("x", made),
            f"state 'held' of {made.__name__}: {made.__name__.lower()} gives",
            f"{shared}",
            f"{made.__name__.lower()}=list",
        )
    with refused(sf.UsageError, "sf.aggregate('amount')", "create gives", shared):
        sf.aggregate("amount", create=factory, add=max, merge=max, state=list[int])


@pytest.mark.parametrize(
    "factory",
    [
        list,
        dict,
        int,
        str,
        tuple,
        lambda: None,
        lambda: (1, "a"),
        lambda: [[0, 0]],
        lambda: Total(1, 1.0),
        lambda: 1 / 0,
    ],
)
def test_a_factory_that_makes_new_values_or_unchangeable_ones_is_taken(factory: Any) -> None:
    class Default(sf.KeyedProcess[int, Order, Total]):
        held = sf.ValueState(Any, default=factory)

    assert Default.declarations().states["held"].default is factory  # type: ignore[attr-defined]
    sf.aggregate("amount", create=factory, add=max, merge=max, state=list[int])


@pytest.mark.parametrize(
    "ttl", ["7 parsecs", "soon", "", "7", "-", "1 month", "10m", 86400, "nan s", "inf s"]
)
def test_a_duration_that_is_none_is_refused(ttl: Any) -> None:
    with refused(sf.UsageError, f"ttl: {ttl!r} is", "a number and a unit", "hours, days and weeks"):
        sf.ValueState(int, ttl=ttl)


@pytest.mark.parametrize(
    ("ttl", "micros"),
    [
        ("7 days", 604_800_000_000),
        ("1 hour", 3_600_000_000),
        ("1.5 s", 1_500_000),
        ("1.001 s", 1_001_000),
        ("4.35 ms", 4_350),
        ("2 microseconds", 2),
        (timedelta(minutes=1), 60_000_000),
    ],
)
def test_durations(ttl: Any, micros: int) -> None:
    assert sf.ValueState(int, ttl=ttl).ttl == micros


@pytest.mark.parametrize("length", ["1.5 microseconds", "0.0001 ms", "1.0000001 s"])
def test_a_duration_of_a_part_of_a_microsecond_is_refused(length: str) -> None:
    for call in (lambda: sf.ValueState(int, ttl=length), lambda: sf.tumbling(length)):
        with refused(sf.UsageError, repr(length), "no whole number of microseconds", "round it"):
            call()


def test_keys_are_columns_that_can_be_keys() -> None:
    unbuilt(lambda f: source(f).key_by(), "at least one column")
    unbuilt(lambda f: source(f).key_by("usr"), "key_by: Order has no column 'usr'", "user, amount, ts")
    unbuilt(lambda f: source(f).key_by("user", order_by="when"), "has no column 'when'")
    unbuilt(lambda f: source(f).key_by("user", order_by="-when"), "has no column 'when'")
    unbuilt(lambda f: source(f).key_by("user", order_by="ts desc"), "key_by: write '-ts'", "'ts desc'")
    unbuilt(lambda f: source(f).key_by("user", order_by="ts ASC"), "key_by: write 'ts'", "'ts ASC'")
    unbuilt(
        lambda f: source(f).append(sf.delta("x"), "x"),
        "sink uid",
        "is no text",
        "the uid first, such as 'totals'",
    )
    unbuilt(lambda f: source(f).key_by("amount"), "column 'amount' is a double", "use bool")
    unbuilt(
        lambda f: f.source("fine", SOURCE, "rate decimal(38,19)").key_by("rate"),
        "column 'rate' is a decimal(38,19)",
        "decimal(38,18)",
        "a string",
    )


def test_connected_inputs_have_the_same_key() -> None:
    def columns(flow: Flow) -> None:
        names = flow.source("names", SOURCE, Name)
        source(flow).key_by("user").connect(names.key_by("user", "last")).process("x", Joined)

    def types(flow: Flow) -> None:
        names = flow.source("names", SOURCE, Name)
        names.key_by("first").connect(source(flow).key_by("user")).process("x", Joined)

    unbuilt(columns, "1 key columns", "the right one 2")
    unbuilt(types, "keyed by first (string)", "by user (bigint)")


@pytest.mark.parametrize("watermark", ["-10 minutes", timedelta(minutes=-10)])
def test_a_watermark_below_zero_is_refused(watermark: Any) -> None:
    unbuilt(
        lambda f: source(f, event_time="ts", watermark=watermark),
        "source 'in': watermark is",
        "-",
        "zero or more, such as '5 minutes'",
    )


def test_event_time_needs_a_watermark_and_a_time() -> None:
    unbuilt(lambda f: source(f, event_time="ts"), "both event_time and watermark")
    unbuilt(lambda f: source(f, watermark="1 hour"), "both event_time and watermark")
    unbuilt(
        lambda f: source(f, event_time="when", watermark="1 hour"),
        "no event-time column 'when'",
        "when: datetime",
        ": ts",
    )
    unbuilt(lambda f: source(f, event_time="user", watermark="1 hour"), "'user' is a bigint", "datetime")
    unbuilt(lambda f: source(f, late=LATE), "late rows", "event_time and watermark")
    unbuilt(
        lambda f: source(f, event_time="ts", watermark="1 hour", late="late"),  # type: ignore[arg-type]
        "late is 'late'",
        "sf.output('late', Order)",
    )
    unbuilt(
        lambda f: source(f, event_time="ts", watermark="soon"),
        "source 'in': watermark",
        "'soon'",
        "not a duration",
    )


def test_processes_are_what_the_operator_takes() -> None:
    unbuilt(lambda f: source(f).key_by("user").process("x", Joined), "Joined is not a KeyedProcess")  # type: ignore[arg-type]
    keyed = lambda f: source(f).key_by("user")  # noqa: E731
    unbuilt(
        lambda f: keyed(f).process("x", Sum, on_error="ignore"),
        "on_error is 'fail' or 'dead_letter'",
        "'ignore'",
    )
    for threshold in (-1, "5", True, 2.5):
        unbuilt(
            lambda f, n=threshold: keyed(f).process(
                "x", Sum, on_error="dead_letter", dead_letter_threshold=n
            ),
            "operator 'x'",
            f"dead_letter_threshold is {threshold!r}",
            "at least 0",
        )
    unbuilt(
        lambda f: keyed(f).process("x", Sum, dead_letter_threshold=5),
        "operator 'x'",
        "dead_letter_threshold has no effect",
        "on_error='dead_letter'",
    )
    unbuilt(lambda f: keyed(f).process("x", Sum, outputs=[LARGE, LARGE]), "two side outputs have one name")
    unbuilt(lambda f: keyed(f).process("x", Sum).side("large"), "no side output 'large'", "in outputs")
    unbuilt(lambda f: source(f).side("late"), "source 'in'", "no side output 'late'", "ask the operator")
    unbuilt(
        lambda f: keyed(f).process("x", Sum).dead_letters,
        "no side output 'dead_letters'",
        "on_error='dead_letter'",
    )
    unbuilt(lambda f: keyed(f).process("x", 5), "5 is not a KeyedProcess")  # type: ignore[arg-type]


def test_an_output_type_is_needed() -> None:
    class Untyped(sf.KeyedProcess[Any, Any, Any]):
        pass

    class Silent(sf.KeyedProcess[int, Order, None]):
        pass

    unbuilt(lambda f: source(f).key_by("user").process("x", Untyped), "say what Untyped puts out")
    unbuilt(lambda f: source(f).key_by("user").process("x", Silent), "say what Silent puts out")
    flow = built(
        lambda f: source(f).key_by("user").process("x", Untyped, output="n long").append("o", NOWHERE)
    )
    [node] = flow.operators
    assert isinstance(node, KeyedNode)
    assert node.output is not None
    assert node.output.names == ("n",)


def test_a_side_output_may_not_take_a_name_that_is_taken() -> None:
    letters = sf.output("dead_letters", Order)
    unbuilt(lambda f: source(f).key_by("user").process("x", Sum, outputs=[letters], on_error="dead_letter"),
            "side output cannot be called 'dead_letters'")  # fmt: skip


def test_a_pipeline_that_does_nothing_is_refused() -> None:
    unbuilt(lambda flow: None, "has no source")
    unbuilt(lambda flow: source(flow), "does nothing")


class Waits(sf.KeyedProcess[int, Order, Total]):
    silence = sf.Timer()

    def process(self, key: int, rows: Any, ctx: sf.Context) -> None:
        self.silence.set(datetime(2026, 1, 1, tzinfo=UTC))

    @silence.fires
    def over(self, key: int, at: datetime, ctx: sf.Context) -> Total:
        return Total(key, 0.0)


class Keeps(sf.KeyedProcess[int, Order, Total]):
    seen = sf.ValueState(bool, default=False, ttl=sf.ttl("1 day", time="event"))

    def process(self, key: int, rows: Any, ctx: sf.Context) -> None:
        self.seen.value = True


def test_what_waits_for_event_time_needs_a_source_that_has_it() -> None:
    unbuilt(
        lambda f: source(f).key_by("user").process("x", Waits),
        "operator 'x': timer 'silence'",
        "no source has any",
        'take sf.Timer("processing")',
    )
    unbuilt(
        lambda f: source(f).key_by("user").process("x", Keeps),
        "operator 'x'",
        "the ttl of state 'seen'",
        'take time="processing"',
    )
    timed = {"event_time": "ts", "watermark": "1 minute"}
    for process in (Waits, Keeps):
        built(lambda f, p=process: source(f, **timed).key_by("user").process("x", p))


# ---- parameters ----


def accept(
    flow: Flow, *, path: str, count: int = 1, rate: float = 0.5, dry: bool = False, free: Any = None
) -> None:
    found.append((path, count, rate, dry, free))
    source(flow).append("out", NOWHERE)


found: list[tuple[Any, ...]] = []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"path": "p"}, ("p", 1, 0.5, False, None)),
        ({"path": "p", "count": "7", "rate": "1e3", "dry": "yes", "free": "x"}, ("p", 7, 1000.0, True, "x")),
        ({"path": "p", "count": 7, "dry": True}, ("p", 7, 0.5, True, None)),
        ({"path": "p", "dry": "False"}, ("p", 1, 0.5, False, None)),
    ],
)
def test_parameters_given_as_text_are_converted(given: dict[str, Any], expected: tuple[Any, ...]) -> None:
    built(accept, **given)
    assert found[-1] == expected


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, ("needs parameter 'path'", "-p path=VALUE")),
        ({"path": "p", "cuont": 1}, ("no parameter 'cuont'", "count, dry, free, path, rate")),
        ({"path": "p", "count": "many"}, ("parameter 'count' is 'many'", "no int")),
        ({"path": "p", "dry": "perhaps"}, ("parameter 'dry' is 'perhaps'", "no bool")),
    ],
)
def test_parameters_that_do_not_fit_are_told(given: dict[str, Any], named: tuple[str, ...]) -> None:
    with refused(sf.UsageError, *named):
        built(accept, **given)


def test_a_parameter_may_be_annotated_with_more_than_a_plain_type() -> None:
    def declare(flow: Flow, *, count: int | None = None, path: str = "x") -> None:
        found.append((count, path))
        source(flow).append("out", NOWHERE)

    built(declare, count="7")
    assert found[-1] == (7, "x")
    built(declare, count=None)
    assert found[-1] == (None, "x")


class Mode(enum.Enum):
    FAST = "fast"


class Unsaid:
    pass


def test_text_becomes_what_a_parameter_is_annotated_as_and_back() -> None:
    def declare(
        flow: Flow,
        *,
        day: date,
        since: datetime,
        rate: Decimal,
        countries: list[str],
        limits: dict[str, int] | None = None,
        mode: Mode = Mode.FAST,
        kind: Literal["a", "b"] = "a",
        other: Unsaid | None = None,
        folder: Path = Path(),
    ) -> None:
        found.append((day, since, rate, countries, limits, mode, kind, other, folder))
        source(flow).append("out", NOWHERE)

    typed = {
        "day": date(2026, 1, 2),
        "since": datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
        "rate": Decimal("1.50"),
        "countries": ["a b", "c,d"],
        "limits": {"x": 1},
        "kind": "b",
    }
    texts = as_texts({**typed, "nothing": None})
    assert texts["countries"] == '["a b","c,d"]'
    assert texts["since"] == "2026-01-02T03:04:00+00:00"
    assert "nothing" not in texts
    built(declare, **texts, mode="fast", other="as it is", folder="/a b")
    assert found[-1] == (
        *(typed[n] for n in ("day", "since", "rate", "countries", "limits")),
        Mode.FAST,
        "b",
        "as it is",
        Path("/a b"),
    )
    for name, wrong, wanted in (
        ("day", "yesterday", ("date",)),
        ("countries", "a, b", ("list[str]", "as JSON, such as '[1, 2]'")),
        ("limits", '{"x": "many"}', ("dict[str, int]", """as JSON, such as '{"a": 1}'""")),
        ("kind", "c", ("Literal",)),
    ):
        with refused(sf.UsageError, f"parameter '{name}' is", *wanted):
            built(declare, **{**texts, name: wrong})


def test_a_process_class_may_have_abstract_methods_of_its_own() -> None:
    class Scored(sf.KeyedProcess[int, Order, Total], ABC):
        @abstractmethod
        def score(self, order: Order) -> float: ...

    class Amounts(Scored):
        def score(self, order: Order) -> float:
            return order.amount

    assert Amounts().score(Order(1, 2.0, datetime(2026, 1, 1, tzinfo=UTC))) == 2.0
    with pytest.raises(TypeError, match="score"):
        Scored()  # type: ignore[abstract]
