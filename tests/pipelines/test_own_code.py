"""A run's own modules are those that were there when its file was loaded, whatever is written over them while it lives."""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from stateflow.errors import UsageError
from stateflow.jobs.job import Job
from stateflow.jobs.running import run_loaded, shipped
from stateflow.pipelines.code.own_code import OwnFiles
from stateflow.pipelines.loading import LoadedPipeline, load_functions, load_pipeline
from stateflow.spark.session.sent_modules import SentModules
from stateflow.testing import FlowHarness
from tests.jobs.builder import options_of
from tests.refusals.refusal import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = """
import stateflow as sf
import own_rates
G = 1

class Balance(sf.KeyedProcess):
    total = sf.ValueState(int, default=0)

    def process(self, user, rows, ctx):
        from own_lazy.sums import added
        for row in rows:
            self.total.value += G * own_rates.rate() * added(row.amount)
        yield user, self.total.value

@sf.pipeline("own")
def own(flow, *, input: str, output: str) -> None:
    rows = flow.source("rows", sf.files(input, "json", per_batch=1), "user int, amount int")
    rows.key_by("user").process("balance", Balance, output="user int, total long").append("out", sf.delta(output))

def now():
    from own_lazy.sums import added
    return G, own_rates.rate(), added(5)
"""


class OwnProject:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "own_lazy").mkdir()
        (folder / "own_lazy" / "__init__.py").touch()
        (folder / "own_lazy" / "share.txt").write_text("1")
        self.write(1)

    def write(self, factor: int) -> None:
        """Files of one size and one time, whatever is in them."""
        texts = {
            "pipeline.py": PIPELINE.replace("G = 1", f"G = {factor}"),
            "own_rates.py": f"def rate():\n    return {factor}\n",
            "own_lazy/sums.py": "from pathlib import Path\nSHARE = int(Path(__file__).with_name('share.txt').read_text())\n\n"
            f"def added(x):\n    return x * SHARE * {factor}\n",
        }
        for name, text in texts.items():
            (self.folder / name).write_text(text)
            os.utime(self.folder / name, (1_700_000_000, 1_700_000_000))

    def load(self) -> LoadedPipeline:
        return load_pipeline("pipeline.py", self.folder)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", list(sys.path))
    # An import in a test would find the modules of the pipeline that was loaded last.
    OwnFiles(str(tmp_path)).freeze()
    yield OwnProject(tmp_path)
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def test_what_is_imported_later_is_what_was_there_when_the_file_was_loaded(project: OwnProject) -> None:
    loaded: Any = project.load()
    project.write(7)
    assert loaded.module.now() == (1, 1, 5)
    assert Path(sys.modules["own_lazy.sums"].__file__ or "").parent == project.folder / "own_lazy"


def test_the_next_load_takes_all_files_anew_though_their_sizes_and_times_are_the_same(
    project: OwnProject,
) -> None:
    for factor in (1, 7, 1):
        project.write(factor)
        loaded: Any = project.load()
        assert loaded.module.now() == (factor, factor, 5 * factor)


def test_no_bytecode_of_an_earlier_text_is_run(project: OwnProject) -> None:
    code = "from stateflow.pipelines.loading import load_pipeline as l; from pathlib import Path; print(l('pipeline.py', Path('.')).module.now())"
    said = []
    for factor in (1, 7):
        project.write(factor)
        told = subprocess.run(
            [sys.executable, "-c", code], cwd=project.folder, capture_output=True, text=True, check=True
        )
        said.append(told.stdout.strip())
    assert said == ["(1, 1, 5)", "(7, 7, 35)"]


def test_what_is_the_same_is_not_imported_again(project: OwnProject) -> None:
    project.load()
    before = sys.modules["own_rates"]
    project.load()
    assert sys.modules["own_rates"] is before


def test_of_loads_that_are_over_no_texts_stay(project: OwnProject) -> None:
    """A scheduler's process, or one that serves pages, loads the same files for months."""
    loads: list[weakref.ref[object]] = []
    for factor in (1, 1, 7, 1, 7, 7):
        project.write(factor)
        loads.append(weakref.ref(project.load().pipeline.own_files))
    gc.collect()
    last = project.load().pipeline.own_files
    assert [load() for load in loads] == [None, None, None, None, last, last]


