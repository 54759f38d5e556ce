"""Run the training script of a rank and record how it ended, in a log and a record of its own.

The launcher reports the first dead child that it polls. The earliest error over all ranks is the root cause.

Runs by file path in the training script's own interpreter, hence: standard library only, Python 3.8 syntax. Usage:
rank.py SCRIPT [ARGUMENT...] | rank.py -m MODULE [ARGUMENT...]
"""

import json
import os
import resource
import runpy
import signal
import sys
import time
import traceback
from contextlib import suppress
from functools import wraps
from importlib.machinery import PathFinder
from itertools import islice
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple, TypeVar

T = TypeVar("T")

MESSAGE_LIMIT = 4000
TRACE_LIMIT = 30
TRACE_LINE_LIMIT = 1000
CAUSE_LIMIT = 5
LIBRARIES = ("torch", "deepspeed", "transformers", "accelerate")
EXIT_LIMIT, OUT_OF_RANGE = 2**31, 255  # beyond, Python exits with this
BASES_LIMIT = 12
OUTER_FRAMES, INNER_FRAMES = 6, 14
SOURCE_LIMIT = 160


def main(argv: List[str]) -> None:
    """Run ``argv`` as ``python argv...`` would, with a record in ``CAMPAIGN_ATTEMPT_DIR/ranks``."""
    _open_log()
    record = _Record()
    _take_place()
    limit = _int("CAMPAIGN_MEM_PER_PROCESS")
    if limit:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    _begin_guard()
    record.heed_os_exit()
    _hide_our_frames()
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
        record.end(ending)


class _Record:
    """The record of this process: while it runs, and once how it ended. A process that it forks writes none."""

    def __init__(self) -> None:
        self._groups = _Groups()
        self._ended = False
        self._folders = (
            os.path.join(os.environ["CAMPAIGN_ATTEMPT_DIR"], "ranks"),
            os.environ.get("CAMPAIGN_PROGRESS_DIR"),
        )
        self._identity = {"rank": _rank(), "pid": os.getpid(), "host": os.uname().nodename, "started": time.time()}
        _write({**self._identity, "state": "running"}, *self._folders)

    def heed_os_exit(self) -> None:
        """Make an end by `os._exit`, which runs nothing else, leave the record first."""
        leave = os._exit

        def end(status: int) -> NoReturn:
            with suppress(Exception):
                self.end({"exit": int(status) & 0xFF})
            leave(status)

        os._exit = end

    def end(self, ending: Dict[str, Any]) -> None:
        """Write how it ended; of several ends, as of a handler that runs at the end, the first."""
        if self._ended or os.getpid() != self._identity["pid"]:
            return
        self._ended = True
        with suppress(ValueError):  # not the main thread
            # Python gives a signal that had a handler its deadly default back while it shuts down, which takes seconds.
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        how = {"group": self._groups.largest(), "software": _software(), "state": "ended", "ended": time.time()}
        _write({**self._identity, **ending, **how}, *self._folders)


class _Groups:
    """Watches for the largest group of ranks that torch forms, whichever library asks for it."""

    _MODULE = "torch.distributed.distributed_c10d"
    _OTHERS = ("jax", "mpi4py", "horovod", "tensorflow", "paddle", "mindspore", "mxnet")
    """Libraries that form groups of their own."""

    def __init__(self) -> None:
        self._formed = 0
        sys.meta_path.insert(0, self)

    def largest(self) -> Optional[int]:
        """Return its size, 0 for none; None if this process may not train, or uses another library."""
        trains_here = "torch" in sys.modules or "dscampaign.jobs.report" in sys.modules
        others = any(name in sys.modules for name in self._OTHERS)
        return self._formed if self._formed or (trains_here and not others) else None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._MODULE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_watch(module: Any) -> None:
                load(module)
                with suppress(Exception):
                    self._watch(module)

            spec.loader.exec_module = load_and_watch  # type: ignore[method-assign]
        return spec

    def _watch(self, module: Any) -> None:
        form = module.init_process_group

        @wraps(form)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            formed = form(*args, **kwargs)
            with suppress(Exception):
                self._formed = max(self._formed, int(module.get_world_size()))
            return formed

        module.init_process_group = init_process_group


def _software() -> Dict[str, str]:
    versions = ((name, getattr(sys.modules.get(name), "__version__", None)) for name in LIBRARIES)
    return {name: str(version)[:80] for name, version in versions if version}


