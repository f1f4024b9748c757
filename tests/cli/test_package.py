"""package: what it refuses, before anything is written. That a package works is shown on a cluster (tests/spark)."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from stateflow.packaging import build
from stateflow.packaging.usage import operator_call, run_command, settings, typed
from tests.cli.conftest import Command
from tests.jobs.made import ORDERS


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return Path(shutil.copy(ORDERS, tmp_path / "package_orders.py"))


@pytest.fixture
def nothing_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment of a launcher and a lock: quick to make, and of no use."""

    def none(wanted: Any, find: Any = None) -> Iterable[Any]:
        return []

    monkeypatch.setattr(build, "closure", none)


def test_another_platform_is_refused_at_once(command: Command, file: Path, tmp_path: Path) -> None:
    said = command("package", f"{file}:orders", "--to", tmp_path / "dist", "--platform", "macosx_14_0_arm64")
    assert said.code == 2
    assert "not on macosx_14_0_arm64: run stateflow package on a host of that platform" in said.err
    assert not (tmp_path / "dist").exists()


def test_an_import_that_nothing_here_has_is_named_with_its_place(
    command: Command, file: Path, tmp_path: Path
) -> None:
    file.write_text(file.read_text() + "\n\ndef later():\n    import no_such_library_anywhere\n")
    said = command("package", f"{file}:orders", "--to", tmp_path / "dist")
    assert said.code == 3
    lines = len(file.read_text().splitlines())
    assert (
        f"package_orders.py, line {lines} imports no_such_library_anywhere, which is not installed"
        in said.err
    )
    assert not (tmp_path / "dist").exists()


def test_a_module_of_no_distribution_is_refused(
    command: Command, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "homeless_of_a_test.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    file.write_text(
        "import homeless_of_a_test\n" + file.read_text().replace("from __future__ import annotations", "")
    )
    said = command("package", f"{file}:orders", "--to", tmp_path / "dist")
    assert said.code == 2
    assert (
        "homeless_of_a_test.py, which no installed distribution has: put it beside the pipeline" in said.err
    )


def test_a_distribution_that_was_named_has_to_be_installed(
    command: Command, file: Path, tmp_path: Path
) -> None:
    said = command("package", f"{file}:orders", "--to", tmp_path / "dist", "--also", "no-such-distribution")
    assert said.code == 3
    assert "--also needs no-such-distribution, which is not installed here" in said.err


@pytest.mark.usefixtures("nothing_needed")
def test_an_environment_that_does_not_work_is_not_left_behind(
    command: Command, file: Path, tmp_path: Path
) -> None:
    said = command("package", f"{file}:orders", "--to", tmp_path / "dist", "--no-python")
    assert said.code == 2
    assert "does not work on its own: ModuleNotFoundError: No module named 'numpy'; install" in said.err
    assert list((tmp_path / "dist").iterdir()) == []


@pytest.mark.usefixtures("nothing_needed")
def test_archives_that_nobody_has_tried_to_the_end_are_tried(
    command: Command, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*tried: Any) -> None:
        for archive in dist.glob("*.tar.gz"):
            archive.rename(archive.with_suffix(".kept"))
        raise OSError("as a kill, which removes nothing")

    dist = tmp_path / "dist"
    with monkeypatch.context() as patched:
        patched.setattr(build, "try_out", killed)
        patched.setattr(Path, "unlink", lambda path, **told: None)
        command("package", f"{file}:orders", "--to", dist, "--no-python")
    for archive in dist.glob("*.kept"):
        archive.rename(archive.with_suffix(".gz"))
    said = command("package", f"{file}:orders", "--to", dist, "--no-python")
    assert said.code == 2
    assert "does not work on its own" in said.err


@pytest.mark.usefixtures("nothing_needed")
def test_what_a_package_is_and_how_it_is_used_is_told(
    command: Command, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "try_out", lambda *tried: None)
    dist = tmp_path / "dist"
    told = command("package", f"{file}:orders", "--to", dist, "--no-python", "-o", "json").json
    environment, pipeline = (dist / told["archives"][name]["file"] for name in ("environment", "pipeline"))
    assert environment.stat().st_size == told["archives"]["environment"]["size"]
    assert sorted(p.name for p in dist.iterdir()) == sorted(
        [environment.name, pipeline.name, "orders.json", "orders.lock"]
    )
    assert told["conf"] == {
        "spark.archives": f"{environment}#environment,{pipeline}#pipeline",
        "spark.pyspark.python": "./environment/bin/python",
        "spark.executorEnv.PYTHONPATH": "pipeline",
    }
    text = command("package", f"{file}:orders", "--to", dist, "--no-python").out
    for part in (
        "stateflow run",
        "spark-submit",
        "StateflowRunOperator(",
        "stateflow/application/submitted.py run",
    ):
        assert part in text
    assert "was there already" in text