def test_modules_that_gave_way_come_back_with_the_next_load_of_the_same_texts(project: OwnProject) -> None:
    one, two = (
        written(project.folder / name, p=LAZY, own_rates=f"NAME = {name!r}\n") for name in ("one", "two")
    )
    imported = []
    for folder in (one, two, one, two):
        load_pipeline("p.py", folder)
        imported.append(importlib.import_module("own_rates"))
    assert imported[:2] == imported[2:]
    assert [module.NAME for module in imported[:2]] == ["one", "two"]


def test_a_pipeline_of_no_file_adds_no_working_folder_to_the_path_of_a_worker() -> None:
    assert SentModules.of(OwnFiles(), "/modules") == SentModules(("/modules",))


def test_a_worker_that_begins_later_has_them_too(project: OwnProject) -> None:
    loaded = project.load()
    own = SentModules.of(loaded.pipeline.own_files)
    project.write(7)
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]
    own.enter()
    assert importlib.import_module("own_rates").rate() == 1
    assert importlib.import_module("own_lazy.sums").added(5) == 5


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/', 1)}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


LAZY = """
import stateflow as sf
import own_rates

@sf.pipeline("p")
def p(flow, *, input: str) -> None:
    from own_places import PLACE
    rows = flow.source("rows", sf.files(input, "json"), "user int")
    rows.append("out", sf.delta(f"{PLACE}/{own_rates.RATE}"))
"""


def targets(loaded: LoadedPipeline) -> list[str]:
    return [sink.target.path for sink in loaded.pipeline.build({"input": "/in"}).sinks]


def test_two_pipelines_of_a_process_have_each_their_own_modules_of_one_name(project: OwnProject) -> None:
    one, two = (
        load_pipeline(
            "p.py",
            written(
                project.folder / name, p=LAZY, own_rates=f"RATE = '{name}'", own_places=f"PLACE = '/{name}'"
            ),
        )
        for name in ("one", "two")
    )
    assert (targets(one), targets(two), targets(one)) == (["/one/one"], ["/two/two"], ["/one/one"])


def test_a_changed_module_in_a_folder_without_init_is_taken_anew(project: OwnProject) -> None:
    text = LAZY.replace("import own_rates", "from own_space import own_rates")
    seen = []
    for factor in (1, 7):
        written(project.folder, p=text, own_space__own_rates=f"RATE = {factor}", own_places="PLACE = '/x'")
        seen += targets(load_pipeline("p.py", project.folder))
    assert seen == ["/x/1", "/x/7"]


@pytest.mark.parametrize("becomes", ["nothing", "a module", "a package"])
def test_a_folder_without_init_is_what_it_was_for_a_worker_that_begins_later(
    becomes: str, project: OwnProject
) -> None:
    text = LAZY.replace("import own_rates", "from own_space.deep import own_rates")
    written(project.folder, p=text, own_places="PLACE = '/x'")
    written(project.folder / "own_space", deep__own_rates="RATE = 1")
    own = SentModules.of(load_pipeline("p.py", project.folder).pipeline.own_files)
    shutil.rmtree(project.folder / "own_space")
    if becomes == "a module":
        written(project.folder, own_space="")
    if becomes == "a package":
        written(project.folder, own_space____init__="", own_space__deep="")
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    own.enter()
    assert importlib.import_module("own_space.deep.own_rates").RATE == 1


@pytest.mark.parametrize("becomes", ["nothing", "a package"])
def test_a_module_that_goes_while_the_run_lives_is_still_there_for_it(
    becomes: str, project: OwnProject
) -> None:
    written(project.folder, p=LAZY, own_rates="RATE = 1", own_places="PLACE = '/x'")
    loaded = load_pipeline("p.py", project.folder)
    (project.folder / "own_places.py").unlink()
    if becomes == "a package":
        written(project.folder, own_places____init__="PLACE = '/y'")
    assert targets(loaded) == ["/x/1"]


