"""This process as an owner of records, claims and pins."""

from __future__ import annotations

import getpass
import os
import socket
import uuid
from contextlib import suppress
from pathlib import Path

from stateflow.format.records import Owner


def _pid_namespace() -> str:
    """Empty on systems without PID namespaces."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def this_process(*, run: str = "", dag_run: str = "", task: str = "", note: str = "") -> Owner:
    """This process as an `Owner`. `run` is the idempotency key of one request; a new one by default."""
    user = ""
    with suppress(Exception):  # a container may have no name for its user
        user = getpass.getuser()
    return Owner(
        run=run or uuid.uuid4().hex,
        host=socket.gethostname(),
        pid=os.getpid(),
        pids=_pid_namespace(),
        user=user,
        dag_run=dag_run,
        task=task,
        note=note,
    )