@pytest.mark.usefixtures("nothing_needed")
def test_a_damaged_archive_is_made_again_and_one_that_other_packages_share_stays(
    command: Command, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "try_out", lambda *tried: None)
    dist = tmp_path / "dist"

    def packaged(name: str) -> Any:
        return command("package", f"{file}:{name}", "--to", dist, "--no-python", "-o", "json").json

    told = packaged("orders")
    pipeline = dist / told["archives"]["pipeline"]["file"]
    whole = pipeline.read_bytes()
    for _ in range(2):
        pipeline.write_bytes(whole[:300])
        assert packaged("orders") == told
        assert pipeline.read_bytes() == whole
    environment = dist / told["archives"]["environment"]["file"]
    written = environment.stat().st_mtime_ns
    (dist / "orders.json").rename(dist / "older.json")
    (dist / "strange.json").write_text('{"archives": [1]}')
    packaged("orders")
    assert environment.stat().st_mtime_ns == written


@pytest.mark.usefixtures("nothing_needed")
def test_what_is_no_file_among_the_pipeline_s_own_is_left_out_with_a_line(
    command: Command, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "try_out", lambda *tried: None)
    shop, dist = tmp_path / "shop", tmp_path / "dist"
    shop.mkdir()
    (shop / "__init__.py").touch()
    (shop / "rates.json").touch()
    for lock in ("rates.json", "__init__.py"):
        (shop / f".#{lock}").symlink_to("ann@host.4711:1")  # as Emacs locks what it edits
    os.mkfifo(shop / "pipe")
    os.mkfifo(shop / "pipe.py")
    file.write_text(file.read_text() + "\n\ndef later():\n    import shop\n")
    said = command("package", f"{file}:orders", "--to", dist, "--no-python")
    assert said.code == 0
    names = (".#rates.json", ".#__init__.py", "pipe", "pipe.py")
    for name in names:
        assert f"left out {shop / name}: it is no regular file" in said.err
    told = command("package", f"{file}:orders", "--to", dist, "--no-python", "-o", "json").json
    assert sorted(told["left_out"]) == sorted(str(shop / name) for name in names)
    with tarfile.open(dist / told["archives"]["pipeline"]["file"]) as tar:
        assert sorted(tar.getnames()) == ["package_orders.py", "shop/__init__.py", "shop/rates.json"]


@pytest.mark.parametrize("name", ["file/dist", "file", "a b", "a,b", "a#b", "a%41", "a\\b", "a[b]", "\udcff"])
def test_a_folder_that_no_package_can_be_used_from_is_refused_before_anything_is_read(
    command: Command, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(build, "sources", None)
    (tmp_path / "file").touch()
    said = command("package", f"{file}:orders", "--to", tmp_path / name)
    assert said.code == 2
    assert "with --to" in said.err
    there = {each.name for each in tmp_path.iterdir()} - {"__pycache__"}
    assert there == {"file", "here", file.name}, "nothing was written"


def test_the_code_of_a_task_is_python_wherever_the_package_lies() -> None:
    conf = settings("/o'brien/ä\"/env.tar.gz", "/o'brien/\\/p.tar.gz")
    call = operator_call("o'brien/orders.py:orders", "orders", conf)
    made = eval(call, {"StateflowRunOperator": dict})
    assert (made["conf"], made["pipeline"]) == (conf, "o'brien/orders.py:orders")


def test_commands_are_typed_over_lines_and_survive_a_shell() -> None:
    conf = settings("/a b/env.tar.gz", "s3://x/p.tar.gz")
    text = typed(run_command("orders.py:orders", conf))
    assert text.splitlines()[0] == "stateflow run orders.py:orders \\"
    assert (
        "    --conf 'spark.archives=/a b/env.tar.gz#environment,s3://x/p.tar.gz#pipeline' \\"
        in text.splitlines()
    )
    call = operator_call("orders.py:orders", "orders", conf)
    assert eval(call, {"StateflowRunOperator": dict})["conf"] == conf
