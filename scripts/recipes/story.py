"""What a recipe does with a few rows, batch by batch, from its pipeline itself and without Spark."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import KeyedNode, NodeRows, SourceNode
from stateflow.pipelines.processes.process import Output
from stateflow.testing import ColumnarHarness, KeyedHarness

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "recipes"
FINAL = datetime(9999, 12, 31, tzinfo=UTC)
"""Where `--final` puts the watermark: every window and timer is due."""

Rows = Sequence[tuple[Any, ...]]


@dataclass(frozen=True)
class Story:
    """Batches of input for one recipe with one operator."""

    recipe: str
    batches: Sequence[Mapping[str, Rows]]
    """By source uid: the values of its rows, in the order of the fields."""
    final: bool = False
    """Whether the last run has `--final`."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    prepare: Callable[[ModuleType], None] = lambda module: None
    """Takes the place of what the recipe asks in the world outside."""

    def flow(self) -> Flow:
        module = loaded(self.recipe)
        self.prepare(module)
        pipeline = next(value for name, value in vars(module).items() if name == self.recipe)
        built = pipeline.build(self.values(pipeline))
        assert isinstance(built, Flow)
        return built

    def values(self, pipeline: Any) -> dict[str, Any]:
        """A value for every parameter; that of an input is its own name."""
        names = pipeline.function.__annotations__.keys() - {"flow", "return"}
        return {name: name for name in names} | dict(self.parameters)


@dataclass(frozen=True)
class Batch:
    watermark: datetime | None
    rows: Mapping[str, Sequence[Any]]
    """By source uid."""
    out: Mapping[str, Sequence[Any]]
    """By output, in an order of their own; the main one is called main."""
    last: bool = False


def told(story: Story) -> Iterator[Batch]:
    """Every batch of the story, and what a run's end adds to it."""
    flow = story.flow()
    (node,) = flow.operators
    sources = [_source(keyed.stream) for keyed in node.keyed]
    harness = _harness(flow, node, sources, story)
    newest: dict[str, datetime] = {}
    for batch in story.batches:
        rows = {
            source.uid: [_row(source, values) for values in batch.get(source.uid, ())] for source in sources
        }
        # As in a run: the watermark of a batch comes of the batches before.
        harness.watermark = mark = _watermark(sources, newest)
        yield Batch(mark, rows, _out(harness, lambda rows=rows: _fed(harness, list(rows.values()))))  # type: ignore[misc]
        for source in sources:
            times = [getattr(row, source.event_time) for row in rows[source.uid]] if source.event_time else []
            if times:
                newest[source.uid] = max([*times, newest.get(source.uid, times[0])])
    mark = FINAL if story.final else _watermark(sources, newest)
    if mark is not None:
        yield Batch(mark, {}, _out(harness, lambda: harness.advance(mark)), last=True)


def loaded(recipe: str) -> ModuleType:
    """The recipe's file, under a name of its own."""
    name = f"recipe_{recipe}"
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{recipe}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _source(stream: NodeRows) -> SourceNode:
    assert isinstance(stream.node, SourceNode)
    return stream.node


def _row(source: SourceNode, values: tuple[Any, ...]) -> Any:
    assert source.rows is not None
    return source.rows.make(*values)


def _watermark(sources: Sequence[SourceNode], newest: Mapping[str, datetime]) -> datetime | None:
    timed = [source for source in sources if source.event_time is not None]
    if not timed or any(source.uid not in newest for source in timed):
        return None
    return min(newest[source.uid] - timedelta(microseconds=source.watermark or 0) for source in timed)


def _harness(flow: Flow, node: KeyedNode, sources: Sequence[SourceNode], story: Story) -> Any:
    if node.columnar is not None:
        return ColumnarHarness.of(flow, node.uid)
    assert node.process is not None
    columns = [keyed.columns for keyed in node.keyed]

    def key(row: Any) -> Any:
        (names,) = {names for source, names in zip(sources, columns, strict=True) if _is_of(row, source)}
        values = tuple(getattr(row, name) for name in names)
        return values if len(values) > 1 else values[0]

    outputs = [Output(name, rows) for name, rows in node.sides.items() if name != "dead_letters"]
    return KeyedHarness(
        node.process,
        key=key,
        output=node.output,
        outputs=outputs,
        on_error=node.on_error,
        event_time=sources[0].event_time,
        parameters=story.parameters,
    )


def _is_of(row: Any, source: SourceNode) -> bool:
    return source.rows is not None and isinstance(row, source.rows.make)  # type: ignore[arg-type]


def _fed(harness: Any, inputs: Sequence[Sequence[Any]]) -> Any:
    return harness.both(*inputs) if len(inputs) == 2 else harness.rows(*inputs[0])


def _out(harness: Any, batch: Callable[[], Sequence[Any]]) -> dict[str, list[Any]]:
    before = {name: len(rows) for name, rows in harness.sides.items()}
    out = {"main": list(batch())}
    out |= {name: rows[before.get(name, 0) :] for name, rows in harness.sides.items()}
    return {name: sorted(rows, key=str) for name, rows in out.items() if rows}
