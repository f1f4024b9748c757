"""An S3 server in a process of its own, until its input ends: prints a root and the options to reach it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def object_server() -> Iterator[tuple[str, dict[str, str]]]:
    """Serves until the block ends; yields `(root, storage options)`. In the driver's process it would count as the driver's time."""
    command = [sys.executable, "-m", "bench.object_server"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            line = server.stdout.readline()
            if not line:
                raise RuntimeError(
                    "the S3 server ended before it served anything: is moto[server] installed?"
                )
            said = json.loads(line)
            yield said["root"], said["options"]
        finally:
            server.stdin.close()
            server.wait(timeout=30)


def main() -> None:
    from tests.servers import s3_server

    with s3_server() as running:
        print(json.dumps({"root": running.new_root("bench"), "options": running.options}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
