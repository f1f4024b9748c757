"""A key of a past batch as a pytest file: its state, its rows and the time of the batch as literals, and what is right."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateflow.debugging.literals import Literals, Unwritable
from stateflow.debugging.past_key import PastKey
from stateflow.debugging.trial import Trial, beginning, harness_of
from stateflow.errors import NotFoundError, StateflowError, UsageError
from stateflow.format.instants import instant, nearest_instant
from stateflow.format.records import Record
from stateflow.masking import masked
from stateflow.pipelines.loading import LoadedPipeline
from stateflow.reading.predicates import condition
from stateflow.reading.query import unknown_operator
from stateflow.testing.keyed import KeyedHarness

STANDARD = frozenset({"datetime", "decimal", "pathlib", "uuid"})
"""Modules of Python that a written test may import."""


@dataclass(frozen=True)
class Expectation:
    """What is right after the batch, of one state: a condition, or a value as JSON has it. Neither: nobody has said it yet."""

    state: str = ""
    condition: str = ""
    value: str | None = None

    def of(self, uid: str, record: Record) -> Expectation:
        """With the name of its state, checked against the checkpoint that the batch made. UsageError says which there are."""
        if not self.condition and self.value is None:
            return self
        if uid not in record.operators:
            raise NotFoundError(unknown_operator(record, uid))
        states = record.operators[uid].states
        names = ", ".join(sorted(states)) or "none"
        state = self.state or (next(iter(states)) if len(states) == 1 else "")
        if not state:
            raise UsageError(f"operator {uid!r} has several states: say of which, with --state ({names})")
        if state not in states:
            raise UsageError(
                f"operator {uid!r} has no state {state!r} in checkpoint {record.slot}: its states are {names}"
            )
        if self.condition:
            condition(self.condition, states[state], "--expect")
        else:
            _json(self.value or "")
        return Expectation(state, self.condition, self.value)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise UsageError(
            f"--expect-value {text!r} is not JSON: write it as `stateflow query` shows it, a text in quotes"
        ) from None


def refuse_file(file: Path) -> None:
    """UsageError for a file that is there, or that pytest would not take."""
    if file.suffix != ".py":
        raise UsageError(f"--test {file} is no file of Python: end it in .py, as in tests/test_42.py")
    if file.exists():
        raise UsageError(f"{file} is there already: name another file, or remove it")


def write_test(trial: Trial, loaded: LoadedPipeline, file: Path, expectation: Expectation) -> str:
    """Writes the file, runs it, and says what this code makes of it. A file that cannot even be run does not stay."""
    refuse_file(file)
    expectation = expectation.of(trial.past.node.uid, trial.past.record)
    text = _Test(trial, loaded, file, expectation).text()
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        file.write_text(text, encoding="utf-8")
        return _outcome(file, text)
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def _outcome(file: Path, text: str) -> str:
    """What this code makes of the test."""
    names: dict[str, Any] = {"__file__": str(file), "__name__": file.stem}
    exec(compile(text, str(file), "exec"), names)
    test = next(value for name, value in names.items() if name.startswith("test_"))
    try:
        test()
    except AssertionError as error:
        why = str(error).partition("\n")[0]
        return f"wrote {file}, which fails with this code" + (f": {why}" if why else "")
    except StateflowError as error:
        return f"wrote {file}, which fails with this code: {error}"
    return f"wrote {file}, which passes with this code"


class _Test:
    """The text of a test."""

    def __init__(self, trial: Trial, loaded: LoadedPipeline, file: Path, expectation: Expectation) -> None:
        self.trial, self.past, self.loaded, self.file = trial, trial.past, loaded, file
        self.expectation = expectation
        self.literals = Literals(loaded.module, frozenset(each.__name__ for each in loaded.siblings()))
        self.kind = "KeyedHarness" if self.past.node.columnar is None else "ColumnarHarness"
        self.names = ("ROWS",) if len(self.past.rows.inputs) == 1 else ("LEFT", "RIGHT")

    def text(self) -> str:
        past = self.past
        states = _readable_states(past)
        try:
            before = None if states is None else self._shown(states)
        except Unwritable:
            before = None
        body = [*self._constants(before), "", "", *self._function(raw=before is None)]
        imports = self.literals.imports | {
            "from pathlib import Path",
            "from stateflow.pipelines.loading import load_pipeline",
            f"from stateflow.testing import {self.kind}",
        }
        if before is None:
            imports.add("from stateflow.testing.recorded import RecordedState")
        title = [
            f"# Key {past.text!r} of operator {past.node.uid!r} in the batch of checkpoint {past.slot} of job {past.job!r}, as",
            "# `stateflow debug` wrote it. The file has values of the job's rows and state.",
        ]
        return "\n".join([*title, "", *_grouped(imports), "", *self._loaded(), *body, ""])

    def _loaded(self) -> Iterator[str]:
        path = os.path.relpath(self.loaded.path, self.file.resolve().parent)
        name = f"{path}:{self.loaded.pipeline.name}"
        yield f"LOADED = load_pipeline({name!r}, Path(__file__).parent)"
        if self.literals.uses_code:
            yield "CODE = LOADED.module"
        if self.literals.imports_beside:
            yield from ("", "# These lie beside the pipeline: Python finds them once it is loaded.")
            yield from _from_lines(self.literals.imports_beside).values()
            yield ""

    def _shown(self, values: Mapping[str, Any]) -> list[str]:
        """A dict with an entry a line."""
        if not values:
            return ["{}"]
        return ["{", *(f"    {name!r}: {self.literals.text(value)}," for name, value in values.items()), "}"]

    def _constants(self, before: list[str] | None) -> Iterator[str]:
        past, text = self.past, self.literals.text
        parameters = {name: masked(name, str(value)) for name, value in past.parameters.items()}
        yield from _assigned("PARAMETERS", self._shown(parameters))
        yield f"KEY = {text(_plain_key(past.key))}"
        if before is None:
            yield f"# As people read it: {json.dumps(self.trial.before, ensure_ascii=False)}"
            yield f"BEFORE = RecordedState.of_text({beginning(past).text!r})"
        else:
            yield from _assigned("BEFORE", before)
        for name, rows in zip(self.names, past.rows.inputs, strict=True):
            lines = [f"    {text(row)}," for row in rows.plain()]
            yield from _assigned(name, ["[", *lines, "]"] if lines else ["[]"])
        if any(past.rows.broadcast.values()):
            yield from _assigned(
                "BROADCAST", self._shown({n: list(r) for n, r in past.rows.broadcast.items()})
            )

    def _function(self, *, raw: bool) -> Iterator[str]:
        past, text = self.past, self.literals.text
        moment, then = past.moment, past.then
        name = re.sub("[^0-9A-Za-z_]+", "_", f"{past.node.uid}_of_{past.text}_at_checkpoint_{past.slot}")
        yield f"def test_{name}():"
        yield "    flow = LOADED.pipeline.build(PARAMETERS)"
        yield f"    harness = {self.kind}.of("
        yield "        flow,"
        yield f"        {past.node.uid!r},"
        if self.kind == "ColumnarHarness" or None in past.node.rows:
            # Else the pipeline says of which class they are, whose methods the operator may call.
            yield f"        rows={[rows.type.ddl for rows in past.rows.inputs]!r},"
        if raw:
            yield "        after=BEFORE,"
        yield "        parameters=LOADED.pipeline.arguments(PARAMETERS),"
        yield f"        max_parallelism={then.operator.max_parallelism},"
        yield "    )"
        yield "    harness.stand_at("
        yield f"        slot={moment.slot},"
        yield f"        now={text(instant(moment.now))},"
        yield f"        seed={moment.seed},"
        for what, mark in (("watermark", moment.watermark), ("watermark_before", moment.watermark_before)):
            if mark is not None:
                yield f"        {what}={text(nearest_instant(mark))},"
        yield f"        subtask=({then.subtask}, {len(then.operator.assignment)}),"
        yield "    )"
        if not raw:
            yield "    harness.put(KEY, **BEFORE)"
        yield ""
        yield f"    {self._call()}"
        yield ""
        yield from (f"    {line}" for line in self._asserted())

    def _call(self) -> str:
        late = [list(rows.late) for rows in self.past.rows.inputs]
        flags = f", late={late if len(late) > 1 else late[0]}" if any(map(any, late)) else ""
        if self.kind == "ColumnarHarness":
            return f"harness.rows(*ROWS{flags})" if len(late) == 1 else f"harness.both(LEFT, RIGHT{flags})"
        flags = f", late={[flag for each in late for flag in each]}" if any(map(any, late)) else ""
        broadcast = ", broadcast=BROADCAST" if any(self.past.rows.broadcast.values()) else ""
        return f"harness.batch({', '.join(self.names)}{flags}{broadcast})"

    def _asserted(self) -> Iterator[str]:
        expectation = self.expectation
        if expectation.condition:
            yield f"harness.expect({expectation.condition!r}, of={expectation.state!r}, key=KEY)"
        elif expectation.value is not None:
            right = self.literals.text(_json(expectation.value))
            yield f"assert harness.shown(KEY).get({expectation.state!r}) == {right}"
        else:
            yield f"# Put the right values here. Checkpoint {self.past.slot} holds:"
            for name, value in self.trial.then.items():
                yield f"#     {name!r}: {self.literals.text(value)}"
            yield 'right = {"the state": "its right value"}'
            yield "assert harness.shown(KEY) == right"


def _readable_states(past: PastKey) -> dict[str, Any] | None:
    """The states as a test can put them; None if putting them would not give the same."""
    if past.node.columnar is not None or past.before.operator.operator_states:
        return None
    harness = harness_of(past)
    assert isinstance(harness, KeyedHarness)
    states = harness.snapshot(past.key)
    again = KeyedHarness.of(
        past.flow, past.node.uid, rows=[rows.type for rows in past.rows.inputs], now=harness.now,
        max_parallelism=past.before.operator.max_parallelism,
    )  # fmt: skip
    try:
        again.put(past.key, **states)
    except StateflowError:
        return None
    return states if again.snapshot(past.key) == states else None


def _plain_key(key: Any) -> Any:
    return tuple(key) if isinstance(key, tuple) else key


def _assigned(name: str, lines: list[str]) -> Iterator[str]:
    yield f"{name} = {lines[0]}"
    yield from lines[1:]


def _grouped(imports: Iterable[str]) -> list[str]:
    """Imports of one module on a line, those of the standard library first."""
    lines = _from_lines(imports)
    standard = [line for module, line in lines.items() if module in STANDARD]
    return [*standard, "", *(line for module, line in lines.items() if module not in STANDARD)]


def _from_lines(imports: Iterable[str]) -> dict[str, str]:
    """By the module, in order."""
    names: dict[str, set[str]] = {}
    for each in imports:
        module, _, name = each.removeprefix("from ").partition(" import ")
        names.setdefault(module, set()).add(name)
    return {module: f"from {module} import {', '.join(sorted(of))}" for module, of in sorted(names.items())}
