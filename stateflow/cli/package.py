"""`stateflow package`: what a cluster's executors need, as files that travel with a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateflow.cli.options import File, Invocation, rootless_command
from stateflow.cli.output import Facts, Piece
from stateflow.cli.text import size

if TYPE_CHECKING:
    from stateflow.packaging.build import Package


@rootless_command
def package(
    call: Invocation,
    file: File,
    to: Annotated[
        Path, typer.Option("--to", metavar="FOLDER", help="Where the package goes.", show_default=False)
    ] = Path("dist"),
    also: Annotated[
        list[str] | None,
        typer.Option(
            "--also",
            metavar="DISTRIBUTION",
            help="An installed distribution that the code needs without importing it.",
            show_default=False,
        ),
    ] = None,
    python: Annotated[
        bool,
        typer.Option(
            "--python/--no-python",
            help="Bring the interpreter along, or have one of its minor version on every host.",
        ),
    ] = True,
    platform: Annotated[
        str,
        typer.Option(
            "--platform",
            metavar="TAG",
            help="What the cluster's hosts are, such as manylinux_2_28_x86_64; else like this one.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Packages a pipeline with the environment of its executors, tries it out, and says how a run takes it along."""
    from stateflow.packaging.build import Request
    from stateflow.packaging.build import package as build
    from stateflow.pipelines.loading import load_pipeline

    loaded = load_pipeline(file, Path.cwd())
    request = Request(
        file=loaded.path,
        name=loaded.pipeline.name,
        folder=to.resolve(),
        include_python=python,
        also=tuple(also or ()),
        platform=platform,
    )
    with call.output.progress("package") as advance:
        made = build(request, advance)
    usage, commands = _usage(made, f"{loaded.path}:{loaded.pipeline.name}")
    call.output.say(*_shown(made))
    if made.environment.made or made.pipeline.made:
        call.output.note("tried here in an empty environment: it works")
    for path in made.left_out:
        call.output.note(f"left out {path}: it is no regular file")
    call.output.answer(
        {
            **made.document,
            "folder": str(request.folder),
            "manifest": str(made.manifest),
            "left_out": [str(path) for path in made.left_out],
            "usage": usage,
        },
        *commands,
    )


def _usage(made: Package, spec: str) -> tuple[dict[str, Any], list[str]]:
    """How a run takes the package along: for programs, and as people type it."""
    from importlib.util import find_spec

    from stateflow.packaging.usage import operator_call, run_command, submit_command, typed
    from stateflow.spark.session.settings import DELTA

    conf = made.document["conf"]
    run = run_command(spec, conf)
    application = find_spec("stateflow.application.submitted")
    submit = submit_command(
        spec,
        conf,
        python=sys.executable,
        program=str(application.origin if application else "submitted.py"),
        packages=made.document["packages"],
        delta=DELTA,
    )
    operator = operator_call(spec, made.document["pipeline"], conf)
    body = {"run": run, "spark_submit": submit, "operator": operator}
    return body, ["", typed(run), "", typed(submit), "", operator]


def _shown(made: Package) -> Iterator[Piece]:
    body = made.document
    runs_on = f"{body['platform']['system']} {body['platform']['machine']}"
    if body["platform"]["glibc"]:
        runs_on += f", glibc {body['platform']['glibc']} or newer"
    python = f"CPython {body['python']['version']}"
    python += ", included" if body["python"]["included"] else "; every host needs one of this minor version"
    yield Facts(
        [
            ("pipeline", f"{body['pipeline']} ({body['archives']['pipeline']['files']} files)"),
            ("stateflow", f"{body['stateflow']}, for Spark {body['spark']}"),
            ("python", python),
            ("runs on", runs_on),
            ("host libraries", ", ".join(body["platform"]["libraries"])),
            (
                "distributions",
                ", ".join(f"{name} {version}" for name, version in body["requirements"].items()),
            ),
        ]
    )
    for archive in (made.environment, made.pipeline):
        kept = "" if archive.made else ", was there already"
        yield f"{archive.path}  {size(archive.size)} ({size(archive.unpacked)} unpacked{kept})"
    yield str(made.manifest)
