"""Asks a warm host to carry out a run, and is that run for whoever started it: its output, its signals, its exit code.

It imports only the standard library, because a run on a host is over in the time that other imports take. A launcher starts
it by its path: `python client.py ASKED COMMAND...`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
CURRENT = "current.json"
"""The file in a host's folder that says where it listens."""
LOG = "host.log"
KEEPER = "keeper.json"
"""The file in a host's folder that is there until its keeper was told to end."""
LOCK = "lock"
"""The file in a host's folder that its keeper has locked."""
UNSERVED = 120
"""The exit code of a forked run that finds that the host cannot serve it. It has done nothing by then."""
BUSY, UNAVAILABLE, USAGE, FAILED = 8, 9, 2, 1
INTERRUPTED = 130
"""What a shell expects after Ctrl-C."""
OF_RUN = "_STATEFLOW_OF_RUN_"
"""Before the name of a variable that a launcher has set for another command: the one with the run's own value. No command line shows it."""
RETRY = 0.2
"""Seconds until a host is asked again that has just died."""
SILENT = "it does not answer"
ANSWERS = 10.0
"""Seconds within which a host that lives says its first word to whoever asks."""
BEGINS = 30.0
"""Seconds that a busy host may take to begin a run beyond those that the run waits for a place."""
_LONGEST = 366 * 24 * 3600.0
"""Seconds that a run waits for a place at most. No timeout of a socket is endless or lasts for centuries."""
_LENGTH = struct.Struct(">I")
_MOST = 64 << 20
_FORWARDED: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)


class Refused(Exception):
    """The host does not carry out the run. The text says why and what to do, as the end of a sentence."""

    def __init__(self, why: str, exit_code: int) -> None:
        super().__init__(why)
        self.exit_code = exit_code


class Connection:
    """Messages over a socket: JSON, each behind its length; files go with a message."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
        body = json.dumps(message).encode()
        data = _LENGTH.pack(len(body)) + body
        if files:
            sent = socket.send_fds(self.sock, [data], list(files))
            data = data[sent:]
        if data:  # even nothing cannot be sent to who has answered and gone
            self.sock.sendall(data)

    def receive(self, most_files: int = 0) -> tuple[dict[str, Any] | None, list[int]]:
        """The next message and its files; None when the other side is gone."""
        files: list[int] = []
        body = self.body(files, most_files)
        return None if body is None else json.loads(body), files

    def body(self, files: list[int], most_files: int) -> bytes | None:
        """What stands behind its length; None when the other side is gone. Files that come with the length are added to `files`."""
        head = self._bytes(_LENGTH.size, files, most_files)
        length = 0 if head is None else _LENGTH.unpack(head)[0]
        return None if head is None or length > _MOST else self._bytes(length, files, 0)

    def _bytes(self, count: int, files: list[int], most_files: int) -> bytes | None:
        found = bytearray()
        while len(found) < count:
            size = min(count - len(found), 1 << 20)
            try:
                if most_files:
                    part, more, _, _ = socket.recv_fds(self.sock, size, most_files)
                    files += more
                else:
                    part = self.sock.recv(size)
            except ConnectionError:
                part = b""
            if not part:
                return None
            found += part
        return bytes(found)


def not_a_name(name: str) -> str:
    """What is said about a host that cannot be called so."""
    return f"{name!r} cannot be the name of a host: use up to 63 lower-case letters, digits, - and _, such as team-orders"


def hosts_folder(environ: Mapping[str, str]) -> Path:
    """Where the hosts of this user and machine are. Never in a checkout: all checkouts share them."""
    if folder := environ.get("STATEFLOW_CACHE_DIR"):
        return Path(folder).expanduser().absolute() / "hosts"
    return Path(environ.get("HOME") or Path.home()) / ".cache" / "stateflow" / "hosts"


def connect(folder: Path, timeout: float = ANSWERS) -> Connection:
    """A connection to the host of a folder, on which sending and receiving have a timeout. Raises Refused when nobody listens there."""
    try:
        current: dict[str, Any] = json.loads((folder / CURRENT).read_text(encoding="utf-8"))
        place = Path(current["socket"])
        if os.stat(place.parent).st_uid != os.getuid():  # noqa: PTH116  the fewest imports
            raise Refused("its socket belongs to another user", USAGE)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(timeout)
        _reach(sock, str(place), time.monotonic() + timeout)
    except FileNotFoundError:
        raise Refused("it is starting" if is_kept(folder) else _not_running(folder), UNAVAILABLE) from None
    except (OSError, ValueError, KeyError, TypeError):
        raise Refused(SILENT, UNAVAILABLE) from None
    return Connection(sock)


def _reach(sock: socket.socket, address: str, until: float) -> None:
    """Connects. While more processes than a host has listed ask it at once, a socket with a timeout is sent away at once."""
    while True:
        try:
            return sock.connect(address)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def is_kept(folder: Path) -> bool:
    """Whether a keeper lives that starts the host's Spark, in this container or in one that shares the folder."""
    if not (folder / KEEPER).exists():
        return False
    with suppress(OSError):
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
    return False


