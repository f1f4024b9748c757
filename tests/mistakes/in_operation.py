"""Mistakes of whoever operates a pipeline: jobs, tables, releases, the words of a command."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.mistakes.case import CASES, Case
from tests.mistakes.in_code import misspelt
from tests.mistakes.play import Mistake, files_in_turn
from tests.mistakes.scene import Scene, lines


def mistakes() -> Iterator[Mistake]:
    for case in CASES.values():
        for kind, play in _PLAYS.items():
            yield Mistake(kind, "", case, case.text, play)
        for name in (*case.files, "output"):
            yield Mistake("a misspelt parameter", name, case, case.text, partial(_parameter, name=name))
        for folder in case.files:
            yield Mistake(
                "a folder that is not there", folder, case, case.text, partial(_other_folder, folder=folder)
            )
            if len(case.files) > 1:
                meant = {**case.rows(), folder: list(case.files[folder][0])}
                play = partial(_stopped, folder=folder)
                yield Mistake("a source that stops", folder, case, case.text, play, meant)
        yield from _releases(case)


def _second_job(scene: Scene) -> None:
    files_in_turn(scene, lambda scene, run: None)
    scene.check()
    scene.run(job="another", final=True)


def _other_root(scene: Scene) -> None:
    """The checkpoints are looked for in another place, so the job begins again."""

    def moved(scene: Scene, run: int) -> None:
        if run:
            (scene.folder / "checkpoints").rename(scene.folder / "earlier")

    files_in_turn(scene, moved)


def _misspelt_option(scene: Scene) -> None:
    scene.options += ["--option", "parallelsim=2"]
    files_in_turn(scene, lambda scene, run: None)


def _option_of_another_type(scene: Scene) -> None:
    scene.options += ["--option", "parallelism=two"]
    files_in_turn(scene, lambda scene, run: None)


def _table_deleted(scene: Scene) -> None:
    def deleted(scene: Scene, run: int) -> None:
        if run:
            shutil.rmtree(scene.folder / "output")

    files_in_turn(scene, deleted)


def _table_went_back(scene: Scene) -> None:
    """Somebody restores the table to what it was before the run."""
    from delta.tables import DeltaTable
    from pyspark.sql import SparkSession

    case = scene.case
    for run in range(case.runs):
        for folder, files in case.files.items():
            scene.write(folder, lines(case, files[run]))
        scene.run()
    output = scene.folder / "output"
    if sum(1 for _ in (output / "_delta_log").glob("*.json")) > 1:
        spark = SparkSession.getActiveSession()
        assert spark is not None
        DeltaTable.forPath(spark, str(output)).restoreToVersion(0)
    scene.run(final=True)


def _table_of_text(scene: Scene) -> None:
    """There is a table already, all of whose columns are text."""
    _made(scene, lambda name, kind: f"{name} string")
    files_in_turn(scene, lambda scene, run: None)


def _table_in_another_order(scene: Scene) -> None:
    _made(scene, lambda name, kind: f"{name} {kind}", turned=True)
    files_in_turn(scene, lambda scene, run: None)


def _table_in_capitals(scene: Scene) -> None:
    _made(scene, lambda name, kind: f"{name.upper()} {kind}")
    files_in_turn(scene, lambda scene, run: None)


def _made(scene: Scene, column: Callable[[str, str], str], *, turned: bool = False) -> None:
    """An empty table with the columns that the sink would have given it, but for something."""
    from stateflow.pipelines.loading import load_pipeline
    from stateflow.spark.session.build import build_session

    file = scene.folder / f"{scene.case.recipe}.py"
    file.write_text(scene.text, encoding="utf-8")
    flow = load_pipeline(f"{file}", Path.cwd()).pipeline.build(scene.parameters)
    sink = next(
        sink for sink in flow.sinks if getattr(sink.target, "path", "") == str(scene.folder / "output")
    )
    rows = sink.inputs[0].rows
    fields = [(field.name, field.type) for field in rows.fields] if rows is not None else []
    columns = [column(*field) for field in (reversed(fields) if turned else fields)]
    spark = build_session("tests of mistakes", master="local[2]")
    spark.createDataFrame([], ", ".join(columns)).write.format("delta").save(str(scene.folder / "output"))


def _rewritten(scene: Scene) -> None:
    """A file that was read is written again, with its rows and those of the next run."""
    case = scene.case
    written: dict[str, Path] = {}
    for folder, files in case.files.items():
        written[folder] = scene.write(folder, lines(case, files[0]))
    scene.run()
    for folder, files in case.files.items():
        written[folder].write_text(lines(case, [row for file in files for row in file]), encoding="utf-8")
    scene.check()
    scene.run(final=True)


def _taken_away(scene: Scene) -> None:
    """A file is gone before the run that would read it, and so is one that was read."""

    def gone(scene: Scene, run: int) -> None:
        if run:
            for folder in scene.case.files:
                min((scene.folder / folder).iterdir()).unlink()

    files_in_turn(scene, gone)


_PLAYS: dict[str, Callable[[Scene], None]] = {
    "a second job on the same outputs": _second_job,
    "checkpoints in another place": _other_root,
    "a misspelt option of the run": _misspelt_option,
    "an option of another type": _option_of_another_type,
    "an output that was deleted": _table_deleted,
    "an output that went back": _table_went_back,
    "a table of other types": _table_of_text,
    "a table in another order": _table_in_another_order,
    "a table in capitals": _table_in_capitals,
    "a file that is written again": _rewritten,
    "a file that was read and is gone": _taken_away,
}


def _parameter(scene: Scene, name: str) -> None:
    scene.parameters[misspelt(name)] = scene.parameters.pop(name)
    files_in_turn(scene, lambda scene, run: None)


def _other_folder(scene: Scene, folder: str) -> None:
    scene.parameters[folder] += "s"
    files_in_turn(scene, lambda scene, run: None)


def _stopped(scene: Scene, folder: str) -> None:
    """One source gets no more rows, and the run is not the last."""
    case = scene.case
    for run in range(case.runs):
        for each, files in case.files.items():
            if run == 0 or each != folder:
                scene.write(each, lines(case, files[run]))
        scene.check()
        scene.run()


def _releases(case: Case) -> Iterator[Mistake]:
    """The next release calls something otherwise."""
    tree = ast.parse(case.text)
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    uids = [
        (call.func.attr, call.args[0].value)
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr
        in ("source", "append", "upsert", "aggregate", "deduplicate", "join", "join_asof", "latest", "top")
        and call.args
        and isinstance(call.args[0], ast.Constant)
    ]
    for step, uid in uids:
        kind = {"source": "a source", "append": "a sink", "upsert": "a sink"}.get(step, "an operator")
        new = case.text.replace(f'.{step}("{uid}"', f'.{step}("{uid}-2"').replace(
            f'.{step}(\n        "{uid}"', f'.{step}(\n        "{uid}-2"'
        )
        if new != case.text:
            yield Mistake(f"a release that renames {kind}", uid, case, case.text, partial(_released, new=new))
    fields = {
        field.target.id
        for of in tree.body
        if isinstance(of, ast.ClassDef)
        for field in of.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }
    for name in sorted(fields - set(case.files) - {case.recipe}):
        new = re.sub(rf"\b{name}\b(?!\()", f"{name}_2", case.text)
        yield Mistake("a release that renames a field", name, case, case.text, partial(_released, new=new))


def _released(scene: Scene, new: str) -> None:
    def released(scene: Scene, run: int) -> None:
        if run:
            scene.text = new

    files_in_turn(scene, released)
