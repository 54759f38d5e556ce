"""Runs the training script of one rank and writes down how it ended.

The launcher reports whichever dead child it polls first, and a rank that dies by a signal says nothing at all. So every
rank leaves a record of its own: who it was, and, unless a signal killed it, its exit code or its exception with a time.
The earliest error over all ranks is the root cause.

Runs by file path in the training script's own interpreter, hence: standard library only, Python 3.8 syntax.
Usage: rank.py SCRIPT [ARGUMENT...] | rank.py -m MODULE [ARGUMENT...]
"""

import json
import os
import runpy
import shutil
import signal
import sys
import threading
import time
import traceback
from typing import Any, Dict, List, Tuple

MESSAGE_LIMIT = 4000
TRACE_LIMIT = 30
CAUSE_LIMIT = 5
BASES_LIMIT = 12
OUTER_FRAMES, INNER_FRAMES = 6, 14
CODE_LIMIT = 160
AGENT_POLL_S = 2.0


def main(argv: List[str]) -> None:
    """Runs ``argv`` as ``python argv...`` would, with a record in ``CAMPAIGN_ATTEMPT_DIR/ranks``."""
    record = {"rank": _int("RANK"), "pid": os.getpid(), "host": os.uname().nodename, "started": time.time()}
    _write({**record, "state": "running"})
    _restore_visible_devices()
    _limit_memory()
    _die_with_agent()
    ending = {"exit": 1}  # type: Dict[str, Any]
    try:
        _run(argv)
        ending = {"exit": 0}
    except SystemExit as exc:
        ending = _exit_record(exc)
        raise
    except BaseException as exc:
        ending = {"exit": 1, "error": _error(exc)}
        raise
    finally:
        # Python gives a signal that had a handler its deadly default back while it shuts down, which may take seconds.
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        _write({**record, **ending, "state": "ended", "ended": time.time()})


def _run(argv: List[str]) -> None:
    arguments = [a.replace("{local_rank}", os.environ.get("LOCAL_RANK", "0")) for a in argv]
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()  # not this file's folder: its names must never shadow the user's
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.realpath(arguments[0]))  # as Python: a link's neighbours are its target's
        runpy.run_path(arguments[0], run_name="__main__")


def _exit_record(exc: SystemExit) -> Dict[str, Any]:
    if exc.code is None or isinstance(exc.code, int):
        return {"exit": exc.code or 0}
    return {"exit": 1, "error": _error(exc)}  # sys.exit("message")


def _error(exc: BaseException) -> Dict[str, Any]:
    trace = traceback.format_exception(type(exc), exc, exc.__traceback__)
    earlier = _earlier(exc)
    return dict(
        _facts(exc),
        trace="".join(trace).splitlines()[-TRACE_LIMIT:],
        causes=[_name(cause) + ": " + str(cause)[:MESSAGE_LIMIT] for cause in earlier],
        chain=[_facts(cause) for cause in earlier],
        ts=time.time(),
    )


def _facts(exc: BaseException) -> Dict[str, Any]:
    """What the exception is and where it was raised, for programs rather than for people."""
    number = getattr(exc, "errno", None)
    return {
        "type": _name(exc),
        "bases": [base.__module__ + "." + base.__qualname__ for base in type(exc).__mro__[1:-1]][:BASES_LIMIT],
        "message": str(exc)[:MESSAGE_LIMIT],
        "errno": number if isinstance(number, int) else None,
        "frames": _frames(exc),
    }


def _frames(exc: BaseException) -> List[Tuple[str, int, str, str]]:
    """File, line, function and source of each frame, outermost first, without those of this file and of `runpy`."""
    found = [
        (frame.filename, frame.lineno or 0, frame.name, (frame.line or "")[:CODE_LIMIT])
        for frame in traceback.extract_tb(exc.__traceback__)
        if frame.filename != __file__ and "runpy" not in frame.filename
    ]
    return found if len(found) <= OUTER_FRAMES + INNER_FRAMES else found[:OUTER_FRAMES] + found[-INNER_FRAMES:]


def _earlier(exc: BaseException) -> List[BaseException]:
    """What the exception was raised in place of, and what a group holds; first one first.

    A trace may be too long to show them.
    """
    found = list(getattr(exc, "exceptions", ()))[:CAUSE_LIMIT]
    earlier = exc.__cause__ or exc.__context__
    while earlier is not None and len(found) < CAUSE_LIMIT:
        found.insert(0, earlier)
        earlier = earlier.__cause__ or earlier.__context__
    return [cause for cause in found if isinstance(cause, BaseException)]


def _name(exc: BaseException) -> str:
    return type(exc).__module__ + "." + type(exc).__qualname__


def _restore_visible_devices() -> None:
    """The launcher numbers devices from 0; on a shared node Slurm gave us others."""
    devices = os.environ.get("CAMPAIGN_VISIBLE_DEVICES")
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices


def _limit_memory() -> None:
    limit = _int("CAMPAIGN_MEM_PER_PROCESS")
    if limit:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _die_with_agent() -> None:
    """Nobody restarts what an orphan still writes: without its agent a rank ends itself."""
    agent = _int("CAMPAIGN_AGENT_PID")
    if agent:
        threading.Thread(target=_watch, args=(agent, _start_time(agent)), daemon=True).start()


def _watch(agent: int, start_time: str) -> None:
    # "": it died before this rank began
    while start_time and _start_time(agent) == start_time:
        time.sleep(AGENT_POLL_S)
    _forget_progress()
    os.kill(os.getpid(), signal.SIGKILL)


def _forget_progress() -> None:
    """The dead agent would have removed it, and memory is dear."""
    folder = os.environ.get("CAMPAIGN_PROGRESS_DIR")
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def _start_time(pid: int) -> str:
    """When the process began, "" if it is over: a zombie may keep its entry for as long as nobody collects it."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _write(record: Dict[str, Any]) -> None:
    folder = os.path.join(os.environ["CAMPAIGN_ATTEMPT_DIR"], "ranks")
    path = os.path.join(folder, "rank-%d.json" % record["rank"])
    temporary = "%s.%d" % (path, os.getpid())
    try:
        with open(temporary, "w") as file:
            json.dump(record, file)
        os.replace(temporary, path)
    except OSError as exc:  # a full disk must not replace the script's own error
        print("rank.py: cannot write %s: %s" % (path, exc), file=sys.stderr)


def _int(name: str) -> int:
    return int(os.environ.get(name) or 0)


if __name__ == "__main__":
    main(sys.argv[1:])
