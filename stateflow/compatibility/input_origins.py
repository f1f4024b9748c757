"""Where the two inputs of an operator come from: a release that exchanges them would read the state of one with rows of the other. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from stateflow.format.records import OPTION_INPUTS
from stateflow.pipelines.graph import KeyedNode, NodeRows, TransformNode, origin
from stateflow.pipelines.processes.operator_spec import MAIN
from stateflow.pipelines.ready.fixed_options import listed

_COLUMNS = "columns of input "
"""How the names of options begin that say which columns an input had: a name of today may have been another column's then."""
_STEPS = "steps to its inputs"
"""Name of an option: what tells inputs apart that come from the same place."""


def input_options(node: KeyedNode) -> dict[str, str]:
    """What a record keeps of an operator's inputs."""
    columns = {f"{_COLUMNS}{n}": listed(rows.names) for n, rows in enumerate(node.rows) if rows is not None}
    if len(node.keyed) < 2:
        return columns
    steps = [_steps(keyed.stream) for keyed in node.keyed]
    return {
        OPTION_INPUTS: " and ".join(origin(keyed.stream) for keyed in node.keyed),
        **({_STEPS: " and ".join(steps)} if len(set(steps)) > 1 else {}),
        **columns,
    }


def recorded_columns(options: Mapping[str, str], number: int) -> list[str]:
    """The columns that an input had. Records of before they were noted do not tell."""
    return options.get(f"{_COLUMNS}{number}", "").split(", ")


def exchanged(node: KeyedNode, before: Mapping[str, str]) -> str:
    """Of two inputs that have changed places what they were; empty where nothing says that they have. What one input shares with the other
    tells nothing, and a part that is otherwise new is a change of the user's."""
    now = input_options(node)
    for option in (OPTION_INPUTS, _STEPS):
        sides = now.get(option, "").split(" and ")
        if len(set(sides)) > 1:
            return before[option] if before.get(option) == " and ".join(reversed(sides)) else ""
    columns = [[options.get(f"{_COLUMNS}{n}", "") for n in (0, 1)] for options in (before, now)]
    if len(node.keyed) > 1 and all(columns[0]) and columns[0] == columns[1][::-1] != columns[1]:
        return f"of {columns[0][0]} and of {columns[0][1]}"
    return ""


def _steps(stream: NodeRows) -> str:
    """The output that a stream is of, and the functions that its rows went through."""
    node = stream.node
    own = [] if stream.output == MAIN else [stream.output]
    if isinstance(node, TransformNode):
        own = [getattr(node.function, "__qualname__", "").rpartition(".")[2]]
    before = [] if node.kind else [" + ".join(_steps(each) for each in node.inputs)]
    return ", ".join(filter(None, [*before, *own]))
