"""What is said of a name that is not known tells to write something that works."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

import stateflow as sf
from stateflow.names import CONTEXT, JOINS, METHODS, MODULE, OPTIONS, STEPS, TIMER_METHODS
from stateflow.testing import KeyedHarness
from tests.refusals.refusal import refused

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@dataclass
class Row:
    column: int
    ts: datetime
    amount: float = 1.0


@dataclass
class Right:
    column: int
    name: str
    ts: datetime


@dataclass
class Output:
    column: int
    name: str


@dataclass
class Total:
    column: int
    total: int


@dataclass
class WindowTotal:
    column: int
    window_end: datetime
    total: int


class Keyed(sf.KeyedProcess[int, Row, Row]):
    def process(self, key: int, rows: Iterator[Row], ctx: sf.Context) -> Iterator[Row]:
        yield from rows


class Connected(sf.ConnectedProcess[int, Row, Right, Row]):
    def process_left(self, key: int, rows: Iterator[Row], ctx: sf.Context) -> Iterator[Row]:
        yield from rows


class Windowed(sf.WindowProcess[int, Row, Row]):
    def process(
        self, key: int, window: sf.WindowBounds, rows: Iterator[Row], ctx: sf.Context
    ) -> Iterator[Row]:
        yield from rows


def streams(flow: sf.Flow) -> dict[str, Any]:
    stream = flow.source(
        "in", sf.delta("/in"), Row, event_time="ts", watermark="1 minute", late=sf.output("late", Row)
    )
    keyed = stream.key_by("column")
    right = flow.source("right", sf.delta("/right"), Right, event_time="ts", watermark="1 minute").key_by(
        "column"
    )
    return {
        "a stream": stream,
        "a keyed stream": keyed,
        "a windowed stream": keyed.window(sf.tumbling("1 hour")),
        "two connected streams": keyed.connect(right),
        "right": right,
        "before .key_by()": stream,
        "after .key_by(...)": keyed,
    }


def in_a_flow(use: Callable[[sf.Flow], Any]) -> Any:
    found = []

    @sf.pipeline("names")
    def names(flow: sf.Flow) -> None:
        found.append(use(flow))
        flow.source("used", sf.delta("/used"), Row).append("out", sf.delta("/out"))

    try:
        names.build()
    except sf.UsageError as error:
        # What a flow lacks as a whole is no matter here.
        if not found:
            raise error
    return found[0]


KINDS = ("a stream", "a keyed stream", "a windowed stream", "two connected streams")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_another_system_is_what_can_be_written_here(name: str, kind: str) -> None:
    def use(flow: sf.Flow) -> None:
        given = streams(flow)
        with pytest.raises(sf.UsageError, match=re.escape(f"{kind} has no '{name}': that is ")) as caught:
            getattr(given[kind], name)
        advice, _, where = str(caught.value).partition(": that is ")[2].partition(", asked ")
        step = advice.partition(", where")[0].partition(" or another")[0]
        asked = given[where or kind]
        windowed = asked is given["a windowed stream"]
        namespace = {
            "sf": sf, "flow": flow, "path": "/table", "asked": asked, "right": given["right"], "look_up": list,
            "Output": (WindowTotal if windowed else Total) if "aggregate" in step else Output,
            "KeyedProcessClass": Keyed, "ConnectedProcessClass": Connected, "WindowProcessClass": Windowed,
        }  # fmt: skip
        if step.startswith("flow.source(...,"):
            filled = step.replace("...", "'other', sf.delta('/other')")
            assert eval(filled, namespace) is not None
        else:
            made = eval(f"asked{step}", namespace)
            assert made is None or isinstance(made, sf.Stream | sf.KeyedStream | sf.WindowedStream)

    in_a_flow(use)


@pytest.mark.parametrize("name", MODULE)
def test_a_name_of_another_system_is_one_of_the_module(name: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}': it is called ") as caught:
        getattr(sf, name)
    advice = str(caught.value).partition("it is called ")[2].removesuffix(" here")
    assert eval(advice, {"sf": sf, "Order": Row}) is not None
    assert name not in sf.__all__


class AskedFor(sf.KeyedProcess[int, Row, Any]):
    """What the context's advice says, in one class."""

    total = sf.ValueState(float, 0.0)
    due = sf.Timer("event")
    name = ""

    def process(self, key: int, rows: Iterator[Row], ctx: sf.Context) -> Iterator[Any]:
        for row in rows:
            with pytest.raises(AttributeError) as caught:
                getattr(ctx, self.name)
            advice = str(caught.value).partition(": that is ")[2]
            for code in re.findall(r"(?:self|ctx|row)\.[a-z_.]+(?:\([a-z, ]+\))?", advice):
                eval(code, {"self": self, "ctx": ctx, "row": row, "output": LATE, "at": row.ts})
            assert advice
            yield row

    @due.fires
    def fire(self, key: int, at: datetime, ctx: sf.Context) -> None:
        pass


