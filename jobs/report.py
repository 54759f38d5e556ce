"""The interface for training scripts: report numbers, record events and progress, ask whether to stop.

Every line is one ``write`` to the attempt's spool, so a killed process loses nothing that it has reported. Outside a
campaign, and on every rank but the first, nothing is written there.

Every rank also keeps a progress record of fixed size in a file on its own node: the records show its agent that a
training hangs, and which rank the others wait for.

Also works when copied or loaded by file path in another environment: standard library only, Python 3.8 syntax.
"""

import json
import os
import signal
import sys
import threading
import time
from typing import Any, Dict, Optional, Set, SupportsFloat

STOP_FILE_POLL_S = 1.0
UNSAID = "steps"  # the phase after the first step of a script that names no phases
SLACK_S = 60.0  # a step time in seconds that is longer than the age of the process by so much is in milliseconds
RECORD_SIZE = 128  # bytes of a rank's progress record: a line of JSON, filled up with spaces


def report(step: int, **values: SupportsFloat) -> None:
    """Report numbers of an optimizer step; several calls for the same step add up to a row.

    Args:
        step: completed optimizer steps, the first is 1.
        values: anything ``float`` takes, one-element tensors too. Reading a tensor on a GPU waits for that GPU.
            Units: ``step_time`` in seconds, ``mem_reserved`` and ``mem_allocated`` in GB (10^9 bytes) of the rank that
            needs the most, ``tokens_per_s`` over all ranks, ``power`` in watts, ``gpu_util`` in percent, ``mfu`` from 0
            to 1. A value that cannot be in its unit is left out with a warning.
            ``ts`` is the time at which the step ended, in seconds since 1970; by default now.

    Raises:
        OSError: the shared folder does not take the line (full, over quota, gone).
    """
    if _spool is None and _record is None:
        return
    if _record is not None:
        _record.reached(step)
    if _spool is not None:
        line = {"step": int(step), "ts": time.time()}  # type: Dict[str, Any]
        for name, value in values.items():
            number = value if type(value) in _PLAIN else float(value)
            if name not in _LIMITS or _fits(name, number):
                line[name] = number
        _spool.write(line)


def progress(step: int) -> None:
    """Record the progress of this rank; ``report`` does so too, for a script that calls it on all ranks.

    Call it when the rank has done its own share of the step and begins to wait for the others: then the rank that they
    all wait for is a step behind them.

    Args:
        step: the newest step that this rank has worked on.
    """
    if _record is not None:
        _record.reached(step)


def phase(name: str) -> "_Phase":
    """Enter a phase: "train", "start", "compile", "checkpoint", "eval" or a name of your own.

    Only in "train" a long time without a step may count as a hang, so only a script that names its phases is watched
    for hangs. As a context manager, ``with phase("eval"):``, the phase before comes back at the end, or "train".
    """
    before = ""
    if _record is not None:
        before = "train" if _record.phase == UNSAID else _record.phase
        _record.enter(name)
    return _Phase(before)


def event(name: str, **data: Any) -> None:
    """Record an event ``script.<name>`` of the attempt.

    Args:
        name: one word.
        data: details that JSON can hold; other numbers are converted by ``float``.
    """
    if _spool is not None:
        _spool.write(dict({"event": name, "ts": time.time()}, **data))


def should_stop() -> bool:
    """Return whether the campaign asks this process to checkpoint and leave with exit code 0.

    True on the ranks that got SIGUSR2 or see the stop file, which need not be all ranks at the same step: let the ranks
    agree (all-reduce this) before any acts on it. Cheap enough for every step.
    """
    return _stop.asked()


def sync() -> None:
    """Make all lines so far survive a crash of the machine. Call it before committing a checkpoint of your own."""
    if _spool is not None:
        os.fsync(_spool.descriptor())


def _fits(name: str, number: Any) -> bool:
    """Return whether a number can be in its unit; if not, warn once, and leave the name out from then on."""
    unit, most = _LIMITS[name]
    limit = most or time.monotonic() - _began_s + SLACK_S
    if number > limit and name not in _refused:
        _refused.add(name)
        reason = "%s=%g is not reported: expected %s, and at most %.4g" % (name, number, unit, limit)
        sys.stderr.write("dscampaign.report: %s\n" % reason)
        event("report_refused", message=reason)
    return name not in _refused