def _run(argv: List[str]) -> None:
    arguments = [a.replace("{local_rank}", os.environ.get("LOCAL_RANK", "0")) for a in argv]
    _enter()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        _first_on_path(_in_copy(os.getcwd()))
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        _first_on_path(os.path.dirname(os.path.realpath(arguments[0])))  # a link's neighbours are its target's
        runpy.run_path(arguments[0], run_name="__main__")


def _enter() -> None:
    if os.environ.get("CAMPAIGN_WORKDIR"):
        os.chdir(os.environ["CAMPAIGN_WORKDIR"])
    sys.path[1:] = [_in_copy(entry) for entry in sys.path[1:]]
    sys.path_hooks.insert(0, _find_in_copy)
    sys.path_importer_cache.clear()
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):  # setuptools: modules by name, not on the path
            mapping = getattr(module, "MAPPING", {})
            mapping.update({module_name: _in_copy(place) for module_name, place in mapping.items()})


def _find_in_copy(entry: str) -> Any:
    """Search the copy for folders that the script itself puts on the path, as by `sys.path.append("..")`."""
    place = os.path.abspath(entry)
    copied = _in_copy(place)
    if copied == place:
        raise ImportError(entry)
    for hook in sys.path_hooks[1:]:
        try:
            return hook(copied)
        except ImportError:
            continue
    raise ImportError(entry)


def _first_on_path(folder: str) -> None:
    """Not this file's folder: its names must never shadow the user's.

    With PYTHONSAFEPATH Python puts none there, and before the built-in trainer nothing of the user's belongs either.
    """
    if getattr(sys.flags, "safe_path", False):
        return
    sys.path[:1] = [] if os.environ.get("CAMPAIGN_TRAIN_CONFIG") else [folder]


def _in_copy(path: str) -> str:
    """Return the place in the copy of the code, if the path was copied; a link in the copy stands for any other."""
    root, copy = os.environ.get("CAMPAIGN_CODE_ROOT"), os.environ.get("CAMPAIGN_CODE")
    if not (root and copy):
        return path
    for name, top in ((path, root), (os.path.realpath(path), os.path.realpath(root))):
        if _is_within(name, top):
            place = os.path.normpath(os.path.join(copy, os.path.relpath(name, top)))
            own = os.path.exists(place) and _is_within(os.path.realpath(place), os.path.realpath(copy))
            return place if own else path
    return path


def _is_within(path: str, folder: str) -> bool:
    return (path + os.sep).startswith(folder + os.sep)


def _hide_our_frames() -> None:
    """Print an exception as `python SCRIPT` would: without the frames of this file and of `runpy`."""
    show = sys.excepthook

    def show_the_scripts(kind: Any, exc: BaseException, trace: Any) -> None:
        own = _scripts_own(trace)
        show(kind, exc.with_traceback(own), own)

    sys.excepthook = show_the_scripts


def _scripts_own(trace: Any) -> Any:
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _is_ours(file: str) -> bool:
    return file == __file__ or "runpy" in file


def _exit_record(exc: SystemExit) -> Dict[str, Any]:
    if exc.code is None or isinstance(exc.code, int):
        code = int(exc.code or 0)
        return {"exit": code if abs(code) < EXIT_LIMIT else OUT_OF_RANGE}
    return {"exit": 1, "error": _error(exc)}  # sys.exit("message")


def _error(exc: BaseException) -> Dict[str, Any]:
    trace = _asked(lambda: traceback.format_exception(type(exc), exc, _scripts_own(exc.__traceback__)), [])
    return dict(
        _facts(exc),
        trace=[line[:TRACE_LINE_LIMIT] for line in "".join(trace).splitlines()[-TRACE_LIMIT:]],
        chain=[_facts(cause) for cause in _asked(lambda: _earlier(exc), [])],
        ts=time.time(),
    )


def _facts(exc: BaseException) -> Dict[str, Any]:
    number = _asked(lambda: getattr(exc, "errno", None), None)
    return {
        "type": _name(type(exc)),
        "bases": [_name(base) for base in type(exc).__mro__[1:-1]][:BASES_LIMIT],
        "message": _asked(lambda: "%.*s" % (MESSAGE_LIMIT, exc), "<exception str() failed>"),
        "errno": number if type(number) is int and abs(number) < EXIT_LIMIT else None,
        "frames": _asked(lambda: _frames(exc), []),
    }


