"""This process as an owner of records, claims and pins."""

from __future__ import annotations

import getpass
import os
import socket
import uuid
from contextlib import suppress

from stateflow.checkpoint.processes import identity_of_this_process
from stateflow.format.records import Owner


def _table_of_processes() -> str:
    """Boot and namespaces within which the numbers of processes are unique here. Empty on systems that do not say."""
    here = identity_of_this_process()
    return f"{here.boot} {here.namespaces}" if here else ""


def this_process(
    *, run: str = "", dag_run: str = "", task: str = "", note: str = "", user: str = ""
) -> Owner:
    """This process as an `Owner`. `run` is the idempotency key of one request; a new one by default. `user` is who asked for it, else who
    the process runs as."""
    if not user:
        with suppress(Exception):  # a container may have no name for its user
            user = getpass.getuser()
    return Owner(
        run=run or uuid.uuid4().hex,
        host=socket.gethostname(),
        pid=os.getpid(),
        pid_scope=_table_of_processes(),
        user=user,
        dag_run=dag_run,
        task=task,
        note=note,
    )