def _age_s() -> float:
    """Return the age of this process in seconds; infinite if unknown."""
    try:
        with open("/proc/self/stat") as stat:
            ticks = int(stat.read().rpartition(")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return float("inf")
    return age_s if age_s > 0 else float("inf")


class _File:
    """A file of ours. A script may close its descriptor, as daemons do, and open its own files under that number."""

    def __init__(self, path: str, flags: int) -> None:
        self._path, self._flags = path, os.O_WRONLY | os.O_CREAT | flags
        self._open()

    def descriptor(self) -> int:
        try:
            if os.path.samestat(os.fstat(self._descriptor), self._opened):
                return self._descriptor
        except OSError:
            pass  # it is closed
        self._open()
        return self._descriptor

    def _open(self) -> None:
        self._descriptor = os.open(self._path, self._flags, 0o600)
        self._opened = os.fstat(self._descriptor)


class _Spool(_File):
    def __init__(self, path: str) -> None:
        super().__init__(path, os.O_APPEND)
        self._encode = json.JSONEncoder(default=float).encode
        self._torn = False  # the last line broke off

    def write(self, line: Dict[str, Any]) -> None:
        data = (("\n" if self._torn else "") + self._encode(line) + "\n").encode()
        self._torn = True
        descriptor = self.descriptor()
        written = os.write(descriptor, data)
        while written < len(data):  # a full disk or a signal; the next write says which
            written += os.write(descriptor, data[written:])
        self._torn = False


class _Record(_File):
    """The progress record, a file that is only ever overwritten in place. Never a reason to fail."""

    def __init__(self, path: str) -> None:
        super().__init__(path, 0)
        self._step = 0
        self.phase = "start"
        if not self._opened.st_size:  # else a worker of this rank imports us, and is not the rank
            self._write()

    def enter(self, name: str) -> None:
        if name == self.phase:
            return
        self.phase = "".join(c if c.isalnum() else "_" for c in name[:32]).encode("ascii", "replace").decode()
        self._write()

    def reached(self, step: int) -> None:
        self._step = int(step)
        if self.phase == "start":
            self.phase = UNSAID
        self._write()

    def _write(self) -> None:
        line = '{"step": %d, "phase": "%s"}' % (self._step, self.phase)
        try:  # contextlib.suppress costs as much as the write
            os.pwrite(self.descriptor(), line.ljust(RECORD_SIZE - 1).encode() + b"\n", 0)
        except OSError:
            return


class _Phase:
    def __init__(self, before: str) -> None:
        self._before = before

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        if _record is not None:
            _record.enter(self._before)


class _Stop:
    def __init__(self, path: Optional[str]) -> None:
        self._path = path
        self._next_look_s = 0.0
        self._asked = False

    def signalled(self, _signum: int, _frame: Any) -> None:
        self._asked = True

    def asked(self) -> bool:
        now_s = time.monotonic()
        if not self._asked and self._path and now_s >= self._next_look_s:
            self._next_look_s = now_s + STOP_FILE_POLL_S
            self._asked = os.path.exists(self._path)
        return self._asked


def _rank() -> int:
    """Return the rank of this process; a script that starts its ranks itself may name only their place on a node."""
    names = ("RANK", "LOCAL_RANK", "CAMPAIGN_RANK")
    return int(next(filter(None, map(os.environ.get, names)), 0))


def _open_record() -> Optional[_Record]:
    folder = os.environ.get("CAMPAIGN_PROGRESS_DIR")
    try:
        return _Record(os.path.join(folder, "rank-%d" % _rank())) if folder else None
    except (OSError, ValueError):  # as in a container that does not see the folder
        return None


def _watch_for_stop() -> _Stop:
    stop = _Stop(os.environ.get("CAMPAIGN_STOP_FILE"))
    if os.environ.get("CAMPAIGN_METRICS_FILE") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR2, stop.signalled)
    return stop


_PLAIN = (int, float)
_LIMITS = {"mem_reserved": ("GB", 1e4), "mem_allocated": ("GB", 1e4), "step_time": ("seconds", None)}
_began_s = time.monotonic() - _age_s()
_refused: Set[str] = set()
_metrics_file = os.environ.get("CAMPAIGN_METRICS_FILE")
_spool = _Spool(_metrics_file) if _metrics_file and _rank() == 0 else None
_record = _open_record()
_stop = _watch_for_stop()
