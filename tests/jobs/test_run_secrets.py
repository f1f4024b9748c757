"""Variables that Kubernetes mounts as files reach the driver as its environment."""

from __future__ import annotations

from pathlib import Path

from stateflow.jobs.run_secrets import MOUNTED, RunSecrets, handed_over, take_mounted


def test_mounted_variables_are_set_and_those_of_the_environment_stay(tmp_path: Path) -> None:
    # As Kubernetes mounts a secret: files are links into a hidden folder, which is exchanged as a whole.
    data = tmp_path / "..2026_11_21"
    data.mkdir()
    for name, value in {
        **RunSecrets({"token": "hush"}).variable(),
        "STATEFLOW_CHECKPOINT_DIR": "s3://lake/c",
        "STATEFLOW_BACKEND": "memory",
    }.items():
        (data / name).write_text(value, encoding="utf-8")
        (tmp_path / name).symlink_to(Path("..data") / name)
    (tmp_path / "..data").symlink_to(data.name)
    env = {MOUNTED: str(tmp_path), "STATEFLOW_BACKEND": "rocksdb"}
    take_mounted(env)
    assert handed_over(env).parameters == {"token": "hush"}
    assert env["STATEFLOW_CHECKPOINT_DIR"] == "s3://lake/c"
    assert env["STATEFLOW_BACKEND"] == "rocksdb"
    assert not [name for name in env if name.startswith(".")]


def test_without_a_folder_nothing_is_set() -> None:
    env: dict[str, str] = {}
    take_mounted(env)
    assert env == {}
