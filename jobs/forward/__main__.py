"""The process of a tool, started by the first node's agent: ``python -m dscampaign.jobs.forward ATTEMPT_DIR TOOL``.

When its standard input closes, the attempt is over: it forwards the rest and ends. In a terminal it forwards the rest
of an attempt that has ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

from dscampaign.files.atomic_files import alone, read_json
from dscampaign.files.ownership import Distrusted, trusted_bytes
from dscampaign.files.private_files import make_below
from dscampaign.jobs.shared.layout import FORWARD_ROOT_LEVELS, AttemptPaths
from dscampaign.jobs.shared.payload import Payload

from .loop import Forwarding
from .processes import FINISH_S, how_it_ended

NICENESS = 10  # training comes first
NOT_RUN = 75


def main(argv: list[str]) -> int:
    """Forward the attempt in the folder ``argv[0]`` to the tool ``argv[1]``."""
    os.umask(0o077)
    os.nice(NICENESS)
    paths, tool, in_terminal = AttemptPaths(Path(argv[0]).absolute()), argv[1], sys.stdin.isatty()
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
        if not in_terminal:  # Slurm signals every process of a job; the agent's closing is what counts
            signal.signal(number, signal.SIG_IGN)
    try:
        content = trusted_bytes(paths.forward_payload, paths.dir.parents[FORWARD_ROOT_LEVELS])
    except Distrusted as doubt:
        print(f"not run: {doubt}", file=sys.stderr)
        return NOT_RUN
    over, how = threading.Event(), ["failed"]
    if in_terminal:
        outcome = read_json(paths.outcome(0)) or {}
        how = [how_it_ended(outcome.get("launcher_exit"), outcome.get("ended_by", ""))]
        over.set()
    else:
        threading.Thread(target=_wait, args=(over, how), daemon=True).start()
    payload = Payload.of(json.loads(content), paths.forward_payload)
    state = payload.run_paths.forward_state(payload.config_hash, tool)
    make_below(payload.run_paths.dir, state.parent, closed=True)
    with alone(state.with_suffix(".lock")):  # the attempt before may have ended a moment ago
        Forwarding(payload, tool).run(over, lambda: how[-1])
    return 0


def _wait(over: threading.Event, how: list[str]) -> None:
    """Wait for the end. From then on time is limited, even if the tool hangs and no agent is left to end it."""
    how.append(sys.stdin.readline().strip() or "failed")
    over.set()
    threading.Event().wait(FINISH_S + 1)
    os._exit(1)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # a tool's own threads and exit hooks may hang