LATE = sf.output("late", Row)


@pytest.mark.parametrize("name", CONTEXT)
def test_what_a_context_is_asked_for_elsewhere_is_there_in_other_words(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AskedFor, "name", name)
    harness = KeyedHarness(AskedFor, key="column", output=Row, outputs=[LATE])
    assert harness.rows(Row(1, NOON)) == [Row(1, NOON)]


def test_a_misspelt_name_of_a_context_is_told() -> None:
    class Misspelt(sf.KeyedProcess[int, Row, Row]):
        def process(self, key: int, rows: Iterator[Row], ctx: sf.Context) -> None:
            list(rows)
            ctx.watermrak  # type: ignore[attr-defined] # noqa: B018

    with refused(sf.StateflowError, "no 'watermrak'", "did you mean watermark"):
        KeyedHarness(Misspelt, key="column").rows(Row(1, NOON))


@pytest.mark.parametrize(("name", "here"), METHODS.items())
def test_a_method_of_another_system_is_told_where_the_class_lacks_it(name: str, here: str) -> None:
    base = sf.ConnectedProcess if here in ("process_left", "process_right") else sf.KeyedProcess
    with pytest.raises(sf.UsageError, match=f"P.{name} is never called: that is {here} here"):
        type(base)("P", (base,), {name: lambda self, row: None})
    have = {name: lambda self, row: None, here: lambda self, key, rows, ctx: None}
    assert type(base)("P", (base,), have)


@pytest.mark.parametrize("name", sorted(TIMER_METHODS))
def test_a_method_for_timers_is_told_of_the_timers_here(name: str) -> None:
    with refused(sf.UsageError, "declare a timer with sf.Timer"):
        type(sf.KeyedProcess)("P", (Keyed,), {name: lambda self, key: None})


@pytest.mark.parametrize(("how", "here"), JOINS.items())
def test_kinds_of_joins_under_other_names(how: str, here: str) -> None:
    def use(flow: sf.Flow) -> None:
        given, within = streams(flow), ("-1 hour", "0 hours")
        left, right = given["a keyed stream"], given["right"]
        out = Output if here not in ("semi", "anti") else None
        with refused(sf.UsageError, f"not '{how}': write how='{here}'"):
            left.join("paid", right, out, within=within, how=how)
        left.join("paid_", right, out, within=within, how=here)
        if here in ("right", "full"):
            with pytest.raises(sf.UsageError, match=f"how is one of left, inner, not '{how}'$"):
                left.join_latest("latest", right, Output, how=how)

    in_a_flow(use)