def _not_running(folder: Path) -> str:
    from difflib import get_close_matches

    here = [each.parent.name for each in folder.parent.glob(f"*/{KEEPER}")]
    like = [name for name in get_close_matches(folder.name, here, 1) if name != folder.name]
    meant = f"did you mean {like[0]}? " if like else ""
    return f"it is not running in {folder.parent}: {meant}`stateflow host list` shows the hosts, `stateflow host start {folder.name}` starts it"


def package_folder() -> str:
    """The folder of this very package: a host that has imported another one cannot carry out its runs."""
    return str(Path(__file__).resolve().parents[1])


def python_folder() -> str:
    """The folder of this Python and its packages, without links: two programs may reach one virtual environment by different ways."""
    return os.path.realpath(sys.prefix)


def request(argv: Sequence[str], environ: Mapping[str, str], wait: float) -> dict[str, Any]:
    """A run, as a message to a host: everything of this process that the run takes over."""
    umask = os.umask(0o077)
    os.umask(umask)
    return {
        "ask": "run",
        "argv": list(argv),
        "environ": dict(environ),
        "cwd": os.getcwd(),  # noqa: PTH109
        "umask": umask,
        "package": package_folder(),
        "python": python_folder(),
        "wait": wait,
    }


def run_on(
    folder: Path,
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    wait: float,
    say: Callable[[str], None],
) -> int:
    """Carries out `stateflow ARGV` on a host, and returns its exit code. Raises Refused when the host does not begin it.

    It waits for a place, and for a host whose Spark starts or has died and is started again.
    """
    try:
        return _begun_on(folder, argv, environ, min(wait, _LONGEST), say)
    except KeyboardInterrupt:  # a run that has begun hears it itself
        say(f"stateflow: interrupted before the run began on the host {folder.name}")
        return INTERRUPTED


def _begun_on(
    folder: Path, argv: Sequence[str], environ: Mapping[str, str], wait: float, say: Callable[[str], None]
) -> int:
    code, left, until = None, wait, time.monotonic() + wait
    while code is None:
        try:
            code = _run_on(folder, request(argv, environ, left), say)
            left, until = wait, time.monotonic() + wait
        except Refused as refusal:
            if refusal.exit_code != UNAVAILABLE or not is_kept(folder):
                raise
            is_over = time.monotonic() >= until
            if not left or (is_over and str(refusal) == SILENT):
                within = f", and takes no run within {wait:g} s: {folder / LOG} says why"
                raise Refused(f"{refusal}{within if wait else ''}", UNAVAILABLE) from None
            if left == wait:
                again = "" if str(refusal) == SILENT else ", which is starting again"
                say(f"waiting for the host {folder.name}{again}: {refusal}")
            time.sleep(RETRY)
            left = max(0.0, until - time.monotonic())
    return code


def refusal_line(name: str, refusal: Refused, *, only: bool) -> str:
    """What a user reads when a host does not take a run. `only`: the run fails then."""
    if only:
        return f"stateflow: the host {name} does not take the run: {refusal}"
    return f"the host {name} does not take the run: {refusal}. Starting a driver of its own"


