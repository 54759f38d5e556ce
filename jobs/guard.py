"""Watch a rank from outside of it, and kill it once its agent is dead or silent, or the run has a newer attempt.

Slurm may report a node as failed though its processes go on, and the agent, which would end them, may be stopped. The
agent's sign of life is a file in the memory of the node, so that a slow shared folder ends no healthy training.

A process, not a thread of the rank: a training script may hold Python's lock. Standard library only, Python 3.8 syntax.
Usage: guard.py RANK_PID AGENT_PID, with the rank's environment and its log as standard error. Started by rank.py.
"""

import json
import os
import signal
import sys
import threading
import time
from typing import List, Tuple

Process = Tuple[int, str]  # its number, and when it began, which tells it from a later one of that number
POLL_S = 2.0
SILENCE_S = 60.0  # an agent whose machine swaps, or that is stopped for a moment, is silent for less
CURRENT_POLL_S = 10.0
"""How often each rank of the cluster reads its run's `current` while its agent is at work and does that too."""

ALIVE = "alive"  # the agent's sign of life, in CAMPAIGN_PROGRESS_DIR


def main(argv: List[str]) -> None:
    """Watch until the rank is over."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # Slurm and the launcher signal all processes; the rank may yet save
    rank, agent = [(int(pid), start_time(int(pid))) for pid in argv]
    silent = threading.Event()
    threading.Thread(target=_watch_current, args=(rank, silent), daemon=True).start()  # its file system may hang
    _kill(rank, _watch_agent(rank, agent, silent))


def _watch_agent(rank: Process, agent: Process, silent: threading.Event) -> str:
    sign, silent_s = 0, 0.0
    while _lives(rank) and silent_s < SILENCE_S:
        if not _lives(agent):
            return "its agent is gone"
        time.sleep(POLL_S)
        before, sign = sign, _sign_of_life()
        # Counted, not timed, and not while the rank is stopped: a job that was suspended has not been silent.
        runs = _entry(rank[0])[0] not in ("T", "t")
        silent_s = silent_s + POLL_S if runs and sign and sign == before else 0.0
        if silent_s:
            silent.set()
        else:
            silent.clear()
    return "its agent gave no sign of life for %.0f s" % silent_s


def _watch_current(rank: Process, silent: threading.Event) -> None:
    path = os.path.join(os.environ.get("CAMPAIGN_RUN_DIR", ""), "current")
    mine, newest = int(os.environ.get("CAMPAIGN_GENERATION") or 0), 0
    while newest <= mine:
        silent.wait(CURRENT_POLL_S)
        time.sleep(POLL_S)
        newest = _generation(path)
    _kill(rank, "attempt %d has begun" % newest)


def _generation(path: str) -> int:
    try:
        with open(path) as file:
            return int(json.load(file)["generation"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _sign_of_life() -> int:
    """Return when the agent was last at work, in ns; 0 without a sign, as in a container that does not see it."""
    try:
        return os.stat(os.path.join(os.environ["CAMPAIGN_PROGRESS_DIR"], ALIVE)).st_mtime_ns
    except (OSError, KeyError):
        return 0


def _kill(rank: Process, reason: str) -> None:
    if _lives(rank):  # else it is over, and its number may be another's
        os.kill(rank[0], signal.SIGKILL)
        print("rank %s was ended: %s" % (os.environ.get("RANK", "?"), reason), file=sys.stderr, flush=True)


def _lives(process: Process) -> bool:
    pid, began = process
    return began != "" and start_time(pid) == began


def start_time(pid: int) -> str:
    """Return when the process began, "" if it is over."""
    return _entry(pid)[1]


def _entry(pid: int) -> Tuple[str, str]:
    """Return the state and the start of a process, "" if it is over: a zombie has an entry until it is collected."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return "", ""
    return ("", "") if fields[0] in "ZX" else (fields[0], fields[19])


if __name__ == "__main__":
    main(sys.argv[1:])
