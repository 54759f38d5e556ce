"""One tool's process.

Started by the agent of the first node:  python -m dscampaign.jobs.forward ATTEMPT_DIR TOOL

The agent holds the other end of its standard input. When that closes, whatever the agent died of, the attempt is over:
the process passes on what is left and ends. Typed in a terminal it passes on what an attempt left behind.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from dscampaign.files.atomic_files import alone, read_json
from dscampaign.files.ownership import Distrusted, trusted_bytes
from dscampaign.files.private_files import make_below
from dscampaign.jobs.shared.layout import FORWARD_ROOT_LEVELS, AttemptPaths, RunPaths
from dscampaign.jobs.shared.payload import Payload

from .loop import Forwarding
from .processes import FINISH_S, how_it_ended

NICENESS = 10
"""Training comes first."""
NOT_RUN = 75


def main(argv: list[str]) -> int:
    """Forwards the attempt in the folder ``argv[0]`` to the tool ``argv[1]``."""
    os.umask(0o077)
    os.nice(NICENESS)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
        if not sys.stdin.isatty():  # Slurm signals every process of a job; the agent's closing is what counts
            signal.signal(number, signal.SIG_IGN)
    paths, tool = AttemptPaths(Path(argv[0]).absolute()), argv[1]
    try:
        content = trusted_bytes(paths.forward_payload, paths.dir.parents[FORWARD_ROOT_LEVELS])
    except Distrusted as doubt:
        print(f"not run: {doubt}", file=sys.stderr)
        return NOT_RUN
    over = _Over(paths)
    threading.Thread(target=over.await_end, daemon=True).start()
    payload = Payload.parse(content, paths.forward_payload)
    state = RunPaths(Path(payload.run_dir)).forward_state(payload.config_hash, tool)
    make_below(Path(payload.run_dir), state.parent, closed=True)
    with alone(state.with_suffix(".lock")):  # the attempt before may have ended a moment ago
        Forwarding(payload, tool).run(over.event, over.how)
    return 0


class _Over:
    """The end of the attempt, as standard input tells it, or in a terminal what the attempt left."""

    def __init__(self, paths: AttemptPaths) -> None:
        self._paths = paths
        self.event = threading.Event()
        self._word = ""

    def how(self) -> str:
        """How the attempt ended, as ``how_it_ended`` says."""
        return self._word

    def await_end(self) -> None:
        """Waits for it. From then on there is so much time, even if the tool hangs and no agent is left to end it."""
        if sys.stdin.isatty():
            left = read_json(self._paths.outcome(0)) or {}
            self._word = how_it_ended(left.get("launcher_exit"), left.get("ended_by", ""))
            self.event.set()
            return
        self._word = sys.stdin.readline().strip() or "failed"
        self.event.set()
        threading.Event().wait(FINISH_S + 1)
        os._exit(1)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # a tool's own threads and exit hooks may hang
