"""One server process of a test: started in the foreground, known by its pid, ended without a trace."""

import contextlib
import os
import random
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dscampaign.tests.support.waiting import HANGS_S, wait_until


def listens(port: int) -> bool:
    """Whether something accepts TCP connections on this port of 127.0.0.1."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_ports(count: int) -> list[int]:
    """Consecutive free TCP ports of 127.0.0.1, below the range that the kernel hands out by itself.

    The start is random, so two test runs side by side do not race for one block.
    """
    starts = list(range(20_000, 32_000 - count, 10))
    random.shuffle(starts)
    for start in starts:
        ports = list(range(start, start + count))
        if all(_bindable(port) for port in ports):
            return ports
    raise RuntimeError(f"no {count} consecutive free ports")


def _bindable(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@dataclass
class Daemon:
    """A server that runs in the foreground as its own process group.

    Its pid lies in `run_dir`, with the start time that tells it from a later process of the same number, so another
    process can end it too.

    Attributes:
        name: Names the pid file and the log.
        argv: Command line, in the foreground form of the server.
        run_dir: Folder for `<name>.pid` and `<name>.log`.
        env: Whole environment.
        user: Account to run as; None keeps the caller's.
        stop_signal: What asks this server to end in good order.
        tied: End it when the process that started it ends in whatever way.
    """

    name: str
    argv: Sequence[str]
    run_dir: Path
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    user: str | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    tied: bool = True
    _child: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def pid(self) -> int | None:
        """The pid while the process lives, else None."""
        if self._child is not None and self._child.poll() is not None:
            return None
        with contextlib.suppress(FileNotFoundError, ValueError):
            pid, started = (int(word) for word in self._pid_file.read_text().split())
            return pid if start_time(pid) == started else None
        return None

    @property
    def log(self) -> Path:
        """What the server prints."""
        return self.run_dir / f"{self.name}.log"

    def start(self, ready: Callable[[], bool] | None = None, timeout_s: float = HANGS_S) -> None:
        """Starts the server unless it runs, and waits until it is `ready()`; an error holds the end of its log."""
        if self.pid is None:
            with self.log.open("ab") as log:
                self._child = subprocess.Popen(
                    [*self._prefix(), *self.argv],
                    env=dict(self.env),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self._pid_file.write_text(f"{self._child.pid} {start_time(self._child.pid) or 0}\n")
        if ready is not None:
            wait_until(lambda: self._check_alive() and ready(), f"{self.name} ready", timeout_s=timeout_s)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal where the process lives."""
        if (pid := self.pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Ends it the hard way and waits for its end."""
        self.send(signal.SIGKILL)
        wait_until(lambda: self.pid is None, f"{self.name} killed")

    def stop(self, timeout_s: float = 10.0) -> None:
        """Asks it to end, and kills it when it does not."""
        self.send(signal.SIGCONT)
        self.send(self.stop_signal)
        try:
            wait_until(lambda: self.pid is None, f"{self.name} stopped", timeout_s=timeout_s)
        except TimeoutError:
            self.kill()

    @property
    def _pid_file(self) -> Path:
        return self.run_dir / f"{self.name}.pid"

    def _prefix(self) -> list[str]:
        tie = [f"--pdeathsig={self.stop_signal.name.removeprefix('SIG')}"] if self.tied else []
        account = [f"--reuid={self.user}", f"--regid={self.user}", "--init-groups"] if self.user else []
        return ["setpriv", *account, *tie, "--"] if tie or account else []

    def _check_alive(self) -> bool:
        if self.pid is None:
            tail = self.log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{self.name} ended before it was ready:\n{tail}")
        return True


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None where it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])
