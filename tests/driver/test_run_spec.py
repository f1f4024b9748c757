"""What a driver is told on its command line, and what never stands there."""

from __future__ import annotations

from stateflow.driver.run_spec import RunSpec


def test_an_errand_is_a_run_with_everything_that_was_asked_for() -> None:
    spec = RunSpec(
        "/p/orders.py:orders", "orders", "dag/run 1", "load",
        parameters={"input": "/a=b"}, options={"backend": "memory"}, until="2026-01-01T00:00:00+00:00", parallelism=3,
        trigger="10 s", takeover=True, allow_non_restored_state=True, final=True, note="why", user="ann",
    )  # fmt: skip
    assert spec.arguments() == [
        "run", "/p/orders.py:orders", "--job", "orders", "--dag-run", "dag/run 1", "--task", "load",
        "-p", "input=/a=b", "--option", "backend=memory", "--allow-non-restored-state", "--until", "2026-01-01T00:00:00+00:00", "--trigger", "10 s",
        "--note", "why", "--user", "ann", "--parallelism", "3", "--takeover", "--final",
    ]  # fmt: skip


def test_the_command_line_takes_every_argument_of_an_errand() -> None:
    import typer

    from stateflow.cli.main import app

    spec = RunSpec(
        "p.py:p",
        "j",
        "d",
        "t",
        {"a": "1"},
        {"b": "2"},
        {},
        "3",
        4,
        "drain",
        True,
        True,
        "n",
        "r",
        "u",
        allow_non_restored_state=True,
    )
    known = {o for p in typer.main.get_command(app).commands["run"].params for o in p.opts}  # type: ignore[attr-defined]
    assert {word for word in spec.arguments() if word.startswith("-")} <= known


def test_credentials_are_for_the_environment_alone() -> None:
    spec = RunSpec("p.py:p", "j", "d", "t", environment={"STATEFLOW_STORAGE_OPTIONS": '{"secret": "hidden"}'})
    assert "hidden" not in " ".join(spec.arguments())
