"""Renders docs/configuration.md from the declarations in stateflow/config/options.py, and prints it."""

from __future__ import annotations

from collections.abc import Iterator

from stateflow.config.declaration import Declaration, written
from stateflow.config.options import DECLARATIONS, FILE_NAME, FILE_VARIABLE, PREFIX, Options

_TOP = f"""\
# Configuration

On this page you find every option, what it may be, and where you can set it. The words are in the [glossary](glossary.md).
The page is made by `python scripts/configuration_page.py > docs/configuration.md` from the declarations in `stateflow/config/options.py`.

## Where a value comes from

The first of these that sets an option wins:

1. the command line: `--option max_parallelism=256`; in Airflow the task's `options`, and then those of its connection
2. the environment: `{PREFIX}MAX_PARALLELISM=256`
3. a program's own: `stateflow.config.options.load(code={{"max_parallelism": 256}})`
4. the file: `max_parallelism = 256` in `{FILE_NAME}` in the working folder, or in the file that
   `{FILE_VARIABLE}` names
5. the default

`stateflow doctor` shows every option with its value and where that value was set. When an option does not
exist, or a value does not fit, the command stops with exit code 2 before it reads or writes anything.
It ignores variables of the environment that begin with `{PREFIX}` and resemble no option.

Write sizes like `20 KiB` or `256 MB`. Units are binary, as in Spark and Flink: `1 MB` is 1048576
bytes. Write durations with their unit: `500 ms`, `10 minutes`, `7 days`. A mapping is a table in the
file, and a JSON object or `name=value,name=value` elsewhere.

## Options
"""

_EXAMPLE = f"""
## Example

```toml
# {FILE_NAME}
checkpoint_dir = "s3://lake/checkpoints"
max_parallelism = 256
retained_checkpoints = 10
trigger = "30 seconds"
rocksdb_block_cache = "1 GB"

[storage_options]
endpoint = "https://objects.example.org"
```
"""

_FLINK = """
## Coming from Flink

| Flink's option | here |
|---|---|
"""


def page() -> str:
    return _TOP + "".join(_options()) + _EXAMPLE + _FLINK + "".join(sorted(_flink_rows()))


def _options() -> Iterator[str]:
    defaults = Options()
    yield "\n| option | default | what it may be | meaning |\n|---|---|---|---|\n"
    for name, declaration in DECLARATIONS.items():
        default = written(declaration, getattr(defaults, name))
        default_text = f"`{default}`" if default else "empty"
        yield f"| `{name}` | {default_text} | {_allowed(declaration)} | {declaration.doc} |\n"


def _allowed(declaration: Declaration) -> str:
    if declaration.choices:
        return ", ".join(f"`{choice}`" for choice in declaration.choices)
    if declaration.kind == "trigger":
        return "`drain`, `until-stopped` or a duration"
    if declaration.kind == "yes/no":
        return "`true`, `false`"
    least = written(declaration, declaration.least) if declaration.least else None
    most = written(declaration, declaration.most) if declaration.most is not None else None
    limits = [f"at least {least}" if least else "", f"at most {most}" if most else ""]
    return ", ".join([declaration.kind, *filter(None, limits)])


def _flink_rows() -> Iterator[str]:
    for name, declaration in DECLARATIONS.items():
        for flink in declaration.flink:
            yield f"| `{flink}` | `{name}` |\n"


if __name__ == "__main__":
    print(page(), end="")
