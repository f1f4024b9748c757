from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from scripts.configuration_page import SHOWN_BY, page
from stateflow.config.options import DECLARATIONS, Options, cache_folder, cache_of, load, scratch_parent
from stateflow.errors import UsageError
from tests.refusals.refusal import refused

ROOT = Path(__file__).resolve().parents[2]


def options(
    folder: Path,
    *,
    cli: Mapping[str, str | None] = {},
    env: Mapping[str, str] = {},
    code: Mapping[str, Any] = {},
    file: str | None = None,
) -> Options:
    if file is not None:
        (folder / "stateflow.toml").write_text(file, encoding="utf-8")
    return load(cli=cli, env=env, code=code, folder=folder)


def test_without_any_setting_every_option_has_its_default_and_says_so(tmp_path: Path) -> None:
    found = options(tmp_path)
    assert found == Options()
    assert {found.origin(name) for name in DECLARATIONS} == {"default"}
    assert (found.max_parallelism, found.backend, found.retained_checkpoints) == (128, "rocksdb", 3)
    assert (found.inline_threshold, found.batch_deadline) == (20 << 10, timedelta(minutes=10))


def test_the_command_line_wins_over_the_environment_over_the_code_over_the_file(tmp_path: Path) -> None:
    cli, env, code, file = (
        {"upload_threads": "5"},
        {"STATEFLOW_UPLOAD_THREADS": "6"},
        {"upload_threads": 7},
        "upload-threads = 8",
    )
    path = tmp_path / "stateflow.toml"

    def chosen(**layers: Any) -> tuple[int, str]:
        found = options(tmp_path, file=file, **layers)
        return found.upload_threads, found.origin("upload_threads")

    assert chosen(cli=cli, env=env, code=code) == (5, "the command line (--upload-threads)")
    assert chosen(env=env, code=code) == (6, "the environment (STATEFLOW_UPLOAD_THREADS)")
    assert chosen(code=code) == (7, "the pipeline's code")
    assert chosen() == (8, str(path))


def test_an_argument_that_was_not_given_does_not_hide_the_layers_below(tmp_path: Path) -> None:
    found = options(tmp_path, cli={"backend": None}, env={"STATEFLOW_BACKEND": "memory"})
    assert found.backend == "memory"


def test_the_environment_can_name_another_file(tmp_path: Path) -> None:
    elsewhere = tmp_path / "production.toml"
    elsewhere.write_text("retained_checkpoints = 10", encoding="utf-8")
    found = options(tmp_path, file="retained_checkpoints = 2", env={"STATEFLOW_CONFIG": str(elsewhere)})
    assert (found.retained_checkpoints, found.origin("retained_checkpoints")) == (10, str(elsewhere))


def test_a_file_named_in_capitals_is_refused(tmp_path: Path) -> None:
    (tmp_path / "Stateflow.toml").write_text("parallelism = 7\n", encoding="utf-8")
    with refused(UsageError, "Stateflow.toml", "rename it"):
        load(env={}, folder=tmp_path)
    (tmp_path / "Stateflow.toml").rename(tmp_path / "stateflow.toml")
    assert load(env={}, folder=str(tmp_path)).parallelism == 7


def test_a_program_needs_to_name_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stateflow.toml").write_text("parallelism = 7\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    loaded = load(code={"max_parallelism": 256}, env={})
    assert (loaded.parallelism, loaded.max_parallelism) == (7, 256)


def test_a_file_that_is_not_toml_or_has_an_unknown_option_is_named(tmp_path: Path) -> None:
    with refused(UsageError, f"{tmp_path}/stateflow.toml", "is not valid TOML"):
        options(tmp_path, file="backend = memory")
    with refused(UsageError, f"{tmp_path}/stateflow.toml", "did you mean retained_checkpoints?"):
        options(tmp_path, file="retained_checkpoint = 3")


def test_variables_that_resemble_no_option_belong_to_somebody_else(tmp_path: Path) -> None:
    found = options(tmp_path, env={"STATEFLOW_SERVICE_HOST": "10.0.0.1", "STATEFLOW_PORT_80_TCP": "x"})
    assert found == Options()
    # Of a service called stateflow-metrics.
    assert options(tmp_path, env={"STATEFLOW_METRICS_PORT": "tcp://10.96.3.2:9464"}) == Options()


def test_a_variable_in_other_letters_sets_nothing(tmp_path: Path) -> None:
    found = options(
        tmp_path,
        env={"STATEFLOW_Backend": "memory", "STATEFLOW_BACKEND": "rocksdb", "stateflow_backend": "memory"},
    )
    assert found.backend == "rocksdb"
    for variable in ("STATEFLOW_Backend", "stateflow_backend"):
        with refused(UsageError, variable, "call it STATEFLOW_BACKEND"):
            options(tmp_path, env={variable: "memory"})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("trigger", "drain", "drain"),
        ("trigger", "until-stopped", "until-stopped"),
        ("trigger", "30 seconds", timedelta(seconds=30)),
        ("local_fsync", "no", False),
        ("cache_size", "2 GB", 2 << 30),
        ("locality_wait", "0", timedelta(0)),
        (
            "storage_options",
            '{"endpoint": "http://x", "allow_http": true}',
            {"endpoint": "http://x", "allow_http": "true"},
        ),
        ("storage_options", "endpoint=http://x, region=eu", {"endpoint": "http://x", "region": "eu"}),
    ],
)
def test_every_kind_of_value_can_be_written_as_text(
    tmp_path: Path, name: str, text: str, value: object
) -> None:
    found = options(tmp_path, env={f"STATEFLOW_{name.upper()}": text})
    assert getattr(found, name) == value


