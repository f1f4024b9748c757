"""Options of ready-made operators that change over existing state: what happens with each, in a table for all of them.

The page on changing state has the same table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, make_dataclass
from datetime import datetime
from typing import Any

import msgspec
import pytest

import stateflow as sf
from stateflow.compatibility.flows import check_flow, compare
from stateflow.compatibility.states import fixed_options, options_behind, resolve_states
from stateflow.errors import IncompatibleError
from stateflow.format.records import FileRef, OperatorState, Record, Shard
from stateflow.pipelines import top
from stateflow.pipelines.graph import KeyedNode
from stateflow.pipelines.ready import enrichment, joins, latest, window_process
from stateflow.pipelines.ready import operators as ready
from stateflow.pipelines.ready.operators import ReadyOperator
from stateflow.pipelines.streams import KeyedStream, Stream
from tests.compatibility.allowed import allowing
from tests.jobs.log import record
from tests.jobs.operators import operator_of
from tests.refusals.refusal import lacking, refused


@dataclass
class Sale:
    user: int
    shop: int
    sku: str
    amount: float
    price: float
    paid: bool
    ts: datetime
    at: datetime


@dataclass
class View:
    user: int
    page: str
    seen: datetime
    left: datetime


@dataclass
class Total:
    user: int
    n: float | None


@dataclass
class Totals:
    user: int
    n: float | None
    m: int


@dataclass
class PerWindow:
    user: int
    window_start: datetime
    n: float | None


@dataclass
class Pair:
    user: int
    sku: str
    page: str | None


@dataclass
class Wider(Pair):
    amount: float


@dataclass
class Answered:
    user: int
    name: str


class Code(sf.WindowProcess[int, Sale, Pair]):
    def process(self, key: int, window: Any, rows: list[Sale], ctx: Any) -> Iterable[Pair]:
        return ()


class OtherCode(Code):
    pass


def look_up(keys: list[int]) -> list[Any]:
    return [None for _ in keys]


def other_look_up(keys: list[int]) -> list[Any]:
    return [None for _ in keys]


@dataclass
class Streams:
    """What an operator is declared on."""

    flow: sf.Flow

    @property
    def sales(self) -> Any:
        return self.flow.source("sales", sf.delta("/sales"), Sale, event_time="ts", watermark="1 minute")

    def keyed(self, *by: str, **key: Any) -> KeyedStream:
        keyed: KeyedStream = self.sales.key_by(*(by or ("user",)), **key)
        return keyed

    def seen(self, time: str = "seen", **key: Any) -> KeyedStream:
        source = self.flow.source("views", sf.delta("/views"), View, event_time=time, watermark="1 minute")
        return source.key_by("user", **key)


Declare = Callable[[Streams], Any]


def node_of(declare: Declare) -> tuple[KeyedNode, sf.Flow]:
    @sf.pipeline("options")
    def options(flow: sf.Flow) -> None:
        declare(Streams(flow)).collect("out", sf.memory("ready-options"))

    flow = options.build()
    [node] = flow.operators
    return node, flow


def recorded(node: KeyedNode, *, files: bool = True) -> Record:
    """A record of a job that this operator has worked in."""
    states, next_id = resolve_states(node, None)
    file = FileRef("000001.sst", 1, "0" * 16, data=b"x")
    operator = operator_of(
        [Shard(0, 127, "rocksdb", (file,) if files else ())],
        key=tuple((name, "str" if name == "sku" else "int") for name in node.keyed[0].columns),
        states=states,
        next_state_id=next_id,
        options=fixed_options(node),
    )
    return record(operators={"op": operator})


def problem(
    before: Declare,
    after: Declare,
    *,
    between: Declare | None = None,
    forgotten: str = "",
    noted: Mapping[str, str] | None = None,
    allowed: bool = True,
    **record: Any,
) -> str:
    """Why a run with the changed option would not begin; empty when it would. `between`: other code has run a batch in between. `forgotten`: how
    options begin that the record does not have, since an earlier version of the library has made it. `noted`: options as such a version has
    noted them. `allowed`: the caller of the run lets state go."""
    made = recorded(node_of(before)[0], **record)
    operator = made.operators["op"]
    if between is not None:
        node = node_of(between)[0]
        states, next_id = resolve_states(node, operator, 1)
        operator = msgspec.structs.replace(
            operator, states=states, next_state_id=next_id, options=options_behind(node, operator)
        )
    if forgotten:
        kept = {name: text for name, text in operator.options.items() if not name.startswith(forgotten)}
        operator = msgspec.structs.replace(operator, options=kept)
    operator = msgspec.structs.replace(operator, options={**operator.options, **(noted or {})})
    made = msgspec.structs.replace(made, operators={"op": operator})
    flow = allowing(node_of(after)[1], allowed)
    [operator] = compare(flow, "options", made).operators
    if not operator.problem:
        check_flow(flow, made)
        return ""
    with pytest.raises(IncompatibleError) as caught:
        check_flow(flow, made)
    assert str(caught.value) == operator.problem, "a run says what check says"
    return operator.problem


def total(output: Any = Total, **aggregates: Any) -> Declare:
    return lambda s: s.keyed(order_by="at").aggregate("op", output, **aggregates)


class Running(sf.KeyedProcess):  # type: ignore[type-arg]
    total = sf.ValueState(float, default=0.0)

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        self.total.value += sum(row.amount for row in rows)
        return ()


def running(*by: str, rows: Any = None) -> Declare:
    def declare(s: Streams) -> Any:
        source = s.sales if rows is None else s.flow.source("rows", sf.delta("/rows"), rows)
        return source.key_by(*by).process("op", Running, output="n double")

    return declare


def mapped(by: str) -> Declare:
    def added(key: int, row: Sale, state: float) -> tuple[float, float]:
        return state + row.amount, state + row.amount

    return lambda s: s.keyed(by).map_with_state("op", added, state=float, default=0.0, output="n double")


def columnar(by: str) -> Declare:
    def nothing(rows: Any, states: Any, ctx: Any) -> None:
        return None

    return lambda s: s.keyed(by).process_arrow("op", nothing, state={"n": float}, output="n double")


def windows(
    window: Any,
    *,
    lateness: str = "10 minutes",
    time: str = "",
    emit: str = "final",
    late: str = "lenient",
    n: Any = None,
    uid: str = "op",
) -> Declare:
    aggregate = n or sf.sum("amount")
    return lambda s: (
        s.keyed()
        .window(window, lateness=lateness, time=time, late=late)
        .aggregate(uid, PerWindow, emit=emit, n=aggregate)
    )


def code(
    window: Any, process: Any = Code, *, lateness: str = "10 minutes", order_by: str = "at", time: str = ""
) -> Declare:
    return lambda s: (
        s.keyed(order_by=order_by).window(window, lateness=lateness, time=time).process("op", process)
    )


def once(by: Any = "user", **options: Any) -> Declare:
    return lambda s: s.sales.deduplicate("op", by=by, **options)


def best(n: int = 3, *, by: Any = "-amount", order_by: str = "", **options: Any) -> Declare:
    return lambda s: s.keyed(order_by=order_by or ()).top("op", n, by=by, **options)


def newest(order_by: str, **options: Any) -> Declare:
    return lambda s: s.keyed(order_by=order_by).latest("op", **options)


def pairs(within: Any = ("-1 minutes", "1 minutes"), output: type = Pair, **options: Any) -> Declare:
    return lambda s: s.keyed().join("op", s.seen(), output, within=within, **options)


def valid(output: type = Pair, **options: Any) -> Declare:
    return lambda s: s.keyed().join_asof("op", s.seen(), output, **options)


def in_order(order_by: str, join: str = "join_asof") -> Declare:
    return lambda s: getattr(s.keyed(), join)("op", s.seen(order_by=order_by), Pair)


def known(output: type = Pair, *, time: str = "seen", **options: Any) -> Declare:
    return lambda s: s.keyed().join_latest("op", s.seen(time), output, **options)


def together(
    window: Any, output: type = Pair, *, lateness: str = "10 minutes", time: str = "", **options: Any
) -> Declare:
    return lambda s: (
        s.keyed().window(window, lateness=lateness, time=time).join("op", s.seen(), output, **options)
    )


def asked(function: Any = look_up, output: type = Answered, **options: Any) -> Declare:
    return lambda s: s.keyed().enrich("op", function, output, **options)


MINUTE, HOUR = sf.tumbling("1 minute"), sf.tumbling("1 hour")
sales_sum = sf.sum("amount")

REFUSED: list[tuple[str, Declare, Declare, str]] = [
    ("aggregate: kind", total(n=sales_sum), total(n=sf.max("amount")), "its aggregate 'n' was sum(amount) and is max(amount) now"),
    ("aggregate: column", total(n=sales_sum), total(n=sf.sum("price")), "was sum(amount) and is sum(price) now"),
    ("aggregate: where", total(n=sales_sum), total(n=sf.sum("amount", where="paid")), "is sum(amount) where paid now"),
    ("aggregate: order", lambda s: s.keyed(order_by="at").aggregate("op", Total, n=sf.last("amount")),
     lambda s: s.keyed(order_by="ts").aggregate("op", Total, n=sf.last("amount")), "was last(amount) by at and is last(amount) by ts now"),
    ("aggregate: accuracy", total(n=sf.quantile("amount", 0.5)), total(n=sf.quantile("amount", 0.5, accuracy=0.1)),
     "was quantile(amount, accuracy 0.01) and is quantile(amount, accuracy 0.1) now"),
    ("aggregate: key", total(n=sales_sum), lambda s: s.keyed("shop").aggregate("op", _of_shop(), n=sf.sum("amount")),
     "was keyed by 'user', which its rows still have, and is keyed by 'shop' now"),
    ("process: key", running("user"), running("shop"), "was keyed by 'user', which its rows still have, and is keyed by 'shop' now"),
    ("process: one of two keys", running("user", "sku"), running("shop", "sku"), "was keyed by 'user', which its rows still have"),
    ("map_with_state: key", mapped("user"), mapped("shop"), "was keyed by 'user', which its rows still have, and is keyed by 'shop' now"),
    ("process_arrow: key", columnar("user"), columnar("shop"), "was keyed by 'user', which its rows still have"),
    ("window: length", windows(MINUTE), windows(HOUR), "its window was tumbling(1 minute) and is tumbling(1 hour) now"),
    ("window: offset", windows(HOUR), windows(sf.tumbling("1 hour", offset="5 minutes")), "is tumbling(1 hour, offset 5 minutes) now"),
    ("window: kind", windows(MINUTE), windows(sf.cumulative("1 hour", every="1 minute")), "is cumulative(1 hour, every 1 minute) now"),
    ("window: hop", windows(sf.hopping("1 hour", every="10 minutes")), windows(sf.hopping("1 hour", every="20 minutes")),
     "was hopping(1 hour, every 10 minutes) and is hopping(1 hour, every 20 minutes) now"),
    ("window: gap", windows(sf.session("1 minute")), windows(sf.session("2 minutes")), "was session(1 minute) and is session(2 minutes)"),
    ("window: n", windows(sf.count_window(3)), windows(sf.count_window(5)), "was count_window(3) and is count_window(5) now"),
    ("window: time", windows(MINUTE), windows(MINUTE, time="at"), "its event time was ts and is at now"),
    ("window: more lateness", windows(MINUTE), windows(MINUTE, lateness="1 hour"), "its lateness was 10 minutes and is 1 hour now"),
    ("window: emit", windows(MINUTE, emit="changes"), windows(MINUTE), "its emit was changes and is final now"),
    ("window: aggregate", windows(MINUTE), windows(MINUTE, n=sf.mean("amount")), "was sum(amount) and is mean(amount) now"),
    ("window code: length", code(MINUTE), code(HOUR), "its window was tumbling(1 minute)"),
    ("window code: time", code(MINUTE), code(MINUTE, time="at", order_by="ts"), "its event time was ts and is at now"),
    ("window code: more lateness", code(MINUTE), code(MINUTE, lateness="1 hour"), "its lateness was 10 minutes"),
    ("window code: an aggregate", code(MINUTE), windows(MINUTE), "was 'window code' and is 'window aggregate' now"),
    ("deduplicate: by", once("user"), once("shop"), "was keyed by 'user', which its rows still have"),
    ("deduplicate: keep", once(within="1 day"), once(within="1 day", keep="last"), "its keep was first and is last now"),
    ("deduplicate: without an end", once(within="1 day"), once(), "its within was 1 day and is none now"),
    ("deduplicate: with an end", once(), once(within="1 day"), "its within was none and is 1 day now"),
    ("top: n", best(3), best(5), "its n was 3 and is 5 now"),
    ("top: fewer", best(3), best(2), "its n was 3 and is 2 now"),
    ("top: by", best(), best(by="-price"), "its by was -amount and is -price now"),
    ("top: direction", best(), best(by="amount"), "its by was -amount and is amount now"),
    ("top: per", best(per="sku"), best(per="shop"), "its per was sku and is shop now"),
    ("top: without per", best(per="sku"), best(), "its per was sku and is none now"),
    ("top: order", best(per="sku", order_by="at"), best(per="sku", order_by="ts"), "its order_by of the key was at and is ts now"),
    ("latest: order", newest("at"), newest("ts"), "its order_by of the key was at and is ts now"),
    ("latest: the time of its ttl", newest("at", ttl=sf.ttl("1 day", time="event")), newest("at", ttl="1 day"),
     "its ttl counted event time and counts processing time now"),
    ("latest: another operator", newest("at"), best(), "was 'latest' and is 'top' now"),
    ("join: within", pairs(), pairs(("-1 minutes", "5 minutes")), "its within was -1 minute to 1 minute and is -1 minute to 5 minutes now"),
    ("join: how", pairs(), pairs(how="left"), "its how was inner and is left now"),
    ("join: time", pairs(), pairs(time="at"), "its event time was ts and seen and is at and seen now"),
    ("join: right time", pairs(), pairs(right_time="left"), "is ts and left now"),
    ("as-of join: keep", valid(keep="1 hour"), valid(keep="1 day"), "its keep was 1 hour and is 1 day now"),
    ("as-of join: wait", valid(), valid(wait=False), "its wait was True and is False now"),
    ("as-of join: how", valid(), valid(how="inner"), "its how was left and is inner now"),
    ("as-of join: time", valid(), valid(right_time="left"), "is ts and left now"),
    ("as-of join: order", in_order("page"), in_order("left"), "its order_by of the right rows was page and is left now"),
    ("latest join: order", in_order("page", "join_latest"), in_order("-page", "join_latest"), "was page and is -page now"),
    ("latest join: right time", known(), known(time="left"), "its event time of the right rows was seen and is left now"),
    ("window join: length", together(MINUTE), together(HOUR), "its window was tumbling(1 minute)"),
    ("window join: more lateness", together(MINUTE), together(MINUTE, lateness="1 hour"), "its lateness was 10 minutes"),
    ("window join: how", together(MINUTE), together(MINUTE, how="left"), "its how was inner and is left now"),
    ("window join: time", together(MINUTE), together(MINUTE, time="at"), "is at and seen now"),
    ("join: where", pairs(where="amount > 1"), pairs(where="amount > 2"), "its where was amount > 1 and is amount > 2 now"),
    ("join: where at first", pairs(), pairs(where="amount > 1"), "its where was none and is amount > 1 now"),
    ("join: where no more", pairs(where="amount > 1"), pairs(), "its where was amount > 1 and is none now"),
    ("as-of join: where", valid(), valid(where="amount > 1"), "its where was none and is amount > 1 now"),
    ("latest join: where", known(), known(where="left_user > 1"), "its where was none and is left_user > 1 now"),
    ("window join: where", together(MINUTE), together(MINUTE, where="ts < seen"), "its where was none and is ts < seen now"),
    ("window join: sessions", together(MINUTE), together(sf.session("1 minute")), "and is session(1 minute) now"),
]  # fmt: skip

ALLOWED: list[tuple[str, Declare, Declare]] = [
    ("aggregate: one more", total(n=sales_sum), total(Totals, n=sales_sum, m=sf.count())),
    ("aggregate: one less", total(Totals, n=sales_sum, m=sf.count()), total(n=sales_sum)),
    ("aggregate: share", total(n=sf.quantile("amount", 0.5)), total(n=sf.quantile("amount", 0.9))),
    ("aggregate: queryable", total(n=sales_sum), lambda s: s.keyed().aggregate("op", Total, queryable=True, n=sales_sum)),
    ("aggregate: ttl", total(n=sales_sum), lambda s: s.keyed().aggregate("op", Total, ttl="7 days", n=sales_sum)),
    ("window: less lateness", windows(MINUTE), windows(MINUTE, lateness="0 seconds")),
    ("window: late", windows(MINUTE), windows(MINUTE, late="strict")),
    ("window: late no more", windows(MINUTE, late="strict"), windows(MINUTE)),
    ("window code: code", code(MINUTE), code(MINUTE, OtherCode)),
    ("window code: order", code(MINUTE), code(MINUTE, order_by="ts")),
    ("window code: less lateness", code(MINUTE), code(MINUTE, lateness="1 minute")),
    ("deduplicate: longer", once(within="1 day"), once(within="7 days")),
    ("deduplicate: shorter", once(within="7 days", keep="last"), once(within="1 day", keep="last")),
    ("top: rank", best(), best(rank="place")),
    ("top: ttl", best(per="sku", order_by="at"), best(per="sku", order_by="at", ttl="7 days")),
    ("latest: ttl", newest("at"), newest("at", ttl="7 days")),
    ("join: where over lines", pairs(where="amount > 1"), pairs(where="amount >\n 1")),
    ("join: output", pairs(), pairs(output=Wider)),
    ("as-of join: output", valid(), valid(Wider)),
    ("latest join: how", known(), known(how="inner")),
    ("latest join: ttl", known(), known(ttl="1 day")),
    ("latest join: output", known(), known(Wider)),
    ("window join: output", together(MINUTE), together(MINUTE, Wider)),
    ("window join: less lateness", together(MINUTE), together(MINUTE, lateness="0 seconds")),
    ("enrich: function", asked(), asked(other_look_up)),
    ("enrich: how it asks", asked(), asked(batch=7, concurrency=3, retries=0, rate=5.0, on_error="dead_letter", ttl="1 day")),
]  # fmt: skip


def _of_shop() -> type:
    @dataclass
    class OfShop:
        shop: int
        n: float | None

    return OfShop


@pytest.mark.parametrize(
    ("before", "after", "sentence"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_what_would_read_the_state_wrongly_is_refused(before: Declare, after: Declare, sentence: str) -> None:
    refusal = problem(before, after)
    assert sentence in refusal
    assert refusal.startswith("operator 'op'")
    assert any(
        step in refusal for step in ("put it back, or give", "give the operator another uid", "key it by")
    )


@pytest.mark.parametrize(
    ("before", "after"), [case[1:] for case in ALLOWED], ids=[case[0] for case in ALLOWED]
)
def test_what_reads_the_state_rightly_is_taken(before: Declare, after: Declare) -> None:
    assert problem(before, after) == ""


@pytest.mark.parametrize(
    "declare", [case[1] for case in (*REFUSED, *ALLOWED)], ids=[case[0] for case in (*REFUSED, *ALLOWED)]
)
def test_the_same_options_are_taken(declare: Declare) -> None:
    assert problem(declare, declare) == ""


RENAMED = make_dataclass("Renamed", [("buyer", int), ("shop", int), ("sku", str), ("amount", float)])


def test_a_key_column_that_the_rows_have_no_more_is_renamed() -> None:
    assert problem(running("user"), running("buyer", rows=RENAMED)) == ""
    assert problem(running("user", "sku"), running("buyer", "sku", rows=RENAMED)) == ""
    assert problem(running("user"), running("shop"), files=False) == "", "no state is found under another key"


def test_other_key_columns_are_told_as_before() -> None:
    assert "key by the columns in their old order" in problem(running("user", "sku"), running("sku", "user"))
    assert "give it a new uid" in problem(running("user"), running("shop", "sku"))


class Both(sf.ConnectedProcess[int, Sale, Sale, Pair]):
    last = sf.ValueState(float)

    def process_left(self, key: int, rows: Any, ctx: sf.Context) -> Iterable[Pair]:
        return ()

    def process_right(self, key: int, rows: Any, ctx: sf.Context) -> Iterable[Pair]:
        return ()


OF_TWO: dict[str, Callable[[KeyedStream, KeyedStream], Any]] = {
    "join": lambda one, other: one.join("op", other, Pairs, within=("-1 minute", "1 minute")),
    "join_asof": lambda one, other: one.join_asof("op", other, Pairs),
    "join_latest": lambda one, other: one.join_latest("op", other, Pairs),
    "window": lambda one, other: one.window(MINUTE).join("op", other, Pairs),
    "connect": lambda one, other: one.connect(other).process("op", Both, output="user long"),
}


@dataclass
class Pairs:
    user: int
    left_sku: str
    right_sku: str | None


@pytest.mark.parametrize("kind", OF_TWO)
def test_inputs_that_change_places_are_refused(kind: str) -> None:
    """The state knows the rows of each input by the side that they came from."""

    def of(*names: str) -> Declare:
        def declared(streams: Streams) -> Any:
            keyed = [
                streams.flow.source(name, sf.delta(f"/{name}"), Sale, event_time="ts", watermark="1 minute")
                for name in ("sold", "returned")
            ]
            by_name = dict(zip(("sold", "returned"), keyed, strict=True))
            return OF_TWO[kind](*(by_name[name].key_by("user") for name in names))

        return declared

    there, back = of("sold", "returned"), of("returned", "sold")
    assert "its inputs were sold and returned and have changed places" in problem(there, back)
    assert problem(there, there) == ""


def sold(frame: Any) -> Any:
    return frame.where("amount > 0")


def returned(frame: Any) -> Any:
    return frame.where("amount < 0")


@dataclass
class Return(Sale):
    """A sale with a column more."""

    reason: str = ""


OF_ONE: dict[str, Callable[[Stream], tuple[Stream, Stream]]] = {
    "of other functions": lambda rows: (rows.transform(sold, Sale), rows.transform(returned, Sale)),
    "through one more": lambda rows: (rows, rows.transform(returned, Sale)),
    "with other columns": lambda rows: (
        rows.transform(lambda frame: frame, Sale),
        rows.transform(lambda frame: frame, Return),
    ),
    "of another output": lambda rows: (rows, rows.side("late")),
}


@pytest.mark.parametrize(
    ("kind", "inputs"),
    # The code of a connect says itself which columns it reads.
    [
        (kind, inputs)
        for kind in OF_TWO
        for inputs in OF_ONE
        if (kind, inputs) != ("connect", "with other columns")
    ],
)
def test_inputs_of_one_source_that_change_places_are_refused(kind: str, inputs: str) -> None:
    def of(step: int) -> Declare:
        def declared(streams: Streams) -> Any:
            late = sf.Output("late", Sale) if inputs == "of another output" else None
            source = streams.flow.source(
                "all", sf.delta("/all"), Sale, event_time="ts", watermark="1 minute", late=late
            )
            one, other = OF_ONE[inputs](source)[::step]
            return OF_TWO[kind](one.key_by("user"), other.key_by("user"))

        return declared

    assert "have changed places" in problem(of(1), of(-1))
    assert problem(of(1), of(1)) == ""


def test_a_step_of_one_input_may_change() -> None:
    """Only inputs that are exactly the other way round have changed places."""

    def of(function: Any) -> Declare:
        def declared(streams: Streams) -> Any:
            source = streams.flow.source("all", sf.delta("/all"), Sale, event_time="ts", watermark="1 minute")
            return OF_TWO["connect"](source.key_by("user"), source.transform(function, Sale).key_by("user"))

        return declared

    assert problem(of(sold), of(returned)) == ""


def test_an_operator_without_entries_may_change_its_options() -> None:
    assert problem(windows(MINUTE), windows(HOUR), files=False) == ""
    assert problem(total(n=sales_sum), total(n=sf.max("amount")), files=False) == ""


@pytest.mark.parametrize(
    "window", [sf.session("1 minute"), sf.count_window(3), sf.cumulative("1 hour", every="1 minute")]
)
def test_an_operator_without_entries_may_become_one_with_other_states(window: Any) -> None:
    assert problem(windows(MINUTE), windows(window), files=False, allowed=False) == ""
    assert problem(newest("at"), best(), files=False, allowed=False) == ""
    # Once it has entries, nobody is asked for what never had any.
    before = recorded(node_of(windows(MINUTE))[0], files=False).operators["op"]
    states, _ = resolve_states(node_of(windows(window))[0], before)
    assert [name for name, schema in states.items() if schema.forgotten] == ["windows"]


def test_an_exact_count_of_other_values_begins_anew_under_another_name() -> None:
    counted = total(Skus, n=sf.count(), skus=sf.count_distinct("sku"))
    for other in (sf.count_distinct("shop"), sf.count("sku")):
        said = problem(counted, total(Skus, n=sf.count(), skus=other), allowed=False)
        assert "give the changed aggregate another name, under which it begins anew" in said
        assert problem(counted, total(OtherSkus, n=sf.count(), others=other), allowed=False) == ""


@pytest.mark.parametrize(
    "window", [sf.hopping("1 hour", every="10 minutes"), sf.cumulative("1 hour", every="10 minutes")]
)
def test_an_exact_count_is_not_added_to_windows_that_overlap_and_an_approximate_one_is(window: Any) -> None:
    def counting(**aggregates: Any) -> Declare:
        output = "user long, window_start timestamp" + "".join(f", {name} long" for name in aggregates)
        return lambda s: s.keyed().window(window).aggregate("op", output, **aggregates)

    n, exact, about = sf.count(), sf.count_distinct("sku"), sf.count_distinct("sku", approximate=True)
    said = problem(counting(n=n), counting(n=n, skus=exact), allowed=False)
    assert lacking(said, ("'op'", "'skus'", "approximate=True", "second operator", "another uid")) == []
    assert problem(counting(n=n), counting(n=n, skus=about), allowed=False) == ""
    assert "another uid" in problem(counting(n=n, skus=exact), counting(n=n), allowed=False)
    two = counting(n=n, skus=exact, shops=sf.count_distinct("shop"))
    assert problem(counting(n=n, skus=exact), two, allowed=False) == ""


NEW_OVER_OLD: list[tuple[str, Any, str, Any]] = [
    ("n double", sf.mean("amount"), "n_sum double", sf.sum("price")),
    ("n double", sf.mean("amount"), "n_n long", sf.count()),
    ("n double", sf.stddev("amount"), "n_mean double", sf.max("price")),
    ("n double", sf.last("amount"), "n_by0 timestamp", sf.max("ts")),
    ("n_n long", sf.count(), "n double", sf.mean("price")),
]
"""Of the former aggregate the state has a column under the name of one that the new one keeps."""


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize(("was", "former", "now", "new"), NEW_OVER_OLD)
def test_a_new_aggregate_does_not_go_on_from_what_another_one_kept(
    was: str, former: Any, now: str, new: Any, between: bool
) -> None:
    def only(field: str, aggregate: Any) -> Declare:
        return total(f"user long, {field}", **{field.split()[0]: aggregate})

    without = only("rows long", sf.count()) if between else None
    said = problem(only(was, former), only(now, new), between=without, allowed=False)
    assert lacking(said, ("'op'", f"new aggregate {now.split()[0]!r}", "another name")) == []
    assert problem(only(was, former), only(f"other_{now}", new), between=without, allowed=False) == ""
    assert problem(only(was, former), only(was, former), between=without, allowed=False) == ""
    assert problem(only(was, former), only(now, new), between=without, files=False) == ""


def test_an_aggregate_that_was_taken_out_before_anything_was_stored_comes_back() -> None:
    both = total("user long, n long, x double", n=sf.count(), x=sf.max("amount"))
    taken_out = node_of(total("user long, n long", n=sf.count()))[0]
    empty = recorded(node_of(both)[0], files=False).operators["op"]
    states, next_id = resolve_states(taken_out, empty, 1)
    stored = msgspec.structs.replace(
        recorded(taken_out).operators["op"],
        states=states, next_state_id=next_id, options=options_behind(taken_out, empty),
    )  # fmt: skip
    check_flow(node_of(both)[1], record(operators={"op": stored}))


def test_other_states_of_a_ready_made_operator_are_refused_with_an_advice_that_works() -> None:
    """The record of an earlier version of the library does not have every option."""
    said = problem(windows(MINUTE), windows(sf.session("1 minute")), forgotten="window", allowed=False)
    assert "has state 'windows' in the checkpoint" in said
    assert "'sessions'" in said
    assert "forgets" not in said
    assert "another uid, under which it begins anew" in said
    assert "--allow-non-restored-state" in said
    made = recorded(node_of(windows(MINUTE))[0])
    elsewhere = node_of(windows(sf.session("1 minute"), uid="other"))[1]
    with refused(IncompatibleError, "'op'", "--allow-non-restored-state"):
        check_flow(elsewhere, made)
    check_flow(allowing(elsewhere), made)


def test_a_ready_made_operator_does_not_take_the_state_of_code_of_ones_own() -> None:
    own = problem(running("user"), total(n=sales_sum))
    assert own.startswith("operator 'op' was code of your own and is 'running aggregate' now")


@dataclass
class Skus:
    user: int
    n: int
    skus: int


@dataclass
class OtherSkus:
    user: int
    n: int
    others: int


@dataclass
class Count:
    user: int
    n: int


def test_an_exact_count_that_an_earlier_release_left_out_does_not_come_back_with_values_that_it_knew() -> (
    None
):
    counted = total(Skus, n=sf.count(), skus=sf.count_distinct("sku"))
    without = node_of(total(Count, n=sf.count()))[0]
    before = recorded(node_of(counted)[0]).operators["op"]
    assert not [s for s in resolve_states(node_of(counted)[0], before)[0].values() if s.forgotten]
    states, next_id = resolve_states(without, before)
    assert [name for name, schema in states.items() if schema.forgotten] == ["distinct-skus"]

    left = record(operators={"op": msgspec.structs.replace(before, states=states, next_state_id=next_id)})
    [operator] = compare(allowing(node_of(counted)[1]), "options", left).operators
    assert "'skus' again, which an earlier release left out" in operator.problem
    assert "give it another name" in operator.problem
    with refused(IncompatibleError, "'skus' again"):
        check_flow(allowing(node_of(counted)[1]), left)
    emptied = recorded(node_of(counted)[0], files=False).operators["op"]
    empty = record(operators={"op": msgspec.structs.replace(emptied, states=states, next_state_id=next_id)})
    check_flow(allowing(node_of(counted)[1]), empty)
    renamed = total(OtherSkus, n=sf.count(), others=sf.count_distinct("sku"))
    [operator] = compare(allowing(node_of(renamed)[1]), "options", left).operators
    assert operator.problem == ""
    assert operator.states["distinct-others"] == "new"


def test_columns_of_the_newest_rows_may_change_places_under_strict_too() -> None:
    def newest_of(*names: str) -> Declare:
        rows = make_dataclass("Rows", [("user", int), ("at", int), *((name, str) for name in names)])
        return lambda s: (
            s.flow.source("rows", sf.delta("/rows"), rows).key_by("user", order_by="at").latest("op")
        )

    made = recorded(node_of(newest_of("sku", "shop"))[0])
    moved = compare(allowing(node_of(newest_of("shop", "sku"))[1]), "options", made)
    [operator] = moved.operators
    assert operator.states == {"newest": "kept, evolves by rules: columns change places"}
    assert operator.conversion == "", "nothing is converted that a reader could see"
    moved.refuse_evolution()
    renamed = compare(allowing(node_of(newest_of("sku", "store"))[1]), "options", made)
    [operator] = renamed.operators
    assert operator.states == {
        "newest": "kept, evolves by rules: column row_store is new; loses values: column row_shop is gone"
    }
    with refused(IncompatibleError, "op.newest", "leave out --strict"):
        renamed.refuse_evolution()


def test_every_option_of_every_operator_is_in_the_table() -> None:
    """A new option must be decided upon: does the state that is there depend on it?"""
    operators = {
        member
        for module in (ready, top, latest, joins, enrichment, window_process)
        for member in vars(module).values()
        if isinstance(member, type) and issubclass(member, ReadyOperator) and member is not joins.JoinOperator
    } - {ReadyOperator, ready.Diverting}
    common = {each.name for each in fields(ReadyOperator)}
    decided = {
        "RunningAggregate": {"aggregates", "on_error"},
        "WindowAggregate": {"aggregates", "time", "window", "lateness", "emit", "on_error", "late"},
        "Deduplicate": {"time", "within", "keep", "kept"},
        "Top": {"n", "by", "per", "last_by", "rank", "kept"},
        "Latest": {"order", "kept"},
        "IntervalJoin": {"left", "right", "filled", "function", "how", "condition", "least", "most"},
        "AsofJoin": {"left", "right", "filled", "function", "how", "condition", "keep", "wait"},
        "LatestJoin": {"left", "right", "filled", "function", "how", "condition"},
        "WindowJoin": {
            "left",
            "right",
            "filled",
            "function",
            "how",
            "condition",
            "window",
            "lateness",
            "late",
        },
        "Enrich": {"asking", "answered", "on_error"},
        "WindowCode": {"inner", "code", "code_rows", "order", "on_error", "kept"},
    }
    assert {each.__name__: {f.name for f in fields(each)} - common for each in operators} == decided


def test_options_are_kept_by_records_as_text() -> None:
    made = recorded(node_of(windows(MINUTE))[0]).operators["op"]
    again = msgspec.json.decode(msgspec.json.encode(made), type=OperatorState)
    assert again.options == {
        "operator": "window aggregate", "window": "tumbling(1 minute)", "event time": "ts", "lateness": "10 minutes",
        "emit": "final", "aggregate 'n'": "sum(amount)", "columns of input 0": "user, shop, sku, amount, price, paid, ts, at",
    }  # fmt: skip