def _asked(question: Callable[[], T], otherwise: Any) -> T:
    """Ask an exception, whose class is the script's and may fail over that."""
    answer = otherwise  # type: T
    with suppress(Exception):
        answer = question()
    return answer


def _frames(exc: BaseException) -> List[Tuple[str, int, str, str]]:
    frames = [
        (frame.filename, frame.lineno or 0, frame.name, (frame.line or "")[:SOURCE_LIMIT])
        for frame in traceback.extract_tb(exc.__traceback__)
        if not _is_ours(frame.filename)
    ]
    return frames if len(frames) <= OUTER_FRAMES + INNER_FRAMES else frames[:OUTER_FRAMES] + frames[-INNER_FRAMES:]


def _earlier(exc: BaseException) -> List[BaseException]:
    """Return its causes, first cause first, and the exceptions of a group; a trace may be too long to show them."""
    chain = list(islice(getattr(exc, "exceptions", ()), CAUSE_LIMIT))
    earlier = exc.__cause__ or exc.__context__
    while earlier is not None and len(chain) < CAUSE_LIMIT:
        chain.insert(0, earlier)
        earlier = earlier.__cause__ or earlier.__context__
    return [cause for cause in chain if isinstance(cause, BaseException)]


def _name(kind: type) -> str:
    return _asked(lambda: "%s.%s" % (kind.__module__, kind.__qualname__), "unknown")


def _open_log() -> None:
    """Write to a log of this rank; without a folder for it, as in a batch script, to the launcher's output."""
    logs = os.path.join(os.environ["CAMPAIGN_ATTEMPT_DIR"], "logs")
    with suppress(OSError):
        name = "%s_rank%d.log" % (time.strftime("%Y%m%d%H%M%S"), _rank())
        log = os.open(os.path.join(logs, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)


def _take_place() -> None:
    """Set Slurm's variables to this rank's place: libraries read them first, and Slurm's own task is the agent."""
    if os.environ.get("SLURM_JOB_ID"):
        for name, own in (("SLURM_PROCID", "RANK"), ("SLURM_LOCALID", "LOCAL_RANK")):
            if own in os.environ:
                os.environ.setdefault(name, os.environ[own])
    if os.environ.get("CAMPAIGN_VISIBLE_DEVICES"):  # the launcher numbers devices from 0; on a shared node they differ
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["CAMPAIGN_VISIBLE_DEVICES"]


def _begin_guard() -> None:
    """Start guard.py, which is no child of this process: a script may wait for all of its children."""
    agent, rank = os.environ.get("CAMPAIGN_AGENT_PID"), str(os.getpid())
    if not agent:
        return
    if not os.path.exists("/proc/" + agent):  # it died before this rank began
        os.kill(os.getpid(), signal.SIGKILL)
    guard = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guard.py")
    null = os.open(os.devnull, os.O_RDWR)
    child = os.fork()
    if child:
        os.close(null)
        os.waitpid(child, 0)
        return
    try:
        if os.fork() == 0:
            os.dup2(null, 0)
            os.dup2(null, 1)
            env = dict(os.environ)
            env.pop("CAMPAIGN_ATTEMPT_DIR", None)  # by which the agent finds what a script has left
            os.execve(sys.executable, [sys.executable, "-I", "-S", guard, rank, agent], env)  # noqa: S606
    finally:
        os._exit(0)


def _write(record: Dict[str, Any], folder: str, memory: Optional[str]) -> None:
    """Write the record to the attempt's folder; if that is full or away, to the node's memory, for the agent."""
    name = "rank-%d.json" % record["rank"]
    try:
        _replace(os.path.join(folder, name), record)
    except OSError as exc:  # it must not replace the script's own error
        try:
            if memory:
                _replace(os.path.join(memory, name), record)
            print("rank.py: cannot write %s: %s" % (name, exc), file=sys.stderr, flush=True)
        except OSError:
            pass


def _replace(path: str, record: Dict[str, Any]) -> None:
    temporary = "%s.%d" % (path, os.getpid())
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(record, file)
    os.replace(temporary, path)


def _rank() -> int:
    """Return the rank of this process; without a launcher, the node's."""
    return _int("CAMPAIGN_RANK") or _int("RANK")


def _int(name: str) -> int:
    return int(os.environ.get(name) or 0)


if __name__ == "__main__":
    main(sys.argv[1:])
