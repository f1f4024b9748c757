"""A `stateflow.toml` that lies in the working folder chooses no place before the user has trusted it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stateflow.config.file import configuration_file, identity
from stateflow.config.options import DECLARATIONS, GUARDED, Options, cache_folder, drivers_folder, load
from stateflow.config.trust import forget, remember
from stateflow.errors import UsageError
from tests.refusals.refusal import refused

FOUND = """
checkpoint_dir = "s3://theirs/root"
cache-dir = "c"
scratch_dir = "s"
parallelism = 7

[storage_options]
endpoint = "https://theirs.example"
"""
SOME = {
    "storage_options": '{a = "b"}',
    "retained_checkpoints": "1",
    "retained_age": '"1 day"',
    "retention": '"daily for 9 days"',
    "cache_size": '"1 MB"',
}
TEXTS = frozenset(
    name for name, declaration in DECLARATIONS.items() if declaration.kind in ("text", "mapping")
)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    (made / "stateflow.toml").write_text(FOUND)
    return made


def trusted(folder: Path, env: dict[str, str]) -> None:
    file = configuration_file(env, folder, GUARDED)
    assert file is not None
    remember(identity(file.path), file.owner, file.guarded, env)


def refusal_of(folder: Path, env: dict[str, str], **cli: str | None) -> str:
    with pytest.raises(UsageError) as error:
        load(cli=cli, env=env, folder=folder)
    return str(error.value)


def test_every_option_that_is_free_text_is_a_place() -> None:
    # A new option of these kinds names a folder, a program, an endpoint or a credential, until somebody says it does not. A host is
    # of this user, and a run on it is what it would be elsewhere.
    assert {name for name, declaration in DECLARATIONS.items() if declaration.place} == TEXTS - {"host"}


def test_places_of_a_file_that_nobody_trusted_are_refused_with_what_to_do(
    folder: Path, env: dict[str, str]
) -> None:
    said = refusal_of(folder, env)
    assert f"{folder}/stateflow.toml sets checkpoint_dir, scratch_dir, cache_dir and storage_options" in said
    assert (
        "and is not trusted: read it and run `stateflow trust` there, or name it with STATEFLOW_CONFIG="
        in said
    )


@pytest.mark.parametrize("name", sorted(GUARDED))
def test_each_guarded_option_alone_is_refused(name: str, tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "stateflow.toml").write_text(f"{name} = {SOME.get(name, chr(34) + 'here' + chr(34))}\n")
    assert f"sets {name}, and is not trusted" in refusal_of(tmp_path, env)


def test_the_rest_of_such_a_file_counts(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "stateflow.toml").write_text("parallelism = 7\n")
    assert load(env=env, folder=tmp_path).parallelism == 7


def test_who_names_a_place_is_not_asked_about_the_file_s(folder: Path, env: dict[str, str]) -> None:
    said = refusal_of(folder, env, checkpoint_dir="/mine", storage_options="{}")
    assert "sets scratch_dir and cache_dir, and is not trusted" in said
    chosen = {"checkpoint_dir": "/mine", "storage_options": "{}", "scratch_dir": "/s"}
    found = load(cli=chosen, env={**env, "STATEFLOW_CACHE_DIR": "/c"}, folder=folder)
    assert (found.checkpoint_dir, found.cache_dir, dict(found.storage_options)) == ("/mine", "/c", {})


def test_what_is_left_out_has_its_default_and_says_so(folder: Path, env: dict[str, str]) -> None:
    found = load(env=env, folder=folder, untrusted="leave out")
    assert found == Options(parallelism=7)
    assert {found.origin(name) for name in GUARDED} == {"default"}


def test_a_trusted_file_counts_until_a_place_changes_and_after_other_changes(
    folder: Path, env: dict[str, str]
) -> None:
    trusted(folder, env)
    found = load(env=env, folder=folder)
    assert (found.checkpoint_dir, found.cache_dir) == ("s3://theirs/root", f"{folder}/c")
    assert found.origin("checkpoint_dir") == f"{folder}/stateflow.toml"
    file = folder / "stateflow.toml"
    file.write_text(FOUND.replace("parallelism = 7", "parallelism = 8"))
    assert load(env=env, folder=folder).parallelism == 8
    for name, other in {
        "storage_options": '"https://theirs.example"',
        "cache_dir": '"c"',
        "scratch_dir": '"s"',
        "checkpoint_dir": '"s3://theirs/root"',
    }.items():
        file.write_text(FOUND.replace(other, '"other"'))
        assert f" sets {name}, and has changed since you trusted it" in refusal_of(folder, env)
    file.write_text(FOUND.replace("[storage_options]", '"cache_dir" = "two"\n[storage_options]'))
    assert "has changed since you trusted it" in refusal_of(folder, env)


def test_trust_is_of_one_path_and_can_be_taken_back(
    folder: Path, env: dict[str, str], tmp_path: Path
) -> None:
    trusted(folder, env)
    copied = tmp_path / "copied"
    copied.mkdir()
    (copied / "stateflow.toml").write_text(FOUND)
    linked = tmp_path / "linked"
    linked.mkdir()
    # Relative places of the file would be taken from this folder.
    (linked / "stateflow.toml").symlink_to(folder / "stateflow.toml")
    for strange in (copied, linked):
        assert "is not trusted" in refusal_of(strange, env)
    (tmp_path / "same").symlink_to(folder)
    assert load(env=env, folder=tmp_path / "same").cache_dir == f"{tmp_path}/same/c"
    assert forget(identity(folder / "stateflow.toml"), env)
    assert "is not trusted" in refusal_of(folder, env)
    assert not forget(identity(folder / "stateflow.toml"), env)


def test_a_named_file_counts_and_the_null_device_is_none(folder: Path, env: dict[str, str]) -> None:
    named = {**env, "STATEFLOW_CONFIG": str(folder / "stateflow.toml")}
    assert load(env=named, folder=folder).cache_dir == f"{folder}/c"
    assert load(env={**env, "STATEFLOW_CONFIG": os.devnull}, folder=folder) == Options()


def test_a_file_of_another_user_cannot_be_trusted(
    folder: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted(folder, env)
    owner = (folder / "stateflow.toml").stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:  # what root writes is as good as one's own
        assert load(env=env, folder=folder).cache_dir == f"{folder}/c"
        os.chown(folder / "stateflow.toml", 12345, -1)
    said = refusal_of(folder, env)
    assert "belongs to another user: name it with STATEFLOW_CONFIG=" in said
    with refused(UsageError, "another user", "copy it and trust the copy"):
        trusted(folder, env)


@pytest.mark.parametrize("home", ["", ".", "home"])
def test_a_home_folder_that_is_none_trusts_nothing_and_caches_nothing(
    home: str, folder: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted(folder, {"HOME": str(folder)})
    trusted(folder, {"HOME": str(folder / "home")})
    monkeypatch.chdir(folder)
    here = {"HOME": home, "XDG_CONFIG_HOME": ".config"}
    assert "is not trusted" in refusal_of(folder, here)
    with refused(UsageError, "no home folder", "is trusted"):
        trusted(folder, here)
    with pytest.raises(UsageError, match="no home folder to cache in: set HOME"):
        drivers_folder(here)
    assert cache_folder({"STATEFLOW_CACHE_DIR": "/c"}) == Path("/c")


@pytest.mark.parametrize("note", [b"", b"{}", b"[]", b"null", b"\xff", b'{"options": 3}'])
def test_a_note_that_cannot_be_read_trusts_nothing(note: bytes, folder: Path, env: dict[str, str]) -> None:
    trusted(folder, env)
    (path,) = (Path(env["HOME"]) / ".config/stateflow/trusted").iterdir()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.write_bytes(note)
    assert "trusted" in refusal_of(folder, env)


def test_what_is_refused_of_a_changed_file_is_what_has_changed(folder: Path, env: dict[str, str]) -> None:
    trusted(folder, env)
    file = folder / "stateflow.toml"
    file.write_text(FOUND.replace('"s"', '"other"').replace("parallelism = 7", "retained_checkpoints = 1"))
    said = refusal_of(folder, env)
    assert "sets retained_checkpoints and scratch_dir, and has changed since you trusted it" in said
    # Who names what has changed is not asked about the rest, which is trusted as it is.
    named = {"scratch_dir": "/mine", "retained_checkpoints": "3"}
    assert load(cli=named, env=env, folder=folder).checkpoint_dir == "s3://theirs/root"
    trusted(folder, env)
    assert load(env=env, folder=folder).retained_checkpoints == 1
    # Without it the default would delete what the file kept.
    file.write_text(FOUND.replace('"s"', '"other"'))
    said = refusal_of(folder, env)
    assert "no longer sets retained_checkpoints, and has changed since you trusted it" in said
    file.write_text(FOUND)
    said = refusal_of(folder, env)
    assert "sets scratch_dir, no longer sets retained_checkpoints, and has changed" in said
    assert load(env=env, folder=folder, untrusted="leave out").scratch_dir == ""


def test_a_file_that_nobody_trusted_does_not_decide_what_is_deleted(
    tmp_path: Path, env: dict[str, str]
) -> None:
    (tmp_path / "stateflow.toml").write_text(
        'retained-checkpoints = 1\nretained_age = "1 s"\ncache_size = "1 B"\n'
    )
    said = refusal_of(tmp_path, env)
    assert "sets retained_checkpoints, retained_age and cache_size, and is not trusted" in said
    named = {"retained_checkpoints": "5", "retained_age": "0", "cache_size": "1 GB"}
    assert load(cli=named, env=env, folder=tmp_path).retained_checkpoints == 5


def test_a_relative_folder_of_a_file_lies_beside_the_file(tmp_path: Path, env: dict[str, str]) -> None:
    config, here = tmp_path / "etc", tmp_path / "here"
    config.mkdir()
    here.mkdir()
    file = config / "jobs.toml"

    def root(value: str) -> str:
        file.write_text(f'checkpoint_dir = "{value}"\n')
        return load(env={**env, "STATEFLOW_CONFIG": str(file)}, folder=here).checkpoint_dir

    assert root("roots/a") == f"{config}/roots/a"
    assert root("../roots") == f"{tmp_path}/roots"
    for place in ("/roots", "s3://bucket/root", "file:/roots", "~/roots"):
        assert root(place) == place
    # On a command line it is the working folder's.
    assert load(cli={"checkpoint_dir": "roots"}, env=env, folder=here).checkpoint_dir == "roots"
    # Behind a link it is for whoever opens it to say which folder that is.
    (tmp_path / "link").symlink_to(config)
    assert root("../link/roots") == f"{tmp_path}/link/roots"
    (here / "deep").mkdir()
    (config / "far").symlink_to(here / "deep")
    assert root("far/../roots") == f"{config}/far/../roots"