def test_a_credential_is_never_shown(tmp_path: Path) -> None:
    named = {"STATEFLOW_CONFIG": str(tmp_path / "stateflow.toml")}
    found = options(tmp_path, file='[storage_options]\nsecret_access_key = "hunter2"\n', env=named)
    assert found.storage_options == {"secret_access_key": "hunter2"}
    shown = {setting.name: setting.value for setting in found.settings()}
    assert shown["storage_options"] == "secret_access_key=***"
    assert "hunter2" not in repr(found)
    with pytest.raises(UsageError) as caught:
        options(tmp_path, env={"STATEFLOW_STORAGE_OPTIONS": "{hunter2"})
    assert "hunter2" not in str(caught.value)


def test_options_travel_to_workers_with_their_origins(tmp_path: Path) -> None:
    found = options(tmp_path, code={"chunk_rows": 5, "storage_options": {"a": "b"}})
    arrived = pickle.loads(pickle.dumps(found))
    assert arrived == found
    assert arrived.origin("chunk_rows") == "the pipeline's code"


def test_options_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().parallelism = 3  # type: ignore[misc]


def test_the_cache_folder_is_the_one_named_else_the_checkouts_own(tmp_path: Path) -> None:
    assert cache_folder({"STATEFLOW_CACHE_DIR": str(tmp_path)}) == tmp_path
    assert cache_folder({}) == ROOT / ".cache"


def test_a_tilde_is_the_home_folder_in_every_folder_that_an_option_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = options(tmp_path, env={"STATEFLOW_CACHE_DIR": "~/cache", "STATEFLOW_SCRATCH_DIR": "~/scratch"})
    assert cache_of(found) == tmp_path / "cache"
    assert scratch_parent(found) == tmp_path / "scratch"


def test_the_configuration_page_is_current() -> None:
    written = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert written == page(), "run: python scripts/configuration_page.py > docs/configuration.md"


def test_the_configuration_page_shows_every_option_with_flinks_name() -> None:
    text = page()
    for name, declaration in DECLARATIONS.items():
        assert f"| `{name}` |" in text
        assert all(f"| `{flink}` | `{name}` |" in text for flink in declaration.flink)


def test_the_configuration_page_names_a_test_that_is_there_for_every_option() -> None:
    assert list(SHOWN_BY) == list(DECLARATIONS)
    for test in SHOWN_BY.values():
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), test


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("checkpoint_dir", 'checkpoint_dir = "roots"'),
        ("storage_options", 'storage_options = {region = "here"}'),
    ],
)
def test_an_empty_variable_hides_nothing_unsaid(tmp_path: Path, name: str, file: str) -> None:
    path = tmp_path / "named.toml"
    path.write_text(file)
    variable = f"STATEFLOW_{name.upper()}"
    env = {"STATEFLOW_CONFIG": str(path), variable: ""}
    with refused(UsageError, f"variable {variable} is empty", str(path), "unset it, or give it a value"):
        options(tmp_path, env=env)
    with refused(UsageError, f"variable {variable} is empty", "the pipeline's code"):
        options(tmp_path, env={variable: ""}, code={name: "a=b"})
    # As it advises; and where nothing is hidden, or the command line says what is meant.
    assert options(tmp_path, env={**env, variable: "a=b"}).origin(name) == f"the environment ({variable})"
    del env[variable]
    assert options(tmp_path, env=env).origin(name) == str(path)
    assert not getattr(options(tmp_path, env={variable: ""}), name)
    assert getattr(options(tmp_path, env={**env, variable: ""}, cli={name: "a=b"}), name)


def test_an_empty_host_is_no_host(tmp_path: Path) -> None:
    found = options(tmp_path, env={"STATEFLOW_HOST": ""}, code={"host": "warm"})
    assert (found.host, found.origin("host")) == ("", "the environment (STATEFLOW_HOST)")


def test_a_null_in_a_mapping_is_refused_by_its_key(tmp_path: Path) -> None:
    for given in ({"code": {"storage_options": {"secret": "hush", "region": None}}},
                  {"cli": {"storage_options": '{"secret": "hush", "region": null}'}}):  # fmt: skip
        with refused(UsageError, "storage_options", "region in it is null", "leave it out") as caught:
            options(tmp_path, **given)
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "most", "more"),
    [
        ("chunk_rows", "2147483647", "2147483648"),
        ("rocksdb_block_cache", "1024 TB", "1025 TB"),
        ("rocksdb_write_buffer", "1024 TB", "1025 TB"),
    ],
)
def test_what_spark_or_rocksdb_could_not_count_is_refused_before_a_run_begins(
    tmp_path: Path, name: str, most: str, more: str
) -> None:
    assert getattr(options(tmp_path, cli={name: most}), name)
    with refused(UsageError, name, more, f"more than {most}"):
        options(tmp_path, cli={name: more})
