#!/usr/bin/env python3
"""Stands in for a training environment's Python: understands the launcher's arguments and starts ranks as it does.

Like the real one it ends all ranks as soon as one fails, and exits with that one's code.
Without torch and DeepSpeed it starts in a twentieth of a second.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from types import FrameType

_RANKS: "list[subprocess.Popen[bytes]]" = []


def main() -> int:
    """Starts this node's ranks and waits for them."""
    if "deepspeed.launcher.runner" not in sys.argv:  # another program of the environment, such as that of `weights`
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    assert sys.argv[1:4] == ["-u", "-m", "deepspeed.launcher.runner"], sys.argv
    args = _arguments(sys.argv[4:])
    with open(args.hostfile) as file:  # noqa: PTH123
        slots = [int(found[1]) for line in file if (found := re.fullmatch(r"\S+ slots=(\d+)\n", line))]
    signal.signal(signal.SIGTERM, _end)
    first = sum(slots[: args.node_rank])
    for local in range(slots[args.node_rank]):
        _RANKS.append(_start(args, first + local, local, sum(slots)))
    return _wait()


def _arguments(argv: "list[str]") -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("hostfile", "master_addr"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("node_rank", "master_port"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("no_ssh", "no_local_rank"):
        parser.add_argument(f"--{name}", action="store_true", required=True)
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    return parser.parse_args(argv)


def _start(args: argparse.Namespace, rank: int, local: int, world: int) -> "subprocess.Popen[bytes]":
    env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(local), "WORLD_SIZE": str(world)}
    env |= {"MASTER_ADDR": args.master_addr, "MASTER_PORT": str(args.master_port), "CUDA_VISIBLE_DEVICES": str(local)}
    return subprocess.Popen([sys.executable, "-u", args.script, *args.args], env=env)


def _wait() -> int:
    while alive := [rank for rank in _RANKS if rank.poll() is None]:
        time.sleep(0.02)
        if failed := next((rank.returncode for rank in _RANKS if rank.poll()), 0):
            if not os.environ.get("LINGER"):
                for rank in alive:
                    rank.terminate()
            for rank in alive:
                rank.wait()
            return failed
    return next((rank.returncode for rank in _RANKS if rank.returncode), 0)


def _end(_signum: int, _frame: "FrameType | None") -> None:
    for rank in _RANKS:
        rank.terminate()
    sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
