"""A named function that declares a flow, and what it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stateflow.errors import StateflowError, UsageError, placed, without_exit
from stateflow.format.layout import checked_name
from stateflow.pipelines.code.bound_code import BoundCode
from stateflow.pipelines.code.own_code import OwnFiles
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import KeyedNode, Node, SinkNode
from stateflow.pipelines.parameters import from_text, required_parameters
from stateflow.pipelines.sinks import refuse_own_output

if TYPE_CHECKING:
    from stateflow.format.records import Record


@dataclass(frozen=True)
class Pipeline:
    """A named function that declares a flow; `build` runs it with parameters."""

    name: str
    function: Callable[..., Any]
    versions: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Which version of its code this is, for the records of its runs; empty when it was not loaded from a file."""
    code: BoundCode = field(default_factory=BoundCode, compare=False, repr=False)
    """The files that it was loaded from; empty when it was not."""
    own_files: OwnFiles = field(default_factory=OwnFiles, compare=False, repr=False)
    """What it imports from beside its file is taken from these."""
    allow_non_restored_state: bool = field(default=False, compare=False, repr=False)
    """Whether its flow may let go of state: said by whoever runs, restores or checks it, and decided in `compatibility.non_restored`."""

    def build(self, parameters: Mapping[str, Any] | None = None) -> Flow:
        """The flow, checked. Texts become the types that parameters are annotated with."""
        flow = Flow(self.name)
        flow.allow_non_restored_state = self.allow_non_restored_state
        arguments = self.arguments(parameters or {})
        try:
            # The process may have loaded another pipeline since, with modules of the same names.
            with self.own_files.first(), without_exit(f"pipeline {self.name!r}"):
                self.function(flow, **arguments)
        except StateflowError:
            raise
        except Exception as error:
            raise UsageError(
                f"pipeline {self.name!r} cannot be built: {placed(error)}; `stateflow check` repeats this without Spark"
            ) from error
        if not flow.sources:
            raise UsageError(f"pipeline {self.name!r} has no source: begin with flow.source(...)")
        if not flow.sinks and not flow.operators:
            raise UsageError(f"pipeline {self.name!r} does nothing: add an operator or a sink")
        refuse_own_output(((node.uid, node.factory) for node in flow.sources), flow.sinks)
        for node in flow.nodes:
            if not isinstance(node, SinkNode) and not _keeps_state(node) and not flow.consumers(node):
                raise UsageError(
                    f"pipeline {self.name!r} does nothing with the rows of {node.uid!r}: add a sink, such as "
                    ".append(uid, sf.delta(path)), or leave the step out"
                )
        for operator in flow.operators:
            read = flow.read_outputs(operator)
            for output, feed in operator.feeds.items():
                if output not in read:
                    raise UsageError(
                        f"pipeline {self.name!r} does nothing with the feed of state {feed.state!r} of operator {operator.uid!r}: add a "
                        "sink, such as .append(uid, sf.delta(path)), or leave state_changes() out"
                    )
        if not any(node.event_time for node in flow.sources):
            for operator in flow.operators:
                _refuse_waiting_for_ever(operator)
        return flow

    def parameters_behind(self, record: Record | None, given: Mapping[str, Any]) -> dict[str, Any]:
        """The given parameters, and for required ones that are missing those of the record. UsageError for wrong ones."""
        values = {**required_parameters(self.function, record), **given}
        self.arguments(values)
        return values

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        signature = inspect.signature(self.function, eval_str=True)
        accepted = list(signature.parameters.values())[1:]
        names = {p.name for p in accepted}
        if not any(p.kind is p.VAR_KEYWORD for p in accepted):
            for name in values:
                if name not in names:
                    known = ", ".join(sorted(names)) or "none"
                    raise UsageError(f"pipeline {self.name!r} has no parameter {name!r}; it takes: {known}")
        out: dict[str, Any] = {}
        for parameter in accepted:
            if parameter.name in values:
                out[parameter.name] = from_text(self.name, parameter, values[parameter.name])
            elif parameter.default is parameter.empty and parameter.kind is parameter.KEYWORD_ONLY:
                raise UsageError(
                    f"pipeline {self.name!r} needs parameter {parameter.name!r}: give it, on a command line with -p {parameter.name}=VALUE"
                )
        for name in values:
            out.setdefault(name, values[name])
        return out

    def __call__(self, flow: Flow, **parameters: Any) -> Any:
        return self.function(flow, **parameters)


def pipeline(name: str) -> Callable[[Callable[..., Any]], Pipeline]:
    """Names a function `(flow, *, parameters)` as a pipeline; the name is the job's, unless a run says otherwise."""
    checked_name("pipeline", name)

    def wrap(function: Callable[..., Any]) -> Pipeline:
        return Pipeline(name, function)

    return wrap


def _refuse_waiting_for_ever(operator: KeyedNode) -> None:
    """Without event time no watermark moves, so that neither a timer nor a ttl of event time is ever due."""
    if operator.process_type is None:
        return
    found = operator.process_type.declarations()
    for name, timer in found.timers.items():
        if timer.time == "event":
            raise _never_due(operator, f"timer {name!r}", 'sf.Timer("processing")')
    for name, state in found.states.items():
        if state.expiry is not None and state.expiry.time == "event":
            raise _never_due(operator, f"the ttl of state {name!r}", 'time="processing"')


def _never_due(operator: KeyedNode, what: str, instead: str) -> UsageError:
    return UsageError(
        f"operator {operator.uid!r}: {what} waits for event time, and no source has any: give a source event_time= and "
        f"watermark=, or take {instead}"
    )


def _keeps_state(node: Node) -> bool:
    """State can be queried: an operator that has some is of use without a sink."""
    if not isinstance(node, KeyedNode):
        return False
    if node.columnar is not None:
        return bool(node.columnar.states)
    found = node.process_type.declarations() if node.process_type is not None else None
    return found is not None and bool(found.states or found.timers or found.operator)
