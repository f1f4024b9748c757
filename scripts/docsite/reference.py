"""The pages of the Python reference: every public name, on the page of its module. mkdocstrings reads the docstrings."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass

FOLDER = "reference"


@dataclass(frozen=True)
class Page:
    path: str
    title: str
    intro: str
    names: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join([f"# {self.title}", "", self.intro, "", *(f"::: {name}\n" for name in self.names)])


@dataclass(frozen=True)
class Topic:
    title: str
    modules: tuple[str, ...]
    """Of `stateflow`. A module is on the page that names it or, if none does, its nearest folder."""


TOPICS = {
    "pipelines": Topic(
        "Pipelines",
        (
            "pipelines.pipeline",
            "pipelines.flow",
            "pipelines.streams",
            "pipelines.delivery",
            "pipelines.inputs",
            "connectors",
            "spark",
        ),
    ),
    "processes": Topic("Processes", ("pipelines.processes",)),
    "state": Topic("State", ("state",)),
    "operators": Topic("Ready-made operators", ("pipelines.ready",)),
    "columnar": Topic("Columnar operators", ("pipelines.processes.columnar", "state.columns")),
    "jobs": Topic("Jobs", ("jobs",)),
    "errors": Topic("Errors", ("errors",)),
}
LISTS = {
    "stateflow.testing": (
        "Testing",
        "Operators without Spark, pipelines with it, sinks: `from stateflow.testing import ...`.",
    ),
    "stateflow.airflow": ("Airflow", "Operators, sensors, triggers: `from stateflow.airflow import ...`."),
}
"""Modules with a public list of their own."""


def pages() -> Iterator[Page]:
    names: dict[str, list[str]] = {topic: [] for topic in TOPICS}
    for module, public in importlib.import_module("stateflow")._ROOMS.items():
        names[topic_of(module)] += [f"stateflow.{name}" for name in sorted(public)]
    for topic, found in names.items():
        yield Page(
            f"{FOLDER}/{topic}.md", TOPICS[topic].title, "After `import stateflow as sf`.", tuple(found)
        )
    for module, (title, intro) in LISTS.items():
        public = sorted(importlib.import_module(module).__all__)
        path = f"{FOLDER}/{module.rpartition('.')[2]}.md"
        yield Page(path, title, intro, tuple(f"{module}.{name}" for name in public))


def topic_of(module: str) -> str:
    """The page of a module: `pipelines.flow` has one, `pipelines.ready.windows` is on that of `pipelines.ready`."""
    place = {module: topic for topic, of in TOPICS.items() for module in of.modules}
    name = module.removeprefix("stateflow.")
    while name:
        if name in place:
            return place[name]
        name = name.rpartition(".")[0]
    raise SystemExit(f"docs: no page takes the public names of {module}: add it to TOPICS in {__file__}")