def test_a_module_comes_before_a_folder_of_its_name_that_is_no_package(project: OwnProject) -> None:
    written(project.folder, p=LAZY, own_rates="RATE = 1", own_rates__made="", own_places="PLACE = '/x'")
    loaded = load_pipeline("p.py", project.folder)
    assert targets(loaded) == ["/x/1"]
    assert list(loaded.pipeline.code.files) == ["own_places.py", "own_rates.py", "p.py"]


@pytest.mark.parametrize("name", ["queue", "calendar", "delta", "json____init__"])
def test_a_file_that_workers_would_take_for_another_module_is_refused(name: str, project: OwnProject) -> None:
    written(project.folder, p=LAZY, own_rates="RATE = 1", own_places="PLACE = '/x'", **{name: ""})
    with refused(UsageError, name.partition("__")[0], "rename it"):
        load_pipeline("p.py", project.folder)
    (project.folder / f"{name.replace('__', '/', 1)}.py").unlink()
    assert targets(load_pipeline("p.py", project.folder)) == ["/x/1"]


def test_an_environment_beside_a_pipeline_is_no_shadow_of_itself(project: OwnProject) -> None:
    import msgspec

    written(project.folder, p=LAZY, own_rates="RATE = 1", own_places="PLACE = '/x'")
    (project.folder / "pip-1.dist-info").mkdir()
    (project.folder / "pip-1.dist-info" / "RECORD").write_text("msgspec/__init__.py,,\njson/__init__.py,,\n")
    (project.folder / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    assert targets(load_pipeline("p.py", project.folder)) == ["/x/1"]
    assert sys.modules["msgspec"] is msgspec
    written(project.folder, json____init__="")
    with refused(UsageError, "json/__init__.py", "rename it"):
        load_pipeline("p.py", project.folder)


def test_two_pipelines_of_one_name_in_a_file_are_refused(project: OwnProject) -> None:
    written(
        project.folder,
        p=LAZY + LAZY.replace("def p(", "def refunds("),
        own_rates="RATE = 1",
        own_places="PLACE = '/x'",
    )
    for spec in ("p.py", "p.py:refunds"):
        with refused(UsageError, "p and refunds", "another"):
            load_pipeline(spec, project.folder)
    written(project.folder, p=LAZY + "\n\nq = p\n")
    assert targets(load_pipeline("p.py:q", project.folder)) == ["/x/1"]


def test_what_python_has_installed_is_not_beside_a_pipeline_above_it(project: OwnProject) -> None:
    loaded = replace(project.load(), path=Path("/pipeline.py"))
    names = {module.__name__ for module in loaded.siblings()}
    assert "own_rates" in names
    assert not names & {"json", "msgspec", "pytest", "stateflow"}


def test_a_file_that_is_loaded_again_is_not_beside_itself(project: OwnProject) -> None:
    first, second = project.load(), project.load()
    assert first.module is not second.module
    for each in (first, second):
        assert [module.__name__ for module in each.siblings()] == ["own_rates"]


def test_the_file_itself_is_the_one_that_was_loaded_for_who_imports_it(project: OwnProject) -> None:
    text = "import own_rates\nLIMIT = 1\n" + LAZY.replace("own_rates.RATE", "own_rates.limit()")
    helper = "def limit():\n    import own_p\n    return own_p.LIMIT\n"
    loaded = []
    for name, factor in (("one", 1), ("two", 7)):
        folder = written(
            project.folder / name,
            own_p=text.replace("= 1", f"= {factor}"),
            own_rates=helper,
            own_places="PLACE = '/x'",
        )
        loaded.append(load_pipeline("own_p.py", folder))
        written(folder, own_p=text.replace("= 1", "= 99"))
    assert [targets(each) for each in loaded] == [["/x/1"], ["/x/7"]]


def test_modules_that_are_imported_by_a_computed_name_are_those_of_the_pipeline(project: OwnProject) -> None:
    text = LAZY.replace(
        "import own_rates\n", "import importlib\nown_rates = importlib.import_module('own_' + 'rates')\n"
    )
    for name in ("one", "two"):
        folder = written(
            project.folder / name, p=text, own_rates=f"RATE = '{name}'", own_places="PLACE = '/x'"
        )
        assert targets(load_pipeline("p.py", folder)) == [f"/x/{name}"]


def test_a_module_that_python_has_imported_before_it_changed_is_imported_anew(
    project: OwnProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(project.folder, p=LAZY, own_rates="RATE = 1", own_places="PLACE = '/x'")
    monkeypatch.syspath_prepend(project.folder)
    before = importlib.import_module("own_rates")
    written(project.folder, own_rates="RATE = 22")
    assert targets(load_pipeline("p.py", project.folder)) == ["/x/22"]
    assert before.RATE == 1


def test_a_module_that_is_reloaded_by_hand_is_the_file_as_it_is(project: OwnProject) -> None:
    written(project.folder, p=LAZY, own_rates="RATE = 1", own_places="PLACE = '/x'")
    load_pipeline("p.py", project.folder)
    written(project.folder, own_rates="RATE = 22")
    assert importlib.reload(sys.modules["own_rates"]).RATE == 22


def test_a_module_that_is_reloaded_by_hand_and_deleted_is_what_it_was_for_a_build(
    project: OwnProject,
) -> None:
    written(project.folder, p=LAZY, own_rates="RATE = 1", own_places="PLACE = '/x'")
    loaded = load_pipeline("p.py", project.folder)
    written(project.folder, own_places="PLACE = '/other'")
    importlib.reload(importlib.import_module("own_places"))
    (project.folder / "own_places.py").unlink()
    assert targets(loaded) == ["/x/1"]


def test_an_installed_package_whose_folder_is_continued_beside_a_pipeline_stays(project: OwnProject) -> None:
    installed = written(project.folder / "installed", own_space__theirs="").as_posix()
    sys.path.append(installed)
    theirs = importlib.import_module("own_space.theirs")
    written(project.folder, p=LAZY.replace("import own_rates", "from own_space import own_rates"), own_space__own_rates="RATE = 1",
            own_places="PLACE = '/x'")  # fmt: skip
    assert targets(load_pipeline("p.py", project.folder)) == ["/x/1"]
    assert sys.modules["own_space.theirs"] is theirs
    sys.path.remove(installed)


def test_classes_of_an_earlier_load_keep_the_types_of_their_fields(project: OwnProject) -> None:
    text = PIPELINE.replace(
        "import stateflow as sf",
        "from __future__ import annotations\nimport stateflow as sf\nfrom dataclasses import dataclass"
        "\nKind = int\n@dataclass\nclass Row:\n    user: int\n    amount: Kind",
    )
    text = text.replace('"user int, amount int"', "Row").replace("user int, total", "user long, total")
    written(project.folder, p=text)
    first = load_pipeline("p.py", project.folder).pipeline
    written(project.folder, p=text.replace("Kind = int", "Kind = str"))
    second = load_pipeline("p.py", project.folder).pipeline
    rows = [each.build({"input": "/in", "output": "/out"}).sources[0].rows for each in (first, second)]
    assert [each and str(each.fields[1].type) for each in rows] == ["bigint", "string"]


def test_the_library_and_what_the_next_pipeline_has_none_of_stay_as_they_are_imported(
    project: OwnProject,
) -> None:
    """As after a pipeline at the top of a checkout, which has the library and the tests beside it."""
    checkout = Path(__file__).resolve().parents[2]
    other = written(project.folder / "other", stateflow__errors="")
    for name in ("stateflow.errors", __name__):
        before = sys.modules[name]
        OwnFiles(str(checkout)).freeze()
        OwnFiles(str(other)).freeze()
        assert sys.modules[name] is before


def test_a_file_of_functions_has_the_modules_beside_it_whatever_pipeline_was_loaded(
    project: OwnProject,
) -> None:
    written(project.folder / "one", p=LAZY, own_rates="RATE = 1", own_places="PLACE = '/x'")
    functions = written(
        project.folder / "two", first="import own_rates\nRATE = own_rates.RATE\n", own_rates="RATE = 7"
    )
    one = load_pipeline("p.py", project.folder / "one")
    assert load_functions(functions / "first.py").RATE == 7
    assert targets(one) == ["/x/1"]


def test_a_build_waits_for_a_file_that_another_thread_loads(
    project: OwnProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = ModuleType("own_events")
    begun, built = vars(events)["begun"], vars(events)["built"] = Event(), Event()
    monkeypatch.setitem(sys.modules, "own_events", events)
    text = "import own_events\nown_events.begun.set()\nown_events.built.wait(0.3)\n" + LAZY
    one, two = (
        written(project.folder / name, p=LAZY, own_rates=f"RATE = '{name}'", own_places="PLACE = '/x'")
        for name in ("one", "two")
    )
    loaded = load_pipeline("p.py", one)
    written(two, p=text)
    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(load_pipeline, "p.py", two)
        begun.wait()
        assert targets(loaded) == ["/x/one"]
        built.set()
        assert targets(later.result()) == ["/x/two"]


def test_what_pip_has_put_beside_a_pipeline_is_imported_once(project: OwnProject) -> None:
    text, seen = LAZY.replace("import own_rates", "import own_rates, own_pip"), []
    for name in ("one", "two"):
        folder = written(project.folder / name, p=text, own_rates=f"RATE = '{name}'", own_pip="", own_places="PLACE = '/x'")  # fmt: skip
        (folder / "pip-1.dist-info").mkdir()
        (folder / "pip-1.dist-info" / "RECORD").write_text("own_pip.py,sha256=x,0\n")
        assert targets(load_pipeline("p.py", folder)) == [f"/x/{name}"]
        seen.append(sys.modules["own_pip"])
    assert seen[0] is seen[1]


@pytest.mark.parametrize("module", ["p", "own_rates"])
def test_text_annotations_keep_their_names_beside_another_pipeline_with_a_module_of_the_same_name(
    module: str, project: OwnProject
) -> None:
    row = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom datetime import datetime\n"
        "@dataclass\nclass Row:\n    at: datetime\n"
    )
    loaded = []
    for name in ("one", "two"):
        texts = {"p": LAZY.replace('"user int"', "own_rates.Row" if module == "own_rates" else "Row")}
        texts |= {"own_rates": f"RATE = '{name}'\n", "own_places": "PLACE = '/x'"}
        texts[module] = row + texts[module]
        loaded.append(load_pipeline("p.py", written(project.folder / name, **texts)))
    one, two = loaded
    assert [targets(each) for each in (one, two, one)] == [["/x/one"], ["/x/two"], ["/x/one"]]
    assert shipped(one, None, {})["sent_modules"] == SentModules.of(one.pipeline.own_files)


ROWS = """from __future__ import annotations
from dataclasses import dataclass
from datetime import datetime

@dataclass
class Row:
    at: datetime
"""


@pytest.mark.parametrize("shared", [("two", "three"), ("one", "three"), ("one", "two", "three")])
@pytest.mark.parametrize("order", list(permutations(("one", "two", "three"))))
def test_text_annotations_keep_their_names_whatever_was_loaded_in_between(
    shared: tuple[str, ...], order: tuple[str, ...], project: OwnProject
) -> None:
    """A module of one name, which some of the pipelines have, and which they import when they are built."""
    loaded = {}
    for name in (*order, order[0]):  # the last one once more, as a second run of it does
        text = LAZY.replace("import own_rates", f"from own_rows_{name} import Row").replace(
            '"user int"', "Row"
        )
        if name not in shared:
            text = text.replace("from own_places import PLACE", "PLACE = '/alone'")
        rows = {f"own_rows_{name}": ROWS, "own_places": f"PLACE = '/{name}'"}
        text = text.replace("own_rates.RATE", f"'{name}'")
        loaded[name] = loaded.get(name, [])
        loaded[name].append(load_pipeline("p.py", written(project.folder / name, p=text, **rows)))
    for name in (*order, *order):
        for each in loaded[name]:
            assert targets(each) == [f"/{name if name in shared else 'alone'}/{name}"]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("order", list(permutations(("folder", "module", "package"))))
def test_a_folder_without_init_is_none_of_another_pipelines_modules(
    order: tuple[str, ...], at_once: bool, project: OwnProject
) -> None:
    """Whether it is imported at once or when the pipeline is built."""
    files = {"folder": "own_space__own_rates", "module": "own_space", "package": "own_space____init__"}
    loaded = []
    for name in (*order, order[0]):
        module = "own_space.own_rates" if name == "folder" else "own_space"
        text = LAZY.replace("own_rates.RATE", f"{module}.RATE").replace('"user int"', "Row")
        text = text.replace("import own_rates", "from own_rows import Row")
        first = "import stateflow as sf" if at_once else "from own_places import PLACE"
        text = text.replace(first, f"{first}\n{'' if at_once else '    '}import {module}")
        rows = {"own_rows": ROWS, "own_places": "PLACE = '/x'", files[name]: f"RATE = '{name}'"}
        loaded.append((name, load_pipeline("p.py", written(project.folder / name, p=text, **rows))))
    for name, each in (*loaded, *loaded):
        assert targets(each) == [f"/x/{name}"]


def test_what_two_versions_both_have_is_imported_for_each(project: OwnProject) -> None:
    """The second one imports a changed module, though by way of one that is as it was."""
    text = LAZY.replace("from own_places import PLACE", "from own_way import PLACE")
    loaded = []
    for place in ("/one", "/two", "/one"):
        files = {"own_way": "from own_places import PLACE\n", "own_places": f"PLACE = '{place}'"}
        loaded.append(load_pipeline("p.py", written(project.folder, p=text, own_rates="RATE = 1", **files)))
    assert [targets(each) for each in (*loaded, *loaded)] == [["/one/1"], ["/two/1"], ["/one/1"]] * 2


@pytest.mark.slow
def test_a_release_in_a_harness_has_its_own_modules(project: OwnProject, spark: SparkSession) -> None:
    amounts = PIPELINE.replace('sf.files(input, "json", per_batch=1)', "sf.delta(input)")
    one, two = (
        load_pipeline("p.py", written(project.folder / str(factor), p=amounts, own_rates=f"def rate():\n    return {factor}\n",
                                      own_lazy__sums=f"def added(x):\n    return x * {factor}\n"))
        for factor in (1, 7)
    )  # fmt: skip
    harness = FlowHarness(one.pipeline, project.folder / "harness")
    harness.add("rows", {"user": 1, "amount": 1})
    harness.run()
    harness.release(two.pipeline)
    harness.add("rows", {"user": 1, "amount": 1})
    harness.run()
    assert sorted(row["total"] for row in harness.table("out")) == [1, 1 + 49]


@pytest.mark.slow
def test_a_run_whose_workers_begin_anew_goes_on_with_the_code_that_it_began_with(
    project: OwnProject, spark: SparkSession
) -> None:
    (project.folder / "in").mkdir()
    for number in range(3):
        (project.folder / "in" / f"{number}.json").write_text('{"user": 1, "amount": 1}\n')
    root = project.folder / "root"

    def deploy(_: Any) -> None:
        """The next task gets a worker that has imported nothing, as after a quiet minute."""
        if "G = 7" in (project.folder / "pipeline.py").read_text():
            return  # the tests behind this one want the workers that are there by now
        project.write(7)
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if "pyspark.daemon" in process.cmdline():
                    process.kill()

    report = run_loaded(
        project.load(), Job(str(root), "own"), {"input": str(project.folder / "in"), "output": str(project.folder / "out")},
        options=options_of(root, progress=False, tolerable_failed_batches=5), listener=deploy,
    )  # fmt: skip
    assert report.batches == 3
    rows = spark.read.format("delta").load(str(project.folder / "out")).collect()
    assert sorted(row.total for row in rows) == [1, 2, 3]
