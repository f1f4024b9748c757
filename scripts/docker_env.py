"""docker/.env: a secret of its own for every name of docker/.env.example. One that is there already is kept."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE, TARGET = ROOT / "docker" / ".env.example", ROOT / "docker" / ".env"


def fernet_key() -> str:
    return base64.urlsafe_b64encode(os.urandom(32)).decode()


def password() -> str:
    # Stands in a URL, a JSON text and a shell: nothing that any of them would read as its own.
    return secrets.token_hex(32)


MAKERS: Mapping[str, Callable[[], str]] = {"AIRFLOW_FERNET_KEY": fernet_key}


def filled(example: str, existing: str = "") -> str:
    """The example with a value for every name; values that exist stay."""
    existing_values = dict(_pairs(existing))
    lines = []
    for line in example.splitlines():
        name, equals, _ = line.partition("=")
        if line.startswith("#") or not equals:
            lines.append(line)
        else:
            lines.append(f"{name}={existing_values.get(name) or MAKERS.get(name, password)()}")
    return "\n".join(lines) + "\n"


def _pairs(text: str) -> list[tuple[str, str]]:
    split = [line.partition("=") for line in text.splitlines() if line and not line.startswith("#")]
    return [(name.strip(), value.strip()) for name, equals, value in split if equals]


def main() -> None:
    existing = TARGET.read_text(encoding="utf-8") if TARGET.is_file() else ""
    text = filled(EXAMPLE.read_text(encoding="utf-8"), existing)
    if text == existing:
        print(f"{TARGET.relative_to(ROOT)} is complete")
        return
    part = TARGET.with_name(".env.part")
    part.touch(mode=0o600)
    part.write_text(text, encoding="utf-8")
    part.replace(TARGET)
    print(
        f"{TARGET.relative_to(ROOT)} is written; the passwords of Airflow's users admin and viewer are in it"
    )


if __name__ == "__main__":
    main()