def _run_on(folder: Path, asked: Mapping[str, Any], say: Callable[[str], None]) -> int | None:
    """The exit code; None when another Spark application has taken over the host's name, and is to be asked: before the run began, or
    after a batch of a run that had not come to its end.

    A host that says nothing, or that does not begin the run long after its time to wait, is one that does not answer. It notices that
    nobody is there any more, and would end the run."""
    connection = connect(folder, ANSWERS)
    before: dict[int, Any] = {}

    def forward(number: int, frame: object) -> None:
        with suppress(OSError):
            connection.send({"signal": number})

    try:
        latest = time.monotonic() + asked["wait"] + BEGINS
        try:
            connection.send(asked, _standard_files())
        except TimeoutError:
            raise Refused(SILENT, UNAVAILABLE) from None
        except OSError:
            raise Refused("it has just ended", UNAVAILABLE) from None
        begun = False
        while True:
            try:
                message, _ = connection.receive()
            except TimeoutError:
                raise Refused(SILENT, UNAVAILABLE) from None
            if not begun:
                connection.sock.settimeout(max(0.1, latest - time.monotonic()))
            if message is None:
                if not begun:
                    raise Refused("it ended before it began the run", UNAVAILABLE)
                say(
                    f"stateflow: the host {folder.name} died with its runs: what they had decided is carried out by their next run"
                )
                return FAILED
            if "refused" in message:
                raise Refused(str(message["refused"]), int(message["exit_code"]))
            if "again" in message:
                return None
            if "stops" in message:
                say(f"the host {folder.name} ends the run after its batch: {message['stops']}")
            if "waits" in message:
                say(f"waiting for the host {folder.name}: {message['waits']}")
            elif "started" in message:
                begun = True
                connection.sock.settimeout(None)
                # Until the run begins, a signal ends this process, as it ends a run that is starting.
                for number in _FORWARDED:
                    before[number] = signal.signal(number, forward)
            elif "exit" in message:
                if "says" in message:
                    say(message["says"])
                return int(message["exit"])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        connection.sock.close()


def _standard_files() -> list[int]:
    """Standard input, output and error; what is closed becomes a file that swallows everything."""
    files = []
    for number in range(3):
        try:
            os.fstat(number)
            files.append(number)
        except OSError:
            files.append(os.open(os.devnull, os.O_RDWR))
    return files


def ask(folder: Path, timeout: float = 10.0) -> dict[str, Any]:
    """What a host says of itself. Raises Refused when it does not answer."""
    connection = connect(folder, timeout)
    try:
        connection.send({"ask": "show"})
        answer, _ = connection.receive()
    except OSError:
        answer = None
    finally:
        connection.sock.close()
    if answer is None:
        raise Refused(SILENT, UNAVAILABLE)
    return answer


def say(text: str) -> None:
    """One line on standard error, with the time, as a run's own lines."""
    with suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def main() -> None:
    """`client.py '{"folder":, "wait":, "only":, "argv": [...], "otherwise": [...], "added": [...]}'`: a launcher's way to a host.

    `otherwise` is the command where the host does not take the run, and `added` names the variables that this one has otherwise: the run
    has its own values of them, or none.
    """
    asked: dict[str, Any] = json.loads(sys.argv[1])
    its_own = {name: os.environ.pop(OF_RUN + name, None) for name in asked["added"]}
    kept = {name: value for name, value in os.environ.items() if name not in its_own}
    environ = kept | {name: value for name, value in its_own.items() if value is not None}
    folder = Path(asked["folder"])
    try:
        sys.exit(run_on(folder, asked["argv"], environ, wait=float(asked["wait"]), say=say))
    except Refused as refusal:
        say(refusal_line(folder.name, refusal, only=asked["only"]))
        if asked["only"]:
            sys.exit(refusal.exit_code)
    os.execvpe(asked["otherwise"][0], asked["otherwise"], dict(os.environ))


if __name__ == "__main__":
    main()
