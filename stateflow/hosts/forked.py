"""What a fork of the zygote becomes: a run, or the process that a run's Python workers are forked from."""

from __future__ import annotations

import os
import random
import runpy
import signal
import site
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

BEGUN = "begun"
"""The file in a place's folder that is there until its run has come to its end."""
LIFELINE = -1
"""The end of a pipe whose other end only the zygote has: it closes when the zygote is gone."""
THREADS = 15.0
"""Seconds that threads which a pipeline has left have to end. Their run keeps its place meanwhile, so it does not wait for ever, as Python does."""
FIRST_TO_GO = "500"
"""How much sooner the kernel takes a fork when memory is short: Spark and the zygote are everybody's."""


def become_run(
    message: Mapping[str, Any], files: Sequence[int], command: Callable[[list[str]], object]
) -> None:
    """Gives the arguments of a message to `command`, in a process as its sender could have started."""
    code: int | str | None = 0
    try:
        _become_its_process(message, files)
        command(list(message["argv"]))
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        # As Python's own end has it. The mark goes: the run has come to its end, if not to a good one.
        traceback.print_exc()
        code = 1
    _flush()
    _wait_for_threads()
    import atexit
    import multiprocessing

    for left in multiprocessing.active_children():
        left.kill()  # or Python would wait for it now
    atexit._run_exitfuncs()
    _flush()
    Path(message["place_folder"], BEGUN).unlink(missing_ok=True)
    # Processes that the pipeline has left do not keep it alive, and Python's own end takes a tenth of a second.
    os._exit(code if isinstance(code, int) else int(code is not None))


def _wait_for_threads() -> None:
    """Waits, for a while, for the threads that Python's own end would wait for. Says which have not ended."""
    threading.Thread(target=_end_pools, daemon=True).start()
    until = time.monotonic() + THREADS
    with suppress(KeyboardInterrupt):  # whoever types Ctrl-C waits no longer
        while (left := _left()) and (rest := until - time.monotonic()) > 0:
            left[0].join(rest)
    if left := _left():
        with suppress(Exception):
            sys.stderr.write(
                f"stateflow: threads of the pipeline go on after its run, and end now, {THREADS:.0f} s later: "
                f"{', '.join(each.name for each in left)}. Join them before the run ends, or run it without the host (--host ''), "
                "where Python waits for them\n"
            )


def _left() -> list[threading.Thread]:
    me = threading.current_thread()
    return [each for each in threading.enumerate() if each is not me and not each.daemon]


def _end_pools() -> None:
    """Tells idle threads of pools to end, and waits for busy ones."""
    for each in reversed(threading._threading_atexits):  # type: ignore[attr-defined]
        each()


def _become_its_process(message: Mapping[str, Any], files: Sequence[int]) -> None:
    os.setsid()
    _go_first()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _take_files(files)
    os.umask(message["umask"])
    os.chdir(message["cwd"])
    _take_environment(message["environ"])
    _open_standard_streams()
    _reseed()
    threading.Thread(target=_die_with_the_zygote, daemon=True).start()

    from stateflow.spark.internals.lending import Loan
    from stateflow.spark.session import lent

    lent.accept(
        Loan(**message["loan"]), host=message["host"], master=message["master"], place=message["place_folder"]
    )
    sys.argv = ["stateflow", *message["argv"]]


def become_workers(modules: Sequence[str], variables: Mapping[bytes, bytes], files: Sequence[int]) -> None:
    """What Spark would start: a process that forks workers until Spark closes standard input, or one worker, such as for a source of a stream.
    What they print goes where their run's errors go.

    `modules`: that of the worker, behind that which forks it, if it is to be forked. Spark's planner has modules of its own for workers.
    """
    _go_first()
    answer = os.dup(files[1])
    os.set_inheritable(answer, True)
    _take_files([files[0], files[2], files[2]])
    from stateflow.spark.session import lent

    spark = {os.fsdecode(name): os.fsdecode(value) for name, value in variables.items()}
    _take_environment(lent.worker_environment(spark, os.environ))
    _open_standard_streams()
    with suppress(OSError):
        os.chdir(os.environ.pop(lent.WORKING_FOLDER, "."))
    from stateflow.spark.internals.workers import fork_workers

    if len(modules) == 1:
        # As Spark would have started it: Spark ends it by a signal, and the place ends it with all that it has started.
        os.setpgid(0, 0)
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_DFL)
        sys.argv[:] = modules
        runpy.run_module(modules[0], run_name="__main__", alter_sys=True)
    else:
        fork_workers(answer, modules[-1])


def _go_first() -> None:
    with suppress(OSError):  # only Linux has it
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO, encoding="ascii")


def _take_files(files: Sequence[int]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in set(files):
        if file > 2:
            os.close(file)


def _take_environment(environ: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environ)
    tempfile.tempdir = None  # the host has looked for its own, perhaps before this process was forked
    _take_search_path(environ)
    _take_time_zone()


def _take_time_zone() -> None:
    with suppress(AttributeError):
        time.tzset()


def _take_search_path(environ: Mapping[str, str]) -> None:
    """The search path that Python would begin with in this environment."""
    given = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [*dict.fromkeys(given), *(entry for entry in BASE_PATH if entry not in given)]


def _base_path() -> list[str]:
    """The search path without what the host's own environment has added, and with this package."""
    own = {entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    installed = {*site.getsitepackages(), site.getusersitepackages()}
    kept = [entry for entry in sys.path if entry and (entry not in own or entry in installed)]
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    return kept if home in kept else [*kept, home]


BASE_PATH = _base_path()


def _open_standard_streams() -> None:
    """New ones: the zygote's know neither whether a terminal reads them nor who does."""
    buffered = not os.environ.get("PYTHONUNBUFFERED")
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(  # noqa: SIM115
        1, "w", encoding="utf-8", buffering=1 if os.isatty(1) or not buffered else -1, closefd=False
    )
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _reseed() -> None:
    """Random numbers of numpy would be the same in every fork. Python reseeds its own."""
    random.seed()
    if numpy := sys.modules.get("numpy"):
        with suppress(Exception):
            numpy.random.seed()


def _die_with_the_zygote() -> None:
    with suppress(OSError):
        os.read(LIFELINE, 1)
    os.kill(os.getpid(), signal.SIGKILL)