OPTIONS_ASKED: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda s: s["a keyed stream"].window(sf.tumbling("1 hour"), allowed_lateness="1 hour"), r"window\(\) has no option 'allowed_lateness': that is .window\(..., lateness='5 minutes'\)"),
    (lambda s: s["a keyed stream"].window(sf.tumbling("1 hour"), latenes="1 hour"), r"window\(\) has no option 'latenes': did you mean lateness\?"),
    (lambda s: s["a keyed stream"].join("j", s["right"], Output, wihtin=("0 hours", "1 hour")), r"join\(\) has no option 'wihtin': did you mean within\?"),
    (lambda s: s["a keyed stream"].join("j", s["right"], Output, condition="a < b"), r"join\(\) has no option 'condition': that is where='left_price < right_price'"),
    (lambda s: s["a keyed stream"].join("j", s["right"], Output, on="column"), r"join\(\) has no option 'on': that is .key_by\('column'\) of both inputs"),
    (lambda s: s["a keyed stream"].aggregate("sums", Total, total=sf.sum("column"), ttll="1 day"), r"operator 'sums' has no option ttll: did you mean ttl\?"),
    (lambda s: s["a windowed stream"].aggregate("sums", Total, total=sf.sum("column"), ttl="1 day"), r"ttl= is of .key_by\(...\).aggregate\(\)"),
    (lambda s: s["a windowed stream"].aggregate("sums", Total, total=sf.sum("column"), allowed_lateness="1 day"), r"no option allowed_lateness: that is .window\("),
    (lambda s: s["a stream"].append("out", sf.delta("/o"), partition_by=["ts"]), r"does not take partition_by: that is sf.delta\(path, partition_by=\['column'\]\)"),
    (lambda s: s["a stream"].upsert("out", sf.delta("/o"), key="column"), r"does not take key: did you mean keys\?"),
    (lambda s: s["a stream"].append("out", sf.delta("/o"), colour="red"), r"does not take colour: leave it out"),
    (lambda s: s["a stream"].flow.source("in2", sf.delta("/in"), Row, event_tiem="ts"), r"source\(\) has no option 'event_tiem': did you mean event_time\?"),
    (lambda s: sf.delta("/in", per_batch=10), r"delta\(\) has no option 'per_batch': that is sf.delta\(path, options=\{'maxFilesPerTrigger': '100'\}\)"),
    (lambda s: sf.delta("/in", startingVersion=7), r"has no option 'startingVersion': that is options=\{'startingVersion': '7'\}"),
    (lambda s: sf.files("/in", "json", maxFilesPerTrigger=7), r"has no option 'maxFilesPerTrigger': that is options=\{'maxFilesPerTrigger': '100'\}"),
    (lambda s: sf.delta("/in", readChangeFeed=True), r"that is sf.delta\(path, changes=True\)"),
    (lambda s: sf.sum("column", were="column > 1"), r"sum\(\) has no option 'were': did you mean where\?"),
    (lambda s: sf.tumbling("1 hour", ofset="1 minute"), r"tumbling\(\) has no option 'ofset': did you mean offset\?"),
    (lambda s: sf.ValueState(int, tll="1 day"), r"ValueState\(\) has no option 'tll': did you mean ttl\?"),
    (lambda s: sf.MapState(str, int, colour="red"), r"MapState\(\) has no option 'colour'$"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), OPTIONS_ASKED)
def test_a_misspelt_option_gets_what_was_meant(call: Callable[[dict[str, Any]], Any], message: str) -> None:
    def use(flow: sf.Flow) -> None:
        with pytest.raises(sf.UsageError, match=message):
            call(streams(flow))

    in_a_flow(use)


def test_what_options_elsewhere_are_called_here_works() -> None:
    def use(flow: sf.Flow) -> None:
        given = streams(flow)
        for advice in set(OPTIONS.values()):
            if advice.startswith(".window("):
                step = advice.replace("...", "sf.tumbling('1 hour')")
                assert eval(f"keyed{step}", {"sf": sf, "keyed": given["a keyed stream"]})
            elif advice.startswith("options="):
                assert eval(f"sf.delta('/table', {advice})", {"sf": sf}).reader_options
            elif advice.startswith("sf."):
                assert eval(advice, {"sf": sf, "path": "/table"})
        assert "emit" in sf.WindowedStream.aggregate.__kwdefaults__
        assert flow.source("w", sf.delta("/w"), Row, event_time="ts", watermark="1 second")

    in_a_flow(use)


NO_KEYED_INPUT: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda s: s["a keyed stream"].join("j", s["a stream"], Output, within=("0 hours", "1 hour")), r"join 'j': the right input has no key: give it .key_by\('column'\)"),
    (lambda s: s["a keyed stream"].join_latest("j", s["a stream"], Output), "join 'j': the right input has no key"),
    (lambda s: s["a windowed stream"].join("j", s["a windowed stream"], Output), r"join 'j': the right input is cut into windows: leave its .window\(...\) out"),
    (lambda s: s["a keyed stream"].join("j", s["a windowed stream"], Output, within=("0 hours", "1 hour")), "the right input is cut into windows"),
    (lambda s: s["a keyed stream"].connect(s["a stream"]), "connect: the right input has no key"),
    (lambda s: s["a keyed stream"].connect("/right"), "connect: the right input is '/right': give a keyed stream"),
    (lambda s: s["a stream"].union(s["a keyed stream"]), "union: a keyed stream is no stream of rows"),
    (lambda s: s["a keyed stream"].process("p", Keyed, broadcast={"rates": s["right"]}), "operator 'p', broadcast: a keyed stream is no stream of rows"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), NO_KEYED_INPUT)
def test_an_input_of_another_kind_is_said_so(call: Callable[[dict[str, Any]], Any], message: str) -> None:
    def use(flow: sf.Flow) -> None:
        with pytest.raises(sf.UsageError, match=message):
            call(streams(flow))

    in_a_flow(use)


def test_an_input_that_lost_its_window_is_joined() -> None:
    """As the sentence tells: the windows of the left input cut both."""

    def use(flow: sf.Flow) -> None:
        given = streams(flow)
        given["a windowed stream"].join("j", given["right"], Output)

    in_a_flow(use)
