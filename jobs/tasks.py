"""Start the ranks of a node as `srun` starts tasks. The environment has the sizes; each rank gets its place.

Runs by file path in the training's own interpreter, hence: standard library only, Python 3.8 syntax.
Usage: tasks.py NODE_RANK NODES RANKS_PER_NODE ADDRESS PORT SCRIPT [ARGUMENT...]
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

POLL_S = 0.1
GRACE_S = 1.0  # the agent sees which rank was first


def main(argv: list[str]) -> int:
    """Start the tasks, and wait. As soon as a task fails, end the others; return its exit code, 256 less a signal."""
    ranks = int(argv[2])
    command = [sys.executable, "-u", *argv[5:]]
    tasks = [subprocess.Popen(command, env=_environment(argv, local)) for local in range(ranks)]

    def end(*_: Any) -> None:
        for task in tasks:
            task.terminate()

    signal.signal(signal.SIGTERM, end)
    failed = 0
    while [task for task in tasks if task.poll() is None]:
        if not failed:
            failed = next((task.returncode for task in tasks if task.returncode), 0)
            if failed:
                time.sleep(GRACE_S)
                end()
        time.sleep(POLL_S)
    failed = failed or next((task.returncode for task in tasks if task.returncode), 0)
    return failed & 0xFF


def _environment(argv: list[str], local: int) -> dict[str, str]:
    node, nodes, ranks = (int(word) for word in argv[:3])
    rank = node * ranks + local
    place = {
        "RANK": rank,
        "LOCAL_RANK": local,
        "WORLD_SIZE": nodes * ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "MASTER_ADDR": argv[3],
        "MASTER_PORT": argv[4],
        "SLURM_PROCID": rank,
        "SLURM_LOCALID": local,
        "SLURM_NODEID": node,
    }
    return {**os.environ, **{name: str(value) for name, value in place.items()}}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
