"""What has to be there before Airflow's services start: the tables of its database, and the users' passwords."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

USERS = "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"
FILE = "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"


def main() -> int:
    passwords: dict[str, str] = {}
    for user in os.environ[USERS].split(","):
        name = user.partition(":")[0].strip()
        variable = f"{name.upper()}_PASSWORD"
        if not os.environ.get(variable):
            sys.exit(f"init: {variable} is not set: run make docker-env, then start again")
        passwords[name] = os.environ[variable]
    file = Path(os.environ[FILE])
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.part")
    part.touch(mode=0o600)
    part.write_text(json.dumps(passwords) + "\n", encoding="utf-8")
    part.replace(file)
    return subprocess.run(["airflow", "db", "migrate"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
